// What a pass reads and writes beside weights: the values of the program, the copy of its input and the
// cache. All of it is allocated by build and kv_create; begin fills in the input after checking it.
//
//     value        residual  qkv  attended  delta  gate_up       (tokens, columns) f32, row-major
//     act, twice   q (tokens, columns) · scale (tokens, columns / 32) · sum (tokens, columns / 16)
//                  and, or instead, f32 (tokens, columns)
//     logits       (logit_rows, vocabulary) f32, results (logit_rows)
//     cache        slabs of blocks, each | per group: keys (layers, blocks of the slab, block_bytes) | values likewise |
//                  (kv_layout.h draws a block); a slab that was given back is null
//     scratch      per thread: | attention | one row of floats |
//     span parts   of the attention units that are cut along their context, each | maxima | parts | per KV head
//
// Invariant: an input that was taken names no row, slot, block or token outside of what was allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "base/limits.h"
#include "cpu/kernels.h"
#include "cpu/pass_plan.h"

namespace treadle::cpu {

// Up to 8 consecutive rows of one sequence. An item of attention is one KV head of it, or where the context is long a piece of
// that: some of the spans. The items of a unit follow one another, pieces fastest.
struct AttentionUnit {
    int32_t first_row;
    int32_t rows;
    int32_t first_position;
    int32_t first_block;
    int32_t pieces = 1;  // of each KV head
    int32_t first_item = 0;
    size_t parts_at = 0;  // of its span parts, where there are pieces

    int32_t spans() const { return (first_position + rows - 1) / span_positions + 1; }
    int32_t first_span(int32_t piece) const {
        return static_cast<int32_t>(int64_t{spans()} * piece / pieces);
    }
};

struct AttentionTile {
    int32_t first_unit;
    int32_t end_item;
};

struct GroupCache {
    KvLayout keys;
    KvLayout values;
    AlignedArray<uint8_t*> key_slabs;    // (layers, slabs) where each layer begins in each slab
    AlignedArray<uint8_t*> value_slabs;  // (layers, slabs)
    AlignedArray<uint16_t> kept_dims;    // (layers, kv_heads, keys.kept)
    int32_t layers = 0;
    int32_t blocks = 0;

    LayerCache layer(int32_t index) const {
        const auto at = static_cast<size_t>(index);
        const size_t first = at * static_cast<size_t>(limits::kv_slabs(blocks));
        const size_t kept = at * static_cast<size_t>(keys.kv_heads) * static_cast<size_t>(keys.kept);
        return {keys,
                values,
                key_slabs.data() + first,
                value_slabs.data() + first,
                limits::kv_slab_shift(blocks),
                kept_dims.data() + kept};
    }
};

// The copy of a GroupInput, and what attention makes of it.
struct GroupPass {
    AlignedArray<int32_t> slots;
    AlignedArray<int32_t> block_table;
    AlignedArray<BlockCopy> copies;
    AlignedArray<AttentionUnit> units;
    AlignedArray<AttentionTile> attention_tiles;
    int32_t copy_count = 0;
    int32_t unit_count = 0;
    int32_t tiles = 0;
};

struct ActMemory {
    AlignedArray<int8_t> q;
    AlignedArray<float> scale;
    AlignedArray<int32_t> sum;
    AlignedArray<float> f32;
};

class PassBuffers {
public:
    explicit PassBuffers(std::pmr::memory_resource* other) : caches(other), groups(other), slabs_(other) {}
    ~PassBuffers();
    PassBuffers(const PassBuffers&) = delete;
    PassBuffers& operator=(const PassBuffers&) = delete;

    void create_cache(const Program& program, int32_t blocks, Memory* other, Memory* kv);
    void* allocate_slab(int32_t slab);
    void free_slab(int32_t slab, void* memory);
    void* exchange_slab(int32_t slab, void* memory);  // returns what was there

    void allocate(const PassPlan& plan, const Program& program, Dims most, int32_t threads, Memory* scratch);

    // Checks and copies the input. INVALID_ARGUMENT: it does not fit itself or what was allocated; nothing
    // is run then.
    [[nodiscard]] Status take(const PassInput& input, Dims dims, const PassPlan& plan);

    // Cuts attention's units into pieces and groups these into tiles; after take.
    void cut_attention(const PassPlan& plan, const Rates& rates, int32_t threads);
    SpanParts span_parts(const PassPlan& plan, const AttentionUnit& unit, int32_t kv_head);

    float* value(Value of);
    Act act_rows(const ActForm& form, int32_t first_row);
    std::byte* attention_scratch(int32_t thread) {
        return scratch.data() + scratch_stride * static_cast<size_t>(thread);
    }
    float* row_scratch(int32_t thread) {
        return reinterpret_cast<float*>(attention_scratch(thread) + row_scratch_at);
    }

    Dims most;
    Dims dims;
    AlignedArray<float> residual;
    AlignedArray<float> qkv;
    AlignedArray<float> attended;
    AlignedArray<float> delta;
    AlignedArray<float> gate_up;
    AlignedArray<float> logits;
    ActMemory acts[2];
    AlignedArray<RowResult> results;
    AlignedArray<int32_t> unfinished;  // (blocks of rows that count parts); Cut says where a region's are

    AlignedArray<int32_t> tokens;
    AlignedArray<int32_t> logit_rows;
    AlignedArray<float> inverse_temperatures;
    AlignedArray<float> cos_sin;       // rope tables one after another, each (tokens, pairs, 2)
    AlignedArray<int32_t> rope_pairs;  // (tables)
    std::pmr::vector<GroupCache> caches;
    std::pmr::vector<GroupPass> groups;

    const float* cos_sin_row(int32_t table, int32_t row) const;

private:
    [[nodiscard]] Status check(const PassInput& input, Dims of, const PassPlan& plan) const;
    [[nodiscard]] Status check_group(const GroupInput& input, const GroupPass& group, const GroupCache& cache,
                                     Dims of) const;

    size_t slab_bytes(int32_t slab) const;
    void cut_units(GroupPass& group, const PassPlan& plan, double target_ns, const Rates& rates) const;

    std::pmr::vector<void*> slabs_;  // (slabs)
    Memory* kv_ = nullptr;
    AlignedArray<std::byte> scratch;
    AlignedArray<float> span_parts_;
    int64_t span_rows_max_ = 0;  // rows of units with pieces, each times its spans
    size_t scratch_stride = 0;
    size_t row_scratch_at = 0;
};

}  // namespace treadle::cpu
