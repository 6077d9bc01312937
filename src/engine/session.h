// A saved sequence: what it takes to go on with it, in another engine or another process, exactly. Its tokens and what chooses
// the next ones; keys and values are computed again. A few KB. The engine fills a SessionState when the host saves, and submits
// one when the host restores.
//
//     "TREADLES" │ version u32 │ total bytes u64 │ fields │ tokens │ stop tokens │ stop strings │ XXH3-64 of all before it
//
// Little-endian, field by field, without padding; the tokens are LEB128 (two or three bytes each), all else of fixed width.
//
// Invariant: a function of the state alone. decode_session refuses every file that encode_session didn't write, whatever its
// bytes: it allocates no more than in proportion to them, and leaves *out as it was unless it returns OK.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/memory.h"
#include "base/status.h"
#include "sampling/sampler.h"

namespace treadle {

constexpr uint32_t session_version = 1;
constexpr size_t numerics_id_bytes = 32;            // with its final zero
constexpr int32_t session_finish_reason_max = 6;    // the last FinishReason that this version knows
constexpr int32_t session_finish_reason_error = 5;  // never in a session: what failed may go on elsewhere

// The longest session: as many tokens as a context can have at four bytes each, and room for all else.
constexpr uint64_t session_bytes_max = 4 * uint64_t{limits::context_max} + (uint64_t{1} << 19);

struct SessionState {
    explicit SessionState(Memory* memory) : tokens(memory), stop_tokens(memory), stop_strings(memory) {}

    uint64_t model_fingerprint = 0;
    char numerics_id[numerics_id_bytes] = {};

    std::pmr::vector<int32_t> tokens;  // prompt first, at least one
    int32_t prompt_tokens = 1;         // those that don't count as generated
    uint64_t sample_index = 0;         // of the sequence in its request
    uint64_t forks = 0;                // made of its request so far: the next one draws like none of them
    SamplingParams sampling;
    int32_t max_tokens = -1;  // to generate, those among `tokens` included; -1: as many as fit
    bool ignore_end = false;
    std::pmr::vector<int32_t> stop_tokens;
    std::pmr::vector<std::pmr::string> stop_strings;

    uint64_t delivered_bytes = 0;  // of the answer's text that the host has got
    int32_t finish_reason = 0;     // a FinishReason; 0: it goes on
};

// Bytes that encode_session writes.
size_t session_bytes(const SessionState& state);

// Writes session_bytes(state) bytes. BUFFER_TOO_SMALL: nothing was written. CORRUPT, LIMIT: the state is one that
// decode_session would refuse.
[[nodiscard]] Status encode_session(const SessionState& state, std::span<std::byte> out, Error* error);

// The state in `bytes`, in the memory of *out. TRUNCATED, BAD_MAGIC, BAD_VERSION, CORRUPT, LIMIT say what is wrong with them.
[[nodiscard]] Status decode_session(std::span<const std::byte> bytes, SessionState* out, Error* error);

// Whether an engine with this model can go on with the session: WRONG_MODEL names both models or both ids,
// TOKEN_OUT_OF_RANGE a token.
[[nodiscard]] Status check_session(const SessionState& state, uint64_t model_fingerprint,
                                   const char* numerics_id, int32_t vocabulary, Error* error);

}  // namespace treadle
