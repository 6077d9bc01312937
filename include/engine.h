/* engine.h: the C interface of Treadle, an LLM inference engine that a host program links in and steps from its own loop.
 *
 * The whole job in one picture:
 *
 *     engine_model_load_file ──► engine_create ──► engine_submit (any time, any thread) ──┐
 *                                                                                         ▼
 *          ┌── your loop ─────────────────────────────────────────────────────────────────────────────┐
 *          │  engine_step(engine, &step, &report);      computes for at most step.budget_us           │
 *          │  engine_poll_tokens(engine, events, ...);  hands over the text that is ready             │
 *          └──────────────────────────────────────────────────────────────────────────────────────────┘
 *
 * and in code, without declarations and checks (examples/minimal.c is the complete program):
 *
 *     engine_model_load_file("model.gguf", NULL, &model, &error);
 *     engine_create(model, NULL, &e, &error);
 *     engine_part_init(&part, sizeof part);
 *     part.kind = ENGINE_PART_CHAT_MESSAGE, part.role = "user", part.text = "Why is the sky blue?";
 *     engine_request_params_init(&request, sizeof request);
 *     request.parts = &part, request.part_count = 1;
 *     engine_submit(e, &request, &id, &error);
 *     for (int finished = 0; !finished;) {
 *         engine_step(e, NULL, NULL);
 *         engine_poll_tokens(e, events, sizeof events[0], 16, &count, bytes, sizeof bytes, &used, &needed);
 *         for (size_t i = 0; i < count; i++) {
 *             fwrite(bytes + events[i].text_offset, 1, events[i].text_bytes, stdout);
 *             finished |= events[i].kind == ENGINE_EVENT_FINISHED;
 *         }
 *     }
 *     engine_destroy(e), engine_model_free(model);
 *
 * The promise. The tokens of a request are a pure function of (model file, prompt, sampling parameters, seed, numerics_id), bit
 * for bit. They do not depend on the other requests, on whether a beginning came from the cache, on preemption, on how the host
 * cuts its steps, on the number of threads, or on which SIMD code the processor has. A cancel, a deadline or a full context only
 * chooses how long a prefix of them is delivered.
 *
 * Rules that hold everywhere:
 *   - Structs start with struct_size and get their defaults from engine_*_init(&s, sizeof s) before use; the library fills one
 *     up to its struct_size. A program built against an older header keeps working: fields that it does not know get their
 *     defaults. Structs in arrays (engine_part, engine_text, engine_event) are passed with the size of one instead.
 *   - Every function that can fail returns an engine_status; a failure leaves everything as it was, unless the status says
 *     otherwise. An optional engine_error receives a message that names the field and the value; it may be NULL.
 *   - Everything passed in is copied before the call returns. Strings are UTF-8.
 *   - Threads: engine_step and engine_destroy belong to one thread at a time (a second one in engine_step gets ENGINE_BUSY);
 *     every other function may be called from any thread at any time, also while a step runs. Engines are independent of each
 *     other. No lock is held while a callback of the host runs; callbacks must not call engine_step of the same engine.
 *   - The library has no global state, reads no environment variable, writes to no stream, installs no signal handler, never
 *     ends the process and lets no C++ exception out.
 *
 * Terms: a *request* is one submission; its *sequences* are growing lists of tokens, one unless more samples are asked for. A
 * *pass* is one run of the model over the rows of many sequences; a *step* is one call of the host, which may be a part of a
 * pass, or several. The *KV cache* is kept in *blocks* of 16 positions; sequences that begin alike share the blocks of that
 * beginning, and blocks that nobody uses any more stay findable until their room is needed (the *prefix cache*). To *preempt* a
 * sequence is to take its blocks for a more urgent or an older one: it computes again later, which shows as a pause only.
 */
/* The comments stand in columns: */
/* clang-format off */
#ifndef TREADLE_ENGINE_H
#define TREADLE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) && !defined(_WIN32)
#define ENGINE_API __attribute__((visibility("default")))
#else
#define ENGINE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- versions, statuses */

#define ENGINE_VERSION "0.1.0"
#define ENGINE_ABI_VERSION 0 /* changes only when an old binary can no longer be served */

ENGINE_API const char* engine_version(void);         /* of the library that runs; compare with ENGINE_VERSION */
ENGINE_API uint32_t engine_abi_version(void);        /* likewise; a mismatch means: do not go on */

/* What a call answers. In brackets, what it leaves: unchanged (the call did nothing), ended (the request ended, its neighbours
 * did not notice), unusable (only polling, releasing and engine_destroy still work). Numbers are never reused. */
typedef int32_t engine_status;
enum {
    ENGINE_OK = 0,
    ENGINE_INVALID_ARGUMENT = 1,          /* null, or out of range; the message names it                [unchanged] */
    ENGINE_STRUCT_SIZE = 2,               /* struct_size is 0 or unknown, or the unknown tail isn't zero [unchanged] */
    ENGINE_NOMEM = 3,                     /* the allocator returned null                                [unchanged] */
    ENGINE_BUSY = 4,                      /* another thread, or an outer call, is in engine_step        [unchanged] */
    ENGINE_BUFFER_TOO_SMALL = 5,          /* the size that is needed was returned                       [unchanged] */
    ENGINE_STALE_ID = 6,                  /* the request id was never made or is released               [unchanged] */
    ENGINE_NOT_FOUND = 7,                 /* the file, or the folder to write it to, does not exist     [unchanged] */
    ENGINE_IO = 8,                        /* a directory, no permission, or a read or write failed      [unchanged] */
    ENGINE_TRUNCATED = 9,                 /* the file is empty, or ends before what it announces        [unchanged] */
    ENGINE_BAD_MAGIC = 10,                /* not a GGUF file; or where one is wanted, not a session     [unchanged] */
    ENGINE_BAD_VERSION = 11,              /* not GGUF version 2 or 3, or a session of a later library   [unchanged] */
    ENGINE_CORRUPT = 12,                  /* the file contradicts itself or its format                  [unchanged] */
    ENGINE_LIMIT = 13,                    /* a count, length or size is beyond the library's limits     [unchanged] */
    ENGINE_UNSUPPORTED_ARCHITECTURE = 14, /* [unchanged] */
    ENGINE_UNSUPPORTED_TYPE = 15,         /* a tensor's type                                            [unchanged] */
    ENGINE_UNSUPPORTED_TOKENIZER = 16,    /* [unchanged] */
    ENGINE_UNSUPPORTED_TEMPLATE = 17,     /* chat messages for a model whose template is missing or unknown [unchanged] */
    ENGINE_STOPPED = 18,                  /* a progress or write callback asked to stop                 [unchanged] */
    ENGINE_INVALID_UTF8 = 19,             /* the message has the byte offset                            [unchanged] */
    ENGINE_TOKEN_OUT_OF_RANGE = 20,       /* [unchanged] */
    ENGINE_PROMPT_TOO_LONG = 21,          /* the prompt leaves no room for a token in the context       [unchanged] */
    ENGINE_POOL_TOO_SMALL = 22,           /* the prompt can never fit the engine's KV blocks            [unchanged] */
    ENGINE_FULL = 23,                     /* max_requests live already: poll and release first          [unchanged] */
    ENGINE_NOT_A_NUMBER = 24,             /* a request's logits are NaN or infinite; in its final event [ended] */
    ENGINE_UNUSABLE = 25,                 /* an earlier failure of a step ended the engine              [unusable] */
    ENGINE_INTERNAL = 26,                 /* a fault of the library: please report it                   [unusable] */
    ENGINE_WRONG_MODEL = 27               /* a session of another model or numerics_id; the message names both [unchanged] */
};

/* The name of a status, such as "ENGINE_NOMEM", and a sentence about it. Never NULL; static lifetime. */
ENGINE_API const char* engine_status_name(engine_status status);
ENGINE_API const char* engine_status_string(engine_status status);

/* Receives the words behind a failure. Owned by the caller; a successful call does not touch it. */
typedef struct engine_error {
    uint32_t struct_size;
    engine_status status;
    char message[512]; /* zero-terminated UTF-8 */
} engine_error;
ENGINE_API engine_status engine_error_init(engine_error* error, size_t size);

/* ----------------------------------------------------------------------------------------------------------------- hooks */

/* What memory is for; passed to the allocator hook. */
enum { ENGINE_MEMORY_WEIGHTS = 0, ENGINE_MEMORY_KV = 1, ENGINE_MEMORY_SCRATCH = 2, ENGINE_MEMORY_OTHER = 3 };

/* `size` bytes at `alignment` (a power of two), or NULL. Called from any thread, also several at once. */
typedef void* (*engine_alloc_fn)(void* user, size_t size, size_t alignment, int32_t kind);
typedef void (*engine_free_fn)(void* user, void* pointer, size_t size, size_t alignment, int32_t kind);

enum { ENGINE_LOG_DEBUG = 0, ENGINE_LOG_INFO = 1, ENGINE_LOG_WARNING = 2, ENGINE_LOG_ERROR = 3 };
typedef void (*engine_log_fn)(void* user, int32_t level, const char* message);

/* Runs body(context, index) for each index in 0 .. count - 1: in any order, on any threads, or one after another on the
 * caller, and returns when all have returned. Bodies never wait for each other. */
typedef void (*engine_parallel_for_fn)(void* user, void (*body)(void* context, int32_t index), void* context, int32_t count);

/* Nanoseconds of a monotonic clock. Called by engine_step (with parallel_for by the threads that run bodies), and by
 * engine_submit and engine_fork on any thread. Asked after each piece of work: it should be as cheap as reading a counter. */
typedef int64_t (*engine_clock_fn)(void* user);

/* Called at most once between the starts of two steps when work appears (a submission, cancel, release, or poll that makes room),
 * by the thread that brought it, also during a step: perhaps once too often, never too seldom. Wake your event loop with it (set
 * a flag, write to an eventfd), clear that before engine_step, not after, and return soon. */
typedef void (*engine_wake_fn)(void* user);

/* How far a load is, in bytes of the file. Returns 0 to stop it (ENGINE_STOPPED), anything else to go on. Called by the loading
 * thread. */
typedef int32_t (*engine_progress_fn)(void* user, uint64_t done_bytes, uint64_t total_bytes);

/* Reads `size` bytes at `offset` into `destination`: 0 for success, anything else for failure. Called by the loading thread. */
typedef int32_t (*engine_read_fn)(void* user, uint64_t offset, void* destination, size_t size);

/* Receives the next `size` bytes: 0 for success, anything else stops the call (ENGINE_STOPPED). Called by the calling thread. */
typedef int32_t (*engine_write_fn)(void* user, const void* bytes, size_t size);

/* ---------------------------------------------------------------------------------------------------------------- models */

typedef struct engine_model engine_model; /* weights and vocabulary; immutable, shared by any number of engines */

/* Which code runs. The results are the same bytes; meant for tests and for measuring. Automatic is the first of AVX512,
 * AVX2_VNNI, AVX2, SSE41 and SCALAR that the processor has. */
enum {
    ENGINE_CPU_AUTOMATIC = 0,
    ENGINE_CPU_SCALAR = 1,
    ENGINE_CPU_AVX2 = 2,     /* with FMA and F16C */
    ENGINE_CPU_AVX512 = 3,   /* F, BW, DQ and VL, with VNNI */
    ENGINE_CPU_SSE41 = 4,    /* with SSSE3 */
    ENGINE_CPU_AVX2_VNNI = 5 /* AVX2 with AVX-VNNI */
};

/* Settings of a model and of all engines made from it. */
typedef struct engine_model_params {
    uint32_t struct_size;
    int32_t cpu_code;   /* ENGINE_CPU_…; one that this processor lacks is ENGINE_INVALID_ARGUMENT. Default: automatic */
    int32_t threads;    /* of the load and of each engine's steps, the caller's among them; 0: cores - 1. Default: 0 */
    engine_parallel_for_fn parallel_for; /* NULL: a load has threads of its own until it returns, each engine its own pool of
                                            threads, parked between steps, and a model one that works for a moment after its
                                            first engine was made: it moves the weights to large pages, which read faster */
    void* parallel_for_user;
    engine_alloc_fn alloc; /* alloc and free: both or neither; NULL: a built-in allocator (mimalloc), apart from malloc */
    engine_free_fn free;
    void* alloc_user;
    engine_log_fn log; /* NULL: silence */
    void* log_user;
    engine_progress_fn progress; /* NULL: not asked */
    void* progress_user;
} engine_model_params;
ENGINE_API engine_status engine_model_params_init(engine_model_params* params, size_t size);

/* Loads a GGUF file (version 2 or 3; of a split model, the first file). `params` may be NULL for the defaults. *model goes back
 * with engine_model_free. The file is read once, in pieces on all threads, and closed; nothing is mapped or
 * written. The model, or the error of a file that can't be loaded, is the same for any number of threads.
 * Errors: NOT_FOUND, IO, TRUNCATED, BAD_MAGIC, BAD_VERSION, CORRUPT, LIMIT, UNSUPPORTED_*, STOPPED, NOMEM, those of params. */
ENGINE_API engine_status engine_model_load_file(const char* path, const engine_model_params* params, engine_model** model,
                                                engine_error* error);

/* The same from memory (not needed after the call), or through a read callback; split models load by path only. */
ENGINE_API engine_status engine_model_load_memory(const void* bytes, uint64_t size, const engine_model_params* params,
                                                  engine_model** model, engine_error* error);
ENGINE_API engine_status engine_model_load_callback(engine_read_fn read, void* user, uint64_t size,
                                                    const engine_model_params* params, engine_model** model,
                                                    engine_error* error);

/* Drops the caller's reference; engines keep the model alive. NULL is fine. */
ENGINE_API void engine_model_free(engine_model* model);

typedef struct engine_model_info {
    uint32_t struct_size;
    int32_t vocabulary;      /* tokens */
    int32_t context_length;  /* tokens the model was trained for: the most that a sequence can have */
    int32_t layers;
    int32_t hidden;          /* width of the residual stream */
    int32_t heads, kv_heads, head_dim;
    int32_t bos_token;       /* -1: none; likewise below */
    int32_t eos_token;
    int32_t has_chat_template; /* 1: ENGINE_PART_CHAT_MESSAGE works, 0: it is ENGINE_UNSUPPORTED_TEMPLATE */
    int32_t token_bytes_max;   /* length of the longest token's text */
    uint64_t parameters;       /* weights, counted one by one */
    uint64_t fingerprint;      /* hash of the whole file's metadata and tensors */
    uint64_t tensor_bytes;     /* of the tensors in the file */
    uint64_t weight_bytes;     /* of the weights in memory */
    uint64_t tokenizer_bytes;  /* of the vocabulary in memory */
    uint64_t load_bytes_peak;  /* most memory in use while it was loaded, the tokenizer's apart */
    char architecture[32];
    char name[128];        /* as the file calls itself; may be empty */
    char numerics_id[32];  /* backend and version of the numerics contract: same id, same model, same tokens */
    char cpu_code[16];     /* which code runs: "scalar", "sse41", "avx2", "avx2_vnni", "avx512" */
} engine_model_info;
ENGINE_API engine_status engine_model_info_init(engine_model_info* info, size_t size);
ENGINE_API engine_status engine_model_get_info(const engine_model* model, engine_model_info* info);

/* --------------------------------------------------------------------------------------------------------- text and tokens */

enum {
    ENGINE_PART_TEXT = 0,          /* plain text: never becomes special tokens, whatever it contains. The kind for user input */
    ENGINE_PART_TEXT_SPECIALS = 1, /* text in which special tokens such as <|im_start|> are recognised */
    ENGINE_PART_TOKENS = 2,        /* token ids, taken as they are: what engine_sequence_tokens returned, for example */
    ENGINE_PART_CHAT_MESSAGE = 3   /* role and text, put into the model's own chat template */
};

#define ENGINE_ZERO_TERMINATED ((size_t)-1) /* as a length: the string ends at its first zero byte */

/* One part of a prompt. Adjacent text parts are tokenized as one string. Chat messages must be adjacent; they render together,
 * followed by the opening of an answer unless the last one is the assistant's. After a tokens part they render as the
 * continuation of that conversation. A prompt that doesn't start with a tokens part begins with the BOS token, where the model
 * wants one; start with an empty tokens part to leave it out. */
typedef struct engine_part {
    int32_t kind;         /* ENGINE_PART_… */
    int32_t token_count;
    const int32_t* tokens; /* (token_count) */
    const char* text;      /* UTF-8; text of a message or text part */
    size_t text_bytes;     /* default: ENGINE_ZERO_TERMINATED */
    const char* role;      /* zero-terminated: "system", "user", "assistant" */
} engine_part;
ENGINE_API engine_status engine_part_init(engine_part* part, size_t size);

/* Parts to tokens, exactly as engine_submit does it. part_size is sizeof(engine_part). Writes at most `capacity` ids; *count is
 * the number of ids there are, also with BUFFER_TOO_SMALL (then nothing is written). tokens may be NULL if capacity is 0.
 * Errors: INVALID_UTF8, TOKEN_OUT_OF_RANGE, UNSUPPORTED_TEMPLATE, LIMIT, NOMEM, BUFFER_TOO_SMALL. */
ENGINE_API engine_status engine_tokenize(const engine_model* model, const engine_part* parts, size_t part_size,
                                         size_t part_count, int32_t* tokens, size_t capacity, size_t* count,
                                         engine_error* error);

/* Tokens to bytes, exactly what was tokenized. Special tokens give their text if `specials` is not 0, else nothing. As a token
 * may be part of a character, the bytes need not be valid UTF-8 (events are). *count as above, in bytes. No zero byte follows. */
ENGINE_API engine_status engine_detokenize(const engine_model* model, const int32_t* tokens, size_t token_count,
                                           int32_t specials, char* bytes, size_t capacity, size_t* count, engine_error* error);

/* Renders chat messages with the model's template into parts: the template's own text as TEXT_SPECIALS, what the caller wrote
 * as TEXT. `continuation` not 0: as after an earlier turn that ended with its end-of-turn token. Text of the parts lies in
 * `bytes`; *part_count and *byte_count are what is needed, also with BUFFER_TOO_SMALL (then nothing is written). */
ENGINE_API engine_status engine_apply_chat_template(const engine_model* model, const engine_part* messages, size_t part_size,
                                                    size_t message_count, int32_t continuation, engine_part* parts,
                                                    size_t part_capacity, size_t* part_count, char* bytes, size_t byte_capacity,
                                                    size_t* byte_count, engine_error* error);

/* --------------------------------------------------------------------------------------------------------------- engines */

typedef struct engine engine; /* a KV cache, a scheduler and their threads, over one model */

/* What happens when the blocks of the KV cache run out. */
enum {
    ENGINE_MEMORY_PREEMPT = 0, /* as many sequences run as there is room for now; later ones may be preempted */
    ENGINE_MEMORY_RESERVE = 1  /* a sequence starts only when its whole length is sure to fit, and is never preempted: fewer run
                                  at once */
};

/* How keys or values are kept in the cache. Less memory is also less to read: with long contexts tokens come faster. What it
 * costs in quality is measured in README; keys lose more by few bits than values do. Tokens are as reproducible with one as with
 * another, but not the same ones: the types belong to engine_info.numerics_id. */
enum {
    ENGINE_KV_F16 = 0,  /* 2 bytes a value */
    ENGINE_KV_Q8_0 = 1, /* 34 bytes per 32 values: int8 with a scale. For a head_dim that is a multiple of 32 */
    ENGINE_KV_TBQ4 = 2, /* 66 bytes per 128 values, 34 per 64 where head_dim is 64: rotated and in 4 bits (after TurboQuant,
                           https://arxiv.org/abs/2504.19874). For a head_dim of 64, 128 or 256 */
    ENGINE_KV_TBQ4X = 3 /* for keys: tbq4, with the eighth of the rotary pairs that carries most energy in int8; 84 bytes per 128
                           values, 44 per 64. Which ones is found by a pass over 64 tokens when the engine is created */
};

typedef struct engine_params {
    uint32_t struct_size;
    int32_t max_sequences;    /* sequences in one pass. 1 .. 4096. Default: 16 */
    int32_t max_batch_tokens; /* tokens in one pass: bounds the longest piece of a prompt. 1 .. 65536. Default: 512 */
    int32_t max_requests;     /* requests that live at once, waiting ones among them. 1 .. 1048576. Default: 1024 */
    int32_t context_length;   /* most tokens of a sequence; 0: the model's. Larger than that is INVALID_ARGUMENT. Default: 0 */
    int32_t kv_blocks;        /* blocks of 16 positions in the KV cache; 0: room for one whole context, at least 4096 positions.
                                 engine_get_info tells the bytes of one. Default: 0 */
    engine_clock_fn clock;    /* NULL: the system's monotonic clock */
    void* clock_user;
    engine_wake_fn wake; /* NULL: nobody is woken */
    void* wake_user;
    int32_t memory_policy;       /* ENGINE_MEMORY_PREEMPT or _RESERVE. Default: preempt */
    int32_t watermark_blocks;    /* blocks that a sequence which starts leaves to those that run, so that they can grow; -1: a
                                    twentieth of all, at most max_sequences. Default: -1 */
    int32_t prefix_cache;        /* 0: no request finds blocks of another. Default: 1 */
    int32_t prefix_cache_blocks; /* blocks kept while nobody uses them; -1: all that are free. Default: -1 */
    int64_t itl_target_us;       /* the longest time between two tokens of a sequence that users should notice, wall time, with
                                    the host's own between steps; 0: none, prompts as fast as they can be computed. With a target,
                                    prompts are cut into pieces that fit beside the tokens of others, by an estimate from earlier
                                    passes, and fewer sequences run at once where many take too long. Well below 2.5 times what a
                                    token takes anyway it starves prompts: those that have begun go on in each eighth pass even
                                    so. 0 .. 3600000000. Default: 0 */
    int32_t trace_events;        /* how many of the newest are kept for engine_trace_write: 72 bytes each, about one per sequence
                                    and pass. 0: no trace. 0 .. 16777216. Default: 0 */
    int32_t key_type;            /* ENGINE_KV_…; one that doesn't fit the model's head_dim is INVALID_ARGUMENT. Default: f16 */
    int32_t value_type;          /* likewise, but not TBQ4X. Default: f16 */
    engine_progress_fn progress; /* asked while the first engine of a model with TBQ4X keys is made, in tokens (64 in all); 0
                                    stops it (STOPPED). NULL: not asked */
    void* progress_user;
} engine_params;
ENGINE_API engine_status engine_params_init(engine_params* params, size_t size);

/* Makes an engine with all its memory and threads; params may be NULL. Errors: INVALID_ARGUMENT, LIMIT, STOPPED, NOMEM. */
ENGINE_API engine_status engine_create(engine_model* model, const engine_params* params, engine** out, engine_error* error);

/* Ends everything, live requests too. NULL is fine. No other call on this engine may run or follow. */
ENGINE_API void engine_destroy(engine* e);

typedef struct engine_info {
    uint32_t struct_size;
    int32_t threads;         /* that a step can use; with parallel_for: bodies in one call */
    int32_t max_sequences, max_batch_tokens, max_requests;
    int32_t context_length;  /* most tokens of a sequence */
    int32_t kv_blocks;
    int32_t kv_block_tokens; /* 16 */
    uint64_t kv_block_bytes; /* keys and values of 16 positions in all layers */
    uint64_t kv_bytes;       /* memory by kind, as it is now */
    uint64_t scratch_bytes;
    uint64_t other_bytes;
    char numerics_id[32];    /* the model's, and the types of keys and values where they aren't f16: "cpu-1:q8_0/tbq4" */
    int32_t key_type;        /* ENGINE_KV_… */
    int32_t value_type;
} engine_info;
ENGINE_API engine_status engine_info_init(engine_info* info, size_t size);
ENGINE_API engine_status engine_get_info(engine* e, engine_info* info);

/* -------------------------------------------------------------------------------------------------------------- requests */

typedef uint64_t engine_request; /* 0 is no request; ids are not reused */

/* Who goes first. More urgent requests are computed first and preempt less urgent ones; of equals the older goes first. */
enum {
    ENGINE_PRIORITY_INTERACTIVE = 0,
    ENGINE_PRIORITY_NORMAL = 1,
    ENGINE_PRIORITY_BULK = 2,  /* takes what others leave: passes without them, rows that lengthen theirs by a tenth at most */
    ENGINE_PRIORITY_PAUSED = 3 /* keeps its tokens and computes nothing */
};

typedef struct engine_text { /* in arrays, like engine_part */
    const char* text;
    size_t bytes; /* or ENGINE_ZERO_TERMINATED */
} engine_text;

typedef struct engine_request_params {
    uint32_t struct_size;
    int32_t max_tokens;       /* tokens to generate at most; -1: as many as fit. 0 is INVALID_ARGUMENT. Default: 256 */
    const engine_part* parts; /* the prompt; at least one token in all */
    size_t part_size;         /* sizeof(engine_part); the default of the init function */
    size_t part_count;
    float temperature;        /* 0: always the likeliest token. 0 .. 1e6. Default: 0 */
    int32_t top_k;            /* only the k likeliest; 0: off. Default: 0 */
    float top_p;              /* only the likeliest that together have this probability; 1: off. (0, 1]. Default: 1 */
    float min_p;              /* only those with this fraction of the likeliest's probability; 0: off. [0, 1). Default: 0 */
    uint64_t seed;            /* of the draws. Default: 0. Same seed, same tokens */
    uint64_t first_sample;    /* index of the request's first sample: 1, 2, … are other draws with the same seed. Default: 0 */
    int32_t logprobs;         /* log-probabilities: 0: none; n: of the token and of the n likeliest. 0 .. 20. Default: 0 */
    const engine_text* stop_strings; /* text that ends the answer and is not delivered. At most 64, of 1 .. 4096 bytes */
    size_t stop_string_size;         /* sizeof(engine_text); the default of the init function */
    size_t stop_string_count;
    const int32_t* stop_tokens; /* tokens that end the answer, besides the model's own end tokens. At most 256 */
    size_t stop_token_count;
    int32_t ignore_end;       /* 1: the model's own end tokens don't end the answer. Default: 0 */
    int32_t keep;             /* 1: lives on after its final event, until engine_release. Default: 0 */
    uint64_t user_data;       /* returned in each event */
    int32_t samples;          /* answers to the prompt, which is computed and stored once: sequence i has the draws of sample
                                 first_sample + i. 1 .. 128. Default: 1 */
    int32_t priority;         /* ENGINE_PRIORITY_… Default: normal */
    int64_t deadline_us;      /* ends with ENGINE_FINISH_DEADLINE so long after its submission; 0: never. Default: 0 */
    uint64_t cache_salt;      /* only equal salts share blocks: else the time of an answer tells what others asked. Default: 0 */
    int32_t prefix_cache;     /* 0: it shares blocks with its own samples and forks only, and leaves none behind. Default: 1 */
    int32_t generated_tail;   /* so many last tokens of the prompt count as generated: an answer that goes on. Default: 0 */
    int32_t beam_width;       /* hypotheses of a beam search, see below; 1: off. 1 .. 32, at most max_sequences. Default: 1 */
    float length_penalty;     /* of a beam search: above 0 it favours long answers, below 0 short ones. -4 .. 4. Default: 1 */
} engine_request_params;
ENGINE_API engine_status engine_request_params_init(engine_request_params* params, size_t size);

/* Takes a request in. It is tokenized here, joins the next pass that has room, and will finish, however short memory gets: all
 * that it needs is allocated now, except blocks of the KV cache, which it may have to wait for. A sequence has at most
 * min(prompt + max_tokens, context_length, 16 * (kv_blocks - P)) tokens and ends with ENGINE_FINISH_LENGTH when it gets there;
 * P are the blocks of pins (engine_pin) but for whole ones that the prompt begins with. A character that the prompt's last
 * tokens begin is delivered whole when the answer completes it. Wakes the host (engine_wake_fn).
 * Errors: INVALID_ARGUMENT with the field, INVALID_UTF8, TOKEN_OUT_OF_RANGE, UNSUPPORTED_TEMPLATE, PROMPT_TOO_LONG,
 * POOL_TOO_SMALL, FULL, LIMIT, NOMEM, UNUSABLE: nothing was taken in. */
ENGINE_API engine_status engine_submit(engine* e, const engine_request_params* params, engine_request* id, engine_error* error);

/* Beam search: with a beam_width above 1, a request looks for likely answers instead of choosing one token after another. Of all
 * ways to continue its hypotheses by a token it keeps the `beam_width` with the best scores:
 *
 *     score = sum of the log-probabilities of the tokens / (number of these tokens) ^ length_penalty
 *
 * (Wu et al. 2016, arXiv 1609.08144, section 7, without an offset). Equal scores go by the rank of the parent, then by the lower
 * token id. A hypothesis that ends, by an end or stop token or a stop string, is kept aside. The search is over when beam_width
 * have ended or none that goes on can be among the best any more, and at max_tokens (-1: as many as fit the pool). Then the best
 * `samples` of them (1 .. beam_width) are told, the best as sequence 0: TOKEN events with `logprob`, and FINISHED with `score`.
 * Until then its sequences are just the prompt. A search that is cancelled, fails or meets its deadline tells no tokens. Where a
 * tiny vocabulary gives fewer hypotheses than samples, the last sequences have no tokens; those without any score -infinity.
 * Hypotheses share the blocks of what they have in common, and are admitted and preempted together.
 *
 * temperature, top_k, top_p, min_p and logprobs must be at their defaults (INVALID_ARGUMENT); seed and first_sample mean nothing.
 * POOL_TOO_SMALL tells that kv_blocks is less than the worst case: the whole blocks of the prompt, and beam_width times (the
 * blocks of a whole answer + 1). A fork of a hypothesis is a plain request unless its own parameters say otherwise. In the stats
 * its tokens count when they are told, and it has no part in the times to the first token and between tokens. */

/* A new request that goes on from the first `position` tokens of a sequence (1 .. its length), live or over: for another way to
 * continue, with its own draws and, if wanted, other parameters. Nothing is computed twice as long as the blocks are in the
 * cache. Tokens that the parent generated count as generated by the fork too: it tells only the text after them, and no stop
 * string among them ends it. `params`: NULL takes those of the parent (not its samples and deadline), with its limit of tokens;
 * otherwise they are read as engine_submit does, but for parts (must be none), first_sample, generated_tail, cache_salt and
 * prefix_cache, which follow from the parent; max_tokens counts from the fork on. The draws of a fork depend on the parent's, the
 * position and how many forks the parent had before. A fork of a pin has its tokens as a prompt, and with NULL the default
 * parameters but for the pin's priority. Errors: those of engine_submit; STALE_ID; INVALID_ARGUMENT for sequence and position. */
ENGINE_API engine_status engine_fork(engine* e, engine_request parent, int32_t sequence, int32_t position,
                                     const engine_request_params* params, engine_request* id, engine_error* error);

/* From the next pass on; PAUSED lets its blocks go, others go on. Harmless after its end. Errors: STALE_ID, INVALID_ARGUMENT. */
ENGINE_API engine_status engine_set_priority(engine* e, engine_request id, int32_t priority);

/* Ends a request: its final event (CANCELLED) is there when the next step returns. Harmless after its end. Errors: STALE_ID. */
ENGINE_API engine_status engine_cancel(engine* e, engine_request id);

/* Gives a request up in whatever state it is: no more events, the id is stale. Polling the final event does it unless `keep`. Its
 * place among max_requests is free at once if it had ended, else after its pass, when a step took notice. Errors: STALE_ID. */
ENGINE_API engine_status engine_release(engine* e, engine_request id);

typedef struct engine_pin_params {
    uint32_t struct_size;
    int32_t priority;         /* ENGINE_PRIORITY_…, with which it is computed. Default: normal */
    const engine_part* parts; /* the prefix, as of a prompt; at least one token in all */
    size_t part_size;         /* sizeof(engine_part); the default of the init function */
    size_t part_count;
    uint64_t cache_salt;      /* only requests with the same salt find it. Default: 0 */
} engine_pin_params;
ENGINE_API engine_status engine_pin_params_init(engine_pin_params* params, size_t size);

/* Computes the beginning of prompts, such as the system prompt of a game, and keeps its blocks in the KV cache until
 * engine_unpin: every later prompt that begins with the same tokens starts after them. Parts become tokens as in engine_submit,
 * but chat messages are not followed by the opening of an answer. With prefix_cache = 0 only forks of the pin find its blocks.
 * *id is a request without answer and events: it is computed in steps like a prompt, and is ENGINE_REQUEST_PINNED then, which
 * nothing but engine_unpin ends. It takes a place among max_requests, and among max_sequences while it is computed. It can be
 * forked. Pinned blocks are missing to everybody else, from this call on: requests get at most as long as they leave room for,
 * and a pin is refused where a live request could then not finish. Blocks that pins have in common count once, and whole blocks
 * that a request begins with are no loss to it. Errors: those of engine_submit; POOL_TOO_SMALL with the numbers. */
ENGINE_API engine_status engine_pin(engine* e, const engine_pin_params* params, engine_request* id, engine_error* error);

/* Lets a pin go, whole or not, as engine_release and engine_cancel do. Errors: STALE_ID; INVALID_ARGUMENT: it is not a pin's. */
ENGINE_API engine_status engine_unpin(engine* e, engine_request id);

/* Gives memory of the KV cache back to the allocator (the built-in one: to the operating system); *bytes (may be NULL) is how
 * much. It goes in 32 to 64 slabs of blocks: those of which nobody holds a block, as far as the rest suffices for the pins and
 * for all live requests at their greatest lengths; what is cached in them without being pinned is forgotten. Whatever submits
 * takes slabs again as it needs them, and for what is cached, which then need not make room; it is ENGINE_NOMEM if memory for
 * live requests is gone. Scratch memory stays. Errors: INVALID_ARGUMENT. */
ENGINE_API engine_status engine_trim(engine* e, uint64_t* bytes);

enum {
    ENGINE_REQUEST_WAITING = 0,      /* for room in the batch or the KV cache */
    ENGINE_REQUEST_PROMPT = 1,       /* its prompt is being computed */
    ENGINE_REQUEST_GENERATING = 2,
    ENGINE_REQUEST_WAITING_POLL = 3, /* its events fill their room: it goes on after a poll */
    ENGINE_REQUEST_FINISHED = 4,
    ENGINE_REQUEST_PAUSED = 5,
    ENGINE_REQUEST_PINNED = 6        /* a pin that is computed */
};

typedef struct engine_request_info {
    uint32_t struct_size;
    int32_t state;                /* ENGINE_REQUEST_…; of several sequences, of the first that has not ended */
    int32_t prompt_tokens;
    int32_t prompt_tokens_done;
    int32_t generated_tokens;     /* of all its sequences */
    int32_t queue_place;          /* sequences before it while it is WAITING, else -1; the call counts them one by one */
    int32_t finish_reason;        /* when FINISHED: ENGINE_FINISH_… */
    engine_status status;         /* when FINISHED */
    char message[512];            /* why it failed; empty otherwise */
    int32_t sequences;
    int32_t cached_tokens;        /* of the prompt, found in the cache when it started */
} engine_request_info;
ENGINE_API engine_status engine_request_info_init(engine_request_info* info, size_t size);
ENGINE_API engine_status engine_request_get_info(engine* e, engine_request id, engine_request_info* info);

/* All tokens of a sequence (0 .. samples - 1), prompt first, stop token last, until the request is released: a next turn is
 * submitted as [these tokens, new parts]. Counts as in engine_tokenize. */
ENGINE_API engine_status engine_sequence_tokens(engine* e, engine_request id, int32_t sequence, int32_t* tokens,
                                                size_t capacity, size_t* count);

/* -------------------------------------------------------------------------------------------------------------- sessions */

/* A session is a sequence put into bytes: its tokens and all that chooses the next ones, a few KB with a checksum. Restored, in
 * this engine, another one or another process, it goes on as if nothing had happened: keys and values are computed again as far
 * as the prefix cache lacks them, and what is polled before and after are together, byte for byte, what an undisturbed request
 * delivers. Saving leaves the request alone, and works until its release, also after its end and when the engine is unusable. */

/* Puts the first `position` tokens of a sequence (1 .. its length) into the caller's buffer, as the beginning of an answer that
 * goes on; or with -1 all of it as it is, its end included. *size is the number of bytes, also with BUFFER_TOO_SMALL (then
 * nothing is written); buffer may be NULL if capacity is 0. A sequence that lives may have grown since it was asked for its size.
 * One that ended with ENGINE_FINISH_ERROR is saved as one that goes on. A beam search is saved when it is over, each of the best
 * for itself; a pin has nothing to save. Errors: STALE_ID, INVALID_ARGUMENT, BUFFER_TOO_SMALL, NOMEM. */
ENGINE_API engine_status engine_session_save(engine* e, engine_request id, int32_t sequence, int32_t position, void* buffer,
                                             size_t capacity, size_t* size, engine_error* error);

/* The same through a callback, which gets all bytes in order in one or more calls (STOPPED if one fails), and into a file, which
 * is replaced in one act: it holds the old session or the new one, whole; with OK the new one is on the disk. A new file is its
 * owner's to read only, an old one keeps its mode; a symbolic link is replaced, not followed. Errors besides: IO, NOT_FOUND. */
ENGINE_API engine_status engine_session_save_callback(engine* e, engine_request id, int32_t sequence, int32_t position,
                                                      engine_write_fn write, void* user, engine_error* error);
ENGINE_API engine_status engine_session_save_file(engine* e, engine_request id, int32_t sequence, int32_t position,
                                                  const char* path, engine_error* error);

/* What is not in a session, since it is the host's to say: fields as in engine_request_params. */
typedef struct engine_session_params {
    uint32_t struct_size;
    int32_t keep;          /* Default: 0 */
    int32_t priority;      /* ENGINE_PRIORITY_… Default: normal */
    int32_t prefix_cache;  /* Default: 1 */
    int32_t logprobs;      /* 0 .. 20; -1: as saved. Default: -1 */
    uint64_t user_data;    /* Default: 0 */
    int64_t deadline_us;   /* from now. Default: 0 */
    uint64_t cache_salt;   /* Default: 0 */
} engine_session_params;
ENGINE_API engine_status engine_session_params_init(engine_session_params* params, size_t size);

/* Submits a session, as a new request with one sequence, 0. Text that was generated but not yet polled when it was saved comes
 * first, in ENGINE_EVENT_TEXT events; the tokens behind it are not told again (engine_sequence_tokens has them). max_tokens and
 * generated_tokens count them. A session of a sequence that had ended gives a request that has ended, with the same reason: its
 * final event waits to be polled, and with `keep` its tokens can be read and forked, for a next turn. `params`: NULL for the
 * defaults. Errors: WRONG_MODEL; TRUNCATED, BAD_MAGIC, BAD_VERSION, CORRUPT, LIMIT, INVALID_UTF8, TOKEN_OUT_OF_RANGE for bytes
 * that are no whole, undamaged session; those of engine_submit: nothing was taken in. */
ENGINE_API engine_status engine_session_restore(engine* e, const void* bytes, size_t size, const engine_session_params* params,
                                                engine_request* id, engine_error* error);

/* The same through a read callback over `size` bytes, and from a file. Errors besides: IO, NOT_FOUND. */
ENGINE_API engine_status engine_session_restore_callback(engine* e, engine_read_fn read, void* user, uint64_t size,
                                                         const engine_session_params* params, engine_request* id,
                                                         engine_error* error);
ENGINE_API engine_status engine_session_restore_file(engine* e, const char* path, const engine_session_params* params,
                                                     engine_request* id, engine_error* error);

/* ------------------------------------------------------------------------------------------------------ stepping, polling */

typedef struct engine_step_params {
    uint32_t struct_size;
    int32_t max_threads; /* at most this many threads in this step; 0: all. Default: 0 */
    int64_t budget_us;   /* 0: one whole pass. Otherwise passes until so many microseconds are over (one is cut after any tile,
                            and goes on in the next step) or there is no more work; at least one tile is computed, or awaited
                            from workers until the budget is over. Default: 0 */
} engine_step_params;
ENGINE_API engine_status engine_step_params_init(engine_step_params* params, size_t size);

typedef struct engine_step_report {
    uint32_t struct_size;
    int32_t passes;           /* that ended in this step */
    int32_t tokens_computed;  /* rows of those passes */
    int32_t tokens_produced;
    int32_t running;          /* sequences that are in passes now */
    int32_t waiting;          /* for room */
    int32_t waiting_poll;     /* for a poll */
    int32_t free_blocks;      /* of the KV cache, not in use; what they hold may still be found */
    int64_t time_us;          /* of this step */
    int64_t worst_tile_us;    /* longest piece between two looks at the clock */
    int64_t next_step_us;     /* 0: there is work now; -1: none until something is submitted or polled; otherwise none for so
                                 long, when a deadline is over */
    int32_t paused;           /* sequences */
    int32_t preemptions;      /* in this step */
} engine_step_report;
ENGINE_API engine_status engine_step_report_init(engine_step_report* report, size_t size);

/* Does the next piece of work. params and report may be NULL. Never waits for work, calls no callback but parallel_for and
 * clock, allocates nothing. Its status is about the engine: a request's failure is an event. After INTERNAL every live request
 * has its final event (ENGINE_FINISH_ERROR).
 * Errors: UNUSABLE, INTERNAL; BUSY, STRUCT_SIZE and INVALID_ARGUMENT, which leave the report as it was. */
ENGINE_API engine_status engine_step(engine* e, const engine_step_params* params, engine_step_report* report);

enum {
    ENGINE_EVENT_TOKEN = 0,    /* one token, and the text that it completed (perhaps none yet) */
    ENGINE_EVENT_TEXT = 1,     /* text without a new token: what had been held back when the request ended */
    ENGINE_EVENT_FINISHED = 2, /* the last event of a sequence; `last` tells whether of its request too */
    ENGINE_EVENT_PROGRESS = 3  /* of a prompt that takes more than one pass: position of prompt_tokens are done */
};
enum {
    ENGINE_FINISH_NONE = 0,
    ENGINE_FINISH_END = 1,         /* the model ended its answer, or a stop token did */
    ENGINE_FINISH_STOP_STRING = 2,
    ENGINE_FINISH_LENGTH = 3,      /* max_tokens, or the context or the cache is full */
    ENGINE_FINISH_CANCELLED = 4,
    ENGINE_FINISH_ERROR = 5,       /* status and engine_request_info tell */
    ENGINE_FINISH_DEADLINE = 6     /* deadline_us is over */
};

typedef struct engine_event {
    int32_t kind;              /* ENGINE_EVENT_… */
    int32_t sequence;          /* 0 .. samples - 1 */
    engine_request request;
    uint64_t user_data;
    int32_t position;          /* TOKEN: in its sequence; PROGRESS: prompt tokens done; else tokens in the sequence */
    int32_t token;             /* TOKEN: its id, else -1 */
    engine_status status;      /* FINISHED: OK unless finish_reason is ERROR */
    int32_t finish_reason;     /* FINISHED: ENGINE_FINISH_… */
    size_t text_offset;        /* into the caller's byte buffer, a multiple of 8 */
    size_t text_bytes;         /* whole UTF-8 characters; not zero-terminated */
    size_t logprobs_offset;    /* into the byte buffer: engine_logprob[logprob_count], likeliest first */
    int32_t logprob_count;
    float logprob;             /* of the token, natural logarithm, from raw logits; 0 unless asked for */
    int32_t prompt_tokens;     /* FINISHED and PROGRESS */
    int32_t generated_tokens;  /* FINISHED */
    int32_t cached_tokens;     /* FINISHED: of the prompt, found in the cache when it started */
    int32_t last;              /* FINISHED: 1 if the request has no more events */
    float score;               /* FINISHED: of a beam search's hypothesis, else 0 */
} engine_event;

typedef struct engine_logprob {
    int32_t token;
    float logprob;
} engine_logprob;

/* Hands over events, oldest first, as many as fit `events` (capacity of event_size bytes each) and `bytes` (8-byte aligned; text
 * and log-probabilities, each payload padded to a multiple of 8): *count events and *bytes_used bytes. The first whose payload
 * doesn't fit stays with all after it, and *bytes_needed is its size (else 0); counts may be NULL. Nothing is dropped: a request
 * whose events fill their room (64 tokens at least) sits out of passes until polled. Its last event releases it unless `keep`.
 * Errors: BUFFER_TOO_SMALL only if nothing was written because the first payload doesn't fit; INVALID_ARGUMENT, STRUCT_SIZE. */
ENGINE_API engine_status engine_poll_tokens(engine* e, engine_event* events, size_t event_size, size_t capacity, size_t* count,
                                            void* bytes, size_t bytes_capacity, size_t* bytes_used, size_t* bytes_needed);

/* ---------------------------------------------------------------------------------------------------------------- figures */

/* How a figure is spread since the engine was made. Percentiles are at most 1/32 above the true ones, never below. */
typedef struct engine_distribution {
    uint64_t count;
    double mean;
    int64_t p50, p90, p99, max;
} engine_distribution;

/* Counters since the engine was made, and sizes as they are now. */
typedef struct engine_stats {
    uint32_t struct_size;
    int32_t running;             /* sequences in passes */
    int32_t waiting;             /* for room */
    int32_t waiting_poll;        /* for a poll */
    int32_t paused;
    int32_t kv_blocks_free;
    int32_t kv_blocks_held;      /* by sequences */
    int32_t kv_blocks_cached;    /* by nobody, findable until needed; free + held + cached + trimmed = kv_blocks */
    uint64_t requests_submitted;
    uint64_t requests_finished;  /* for whatever reason: cancelled and failed ones too */
    uint64_t requests_cancelled;
    uint64_t requests_failed;
    uint64_t requests_late;      /* ended by their deadlines */
    uint64_t prompt_tokens;      /* computed for the first time */
    uint64_t queried_tokens;     /* of prompts, looked for in the prefix cache */
    uint64_t cached_tokens;      /* of prompts, found in it: hit rate = cached_tokens / queried_tokens */
    uint64_t recomputed_tokens;  /* after a preemption or a pause */
    uint64_t generated_tokens;
    uint64_t preemptions;
    uint64_t preempted_tokens;   /* that those who were preempted had in the KV cache; much of it is found again */
    uint64_t evicted_blocks;     /* out of the prefix cache */
    uint64_t copied_blocks;      /* on write, since others share them */
    uint64_t steps, passes;
    int64_t worst_tile_us;       /* longest piece between two looks at the clock */
    engine_distribution ttft_us;  /* time to first token: from a submission to the first token of each sequence */
    engine_distribution itl_us;   /* inter-token latency: between two tokens of a sequence */
    engine_distribution queue_us; /* from a submission until it is first computed */
    engine_distribution request_us; /* from a submission to its end */
    engine_distribution step_us;
    engine_distribution pass_rows;   /* sequences in a pass */
    engine_distribution pass_tokens; /* tokens in a pass */
    double cost_pass_us;  /* what the scheduler has learned of the time of a pass: this much for the pass, */
    double cost_row_us;   /* for each sequence that gets a token, */
    double cost_token_us; /* for each other token, */
    double cost_token_context_us; /* and for each pair of a token and a position that it attends to */
    double cost_error;    /* mean of |measured - expected| / the larger, of the last hundred passes or so */
    double host_share;    /* of the time in which there was work, how much the host gave to steps. 0 .. 1 */
    int32_t kv_blocks_pinned;  /* that pins fill together, those still to be computed among them */
    int32_t kv_blocks_trimmed; /* given back by engine_trim, not taken again yet */
    uint64_t kv_bytes;         /* that the KV cache has from the allocator now: its blocks without trimmed ones, and its books */
} engine_stats;
ENGINE_API engine_status engine_stats_init(engine_stats* stats, size_t size);
ENGINE_API engine_status engine_get_stats(engine* e, engine_stats* stats);

/* The same figures, with whole histograms, as Prometheus text (exposition format 0.0.4), under the names of inference servers
 * with the prefix treadle_. *size is the length of the text, also with BUFFER_TOO_SMALL (then nothing is written); leave some
 * room, since digits grow. No zero byte is added. `text` may be NULL if capacity is 0. */
ENGINE_API engine_status engine_metrics_text(engine* e, char* text, size_t capacity, size_t* size);

/* Writes what the engine did and when as Chrome trace JSON (for Perfetto and chrome://tracing): the phases of steps, and of each
 * sequence its waiting, pieces of prompt, tokens and preemptions; the newest engine_params.trace_events of them, perhaps none.
 * `write` gets at most 64 KiB a call. Steps may run meanwhile; it may call all but engine_destroy. Errors: STOPPED, NOMEM. */
ENGINE_API engine_status engine_trace_write(engine* e, engine_write_fn write, void* user);

/* -------------------------------------------------------------------------------------------------------------- planning */

/* A model, a machine and a load. The cache's shape is layers, kv_heads and head_dim; or kv_token_bytes_f16 and head_dim, with
 * layers and kv_heads 0. */
typedef struct engine_plan_params {
    uint32_t struct_size;
    int32_t layers;               /* that keep keys and values */
    int32_t kv_heads;
    int32_t head_dim;             /* needed in both forms: groups of a type must divide it. Default: 128 */
    int32_t key_type;             /* ENGINE_KV_… Default: f16; likewise below */
    int32_t value_type;
    int32_t batch;                /* sequences in a pass. Default: 1 */
    int32_t context_tokens;       /* that each of them reads, on the average; 0: leaves the KV reads out. Default: 0 */
    int32_t sequence_tokens;      /* length at which sequences are counted into the cache. Default: 8192 */
    uint64_t kv_token_bytes_f16;  /* keys and values of a token in all layers, were they f16 */
    uint64_t kv_bytes;            /* memory for the cache */
    uint64_t weight_bytes;        /* that a pass reads: all of a dense model */
    uint64_t bandwidth;           /* of the memory they lie in, bytes per second */
    uint64_t token_flops;         /* for one token: two per weight that it meets */
    uint64_t usable_flops;        /* that the machine really reaches on this work, per second */
} engine_plan_params;
ENGINE_API engine_status engine_plan_params_init(engine_plan_params* params, size_t size);

typedef struct engine_plan {
    uint32_t struct_size;
    uint64_t kv_token_bytes;          /* with the chosen types */
    uint64_t kv_block_bytes;          /* of 16 tokens */
    uint64_t kv_blocks;               /* that fit kv_bytes; for engine_params */
    uint64_t kv_tokens;               /* 16 * kv_blocks */
    uint64_t sequences;               /* of sequence_tokens each that fit; each takes whole blocks */
    double weights_us;                /* to read the weights, once per pass */
    double compute_us;                /* to multiply the rows of `batch` sequences by them */
    double kv_read_us;                /* to read the context of each */
    double pass_us;                   /* the longer of the first two, and the third */
    double tokens_per_second;         /* batch / pass_us */
    double tokens_per_second_max;     /* that no batch exceeds */
    int64_t crossover_batch;          /* where batching stops being nearly free: computing takes as long as reading the weights */
    int64_t crossover_batch_context;  /* the same with the KV reads of context_tokens, which move it down */
} engine_plan;
ENGINE_API engine_status engine_plan_init(engine_plan* plan, size_t size);

/* What a batch yields and what fits, before anything is loaded: pass_us = max(weight_bytes / bandwidth, batch * token_flops /
 * usable_flops) + batch * context_tokens * kv_token_bytes / bandwidth. Errors: INVALID_ARGUMENT, LIMIT, STRUCT_SIZE. */
ENGINE_API engine_status engine_plan_capacity(const engine_plan_params* params, engine_plan* plan, engine_error* error);

#ifdef __cplusplus
}
#endif

#endif
