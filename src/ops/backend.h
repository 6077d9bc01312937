// What a backend is: it packs weights at load (WeightStore, one per model), and runs passes of a program over a paged cache
// (Backend, one per engine). The runner calls it; the CPU backend is src/cpu, and the tests own one that is late, failing and
// poisoning.
//
// Life of a load:   add each tensor ─► allocate ─► pack every row of each, in any order, on any threads ─► make_backend
// Life of a pass:   begin(input) ─► advance(deadline) ─► more … pending … done ─► results() until the next begin
//
// Invariant: what a pass computes does not depend on where advance was cut, on the number of threads, or on the other rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/block_copy.h"
#include "base/hooks.h"
#include "base/limits.h"
#include "base/memory.h"
#include "ops/program.h"

namespace treadle {

// A tensor as it lies in its file, row-major, `columns` values along each row (the input dimension of a matrix).
struct WeightShape {
    const char* name = "";
    uint32_t type = 0;  // GGUF's number of the type; the backend answers UNSUPPORTED_TYPE for those it lacks
    int64_t rows = 0;
    int64_t columns = 0;
    uint64_t bytes = 0;  // in the file
};

constexpr int64_t weight_row_step = 16;  // tensors are packed in multiples of so many rows

enum class WeightUse : uint8_t {
    matrix,  // of Linear, Logits and Embed
    vector,  // gains and biases: one row, kept in f32
};

struct BackendParams {
    int32_t threads = 1;           // including the caller's; at least 1
    ParallelForHook parallel_for;  // run is null: an own pool of threads
    ClockHook clock;
};

class Backend;

class WeightStore {
public:
    virtual ~WeightStore() = default;

    // Checks a tensor and gives it the next id. On failure the store is as before.
    [[nodiscard]] virtual Status add(const WeightShape& tensor, WeightUse use, WeightId* out,
                                     Error* error) = 0;

    // Takes memory for all that was added since the last call; std::bad_alloc where there is none.
    virtual void allocate() = 0;

    // Packs rows first_row .. first_row + rows - 1, which lie in `bytes` as in the file. first_row is a multiple of
    // weight_row_step, and rows too, unless these are the last. Allocates nothing. Thread rule: any number of calls at once,
    // each with other rows.
    virtual void pack(WeightId id, int64_t first_row, int64_t rows, const void* bytes) = 0;

    virtual size_t bytes() const = 0;  // of the memory for packed weights
    virtual const char* numerics_id()
        const = 0;                         // backend, architecture and version of the numerics contract
    virtual const char* tier() const = 0;  // which code runs, by its name in cpu/tiers.h

    // A backend for one engine. The store must outlive it.
    [[nodiscard]] virtual Status make_backend(const BackendParams& params, MemorySet& memory,
                                              Owned<Backend>* out, Error* error) = 0;
};

// Rows first_row .. first_row + rows - 1 of the pass are consecutive positions of one sequence, starting at first_position;
// the sequence's block table starts at block_table[first_block] and covers every position up to its last row.
struct AttentionWork {
    int32_t first_row;
    int32_t rows;
    int32_t first_position;
    int32_t first_block;
};

// Blocks that the tables of one pass may name, all together: each row may be a sequence, and sequences share blocks; but not
// without limit, since huge pools would make for huge tables. A single table always fits.
constexpr int64_t block_table_capacity(int32_t rows, int32_t blocks) {
    const int64_t all = int64_t{rows} * blocks;
    const int64_t most = int64_t{4} * blocks + (1 << 18);
    return all < most ? all : most;
}

struct GroupInput {
    std::span<const int32_t> slots;        // (tokens) block * 16 + position % 16, or -1: don't write
    std::span<const int32_t> block_table;  // all sequences' tables, one after another
    std::span<const AttentionWork> work;   // in row order, covers every row once
    std::span<const BlockCopy> copies;     // whole blocks, all layers, run before everything else
};

// Everything a pass reads from the host. begin copies it.
struct PassInput {
    std::span<const int32_t> tokens;              // (tokens) ids
    std::span<const int32_t> positions;           // (tokens)
    std::span<const GroupInput> groups;           // one per KV group of the program
    std::span<const int32_t> logit_rows;          // (logit_rows) ascending rows of the pass
    std::span<const float> inverse_temperatures;  // (logit_rows) 1 where greedy
    std::span<const float> cos_sin;  // rope tables after another, each (tokens, pairs, 2): cos, sin
};

struct Candidate {
    float logit;
    int32_t token;
};

// What a backend reports of one row of logits (rule 7). A row with a NaN, or whose maximum is not finite, has usable == 0.
struct RowResult {
    int32_t usable;
    int32_t count;  // candidates: min(256, vocabulary)
    float max;
    float sum;                                // Σ exp2((l - max) · log2e)
    float sum_scaled;                         // Σ exp2((l - max) · (log2e · inverse_temperature))
    Candidate best[limits::candidates_kept];  // by (logit descending, token ascending)
};

struct PassResults {
    std::span<const RowResult> rows;  // (logit_rows)
    const float* logits = nullptr;    // (logit_rows, vocabulary)
};

enum class PassState : uint8_t {
    done,
    more,
    pending
};  // more: call again; pending: a device works on it, ask later

struct AdvanceResult {
    Status status = Status::OK;
    PassState state = PassState::done;
    int64_t worst_tile_ns = 0;
};

// One position of one KV head of one layer of the cache.
struct KvRow {
    int32_t group;
    int32_t layer;
    int32_t kv_head;
    int32_t slot;
};

class Backend {
public:
    virtual ~Backend() = default;

    // The paged cache: `blocks` blocks of 16 positions for every layer of every group. Called once, before build.
    virtual size_t kv_bytes_per_block(const Program& program) const = 0;
    [[nodiscard]] virtual Status kv_create(const Program& program, int32_t blocks, Error* error) = 0;

    // Its slabs (limits::kv_slabs), all there after kv_create. kv_allocate and kv_free come from any thread, also while a pass
    // runs: memory for a slab that is no part of the cache yet (std::bad_alloc: there is none), or no more. kv_exchange puts
    // such memory in, or null, and returns what was there; no pass under way names a block of that slab. What the blocks hold
    // afterwards is undefined.
    virtual void* kv_allocate(int32_t slab) = 0;
    virtual void kv_free(int32_t slab, void* memory) = 0;
    virtual void* kv_exchange(int32_t slab, void* memory) = 0;

    // The key of one position of a cache of f16 keys: out (head_dim), rotated as it is stored. INTERNAL: the cache keeps others.
    [[nodiscard]] virtual Status read_key(const KvRow& row, float* out) const {
        (void)row, (void)out;
        return Status::INTERNAL;
    }

    // Prepares the program for passes of at most `max`; called once. All memory of later passes is allocated here.
    [[nodiscard]] virtual Status build(const Program& program, Dims max, Error* error) = 0;

    // Starts a pass; the one before must be done or abandoned. Allocates nothing.
    [[nodiscard]] virtual Status begin(const PassInput& input, Dims dims) = 0;

    // Works on the pass until it is done or the clock reaches deadline_ns (INT64_MAX: until done), with at most max_threads
    // threads. At least one tile is computed by each call, unless all that can be are in workers' hands at the deadline.
    virtual AdvanceResult advance(int64_t deadline_ns, int32_t max_threads) = 0;

    // Waits for what runs in the background and forgets the pass.
    virtual void abandon() = 0;

    // After done, until the next begin.
    virtual PassResults results() const = 0;
};

}  // namespace treadle
