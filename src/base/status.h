// The one list of statuses: number, name, text and what each leaves behind. Every fallible function of the library returns
// one of them; `fail` adds the words that name the field and the value. The public enum in engine.h repeats the numbers,
// and a test compares the two.
//
// Invariant: numbers are never reused; a Status is never ignored (nodiscard).
#pragma once

#include <cstdint>

namespace treadle {

// X(number, NAME, text, aftermath)
//   unchanged: the call did nothing · ended: the request ended, its neighbours did not notice
//   unusable: only poll and destroy work
#define TREADLE_STATUS_LIST(X)                                                                            \
    X(0, OK, "success", unchanged)                                                                        \
    X(1, INVALID_ARGUMENT, "an argument is null or out of range", unchanged)                              \
    X(2, STRUCT_SIZE, "a struct_size is unknown to this library, or its tail is not zero", unchanged)     \
    X(3, NOMEM, "out of memory", unchanged)                                                               \
    X(4, BUSY, "another thread or an outer call is in a function that only one may run", unchanged)       \
    X(5, BUFFER_TOO_SMALL, "the caller's buffer is too small", unchanged)                                 \
    X(6, STALE_ID, "the id names no live request", unchanged)                                             \
    X(7, NOT_FOUND, "the file or its folder does not exist", unchanged)                                   \
    X(8, IO, "the file could not be opened, read or written", unchanged)                                  \
    X(9, TRUNCATED, "the file ends before what its header announces", unchanged)                          \
    X(10, BAD_MAGIC, "the file is not of the kind that is wanted: a GGUF model, or a session", unchanged) \
    X(11, BAD_VERSION, "the file has a version of its format that is not supported", unchanged)           \
    X(12, CORRUPT, "the file contradicts itself or its format", unchanged)                                \
    X(13, LIMIT, "a count, length or size is beyond the library's limits", unchanged)                     \
    X(14, UNSUPPORTED_ARCHITECTURE, "the model's architecture is not supported", unchanged)               \
    X(15, UNSUPPORTED_TYPE, "a tensor's type is not supported", unchanged)                                \
    X(16, UNSUPPORTED_TOKENIZER, "the model's tokenizer is not supported", unchanged)                     \
    X(17, UNSUPPORTED_TEMPLATE, "the model's chat template is missing or not supported", unchanged)       \
    X(18, STOPPED, "a callback of the host asked to stop", unchanged)                                     \
    X(19, INVALID_UTF8, "text is not valid UTF-8", unchanged)                                             \
    X(20, TOKEN_OUT_OF_RANGE, "a token id is not in the vocabulary", unchanged)                           \
    X(21, PROMPT_TOO_LONG, "the prompt does not fit the model's context", unchanged)                      \
    X(22, POOL_TOO_SMALL, "the request can never fit the pool of cache blocks", unchanged)                \
    X(23, FULL, "the engine holds as many requests as it was made for", unchanged)                        \
    X(24, NOT_A_NUMBER, "the model's output for a request is not a number", ended)                        \
    X(25, UNUSABLE, "an earlier error left the engine unusable", unusable)                                \
    X(26, INTERNAL, "the library found itself in a state it should not reach", unusable)                  \
    X(27, WRONG_MODEL, "the session was saved with another model or other numerics", unchanged)

enum class Status : int32_t {
#define TREADLE_STATUS_VALUE(number, name, text, aftermath) name = number,
    TREADLE_STATUS_LIST(TREADLE_STATUS_VALUE)
#undef TREADLE_STATUS_VALUE
};

const char* status_name(Status status);  // "NOMEM"; "UNKNOWN" for a number that is not in the list
const char* status_text(Status status);

constexpr int error_message_bytes = 512;  // with its final zero

// The words behind a status. Owned by the caller; a null Error* is allowed everywhere.
struct Error {
    Status status = Status::OK;
    char message[error_message_bytes] = {};
};

// Fills `error` (which may be null) and returns `status`, so that a check reads: return fail(error, Status::LIMIT, "...", n).
[[nodiscard]] __attribute__((format(printf, 3, 4))) Status fail(Error* error, Status status,
                                                                const char* format, ...);

// Passes a failure up.
#define TREADLE_TRY(expression)                                                                     \
    do {                                                                                            \
        if (const ::treadle::Status try_status = (expression); try_status != ::treadle::Status::OK) \
            return try_status;                                                                      \
    } while (0)

}  // namespace treadle
