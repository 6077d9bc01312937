// Allocation, and the check of a pass's input.
#include "cpu/pass_buffers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/limits.h"

namespace treadle::cpu {
namespace {

constexpr int32_t block_tokens = limits::kv_block_tokens;
constexpr size_t slab_alignment = 64;
constexpr int32_t cut_positions = 32 * 1024;  // 8 rows of so long a context are cut, and one row of any

size_t round_up_64(size_t bytes) { return (bytes + 63) / 64 * 64; }

// In debug builds what was never written is NaN, so that reading it shows; a release build leaves pages
// untouched.
void poison([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#ifndef NDEBUG
    std::fill_n(static_cast<uint16_t*>(memory), bytes / sizeof(uint16_t), uint16_t{0x7e00});
#endif
}

// How many spans so many positions have, as SpanParts keeps them; and the floats of one, for one row and head.
int64_t kept_spans(int32_t positions) {
    return (int64_t{positions} + 16 * span_positions - 1) / (16 * span_positions) * 16;
}
size_t floats_per_span(const PassPlan& plan) { return static_cast<size_t>(plan.head_dim) + 16 + 1; }

template <class T>
void copy(std::span<const T> from, AlignedArray<T>& to) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size_bytes());
}

}  // namespace

PassBuffers::~PassBuffers() {
    for (size_t i = 0; i < slabs_.size(); ++i) free_slab(static_cast<int32_t>(i), slabs_[i]);
}

void PassBuffers::create_cache(const Program& program, int32_t blocks, Memory* other, Memory* kv) {
    const auto slabs = static_cast<size_t>(limits::kv_slabs(blocks));
    std::pmr::vector<GroupCache> made(caches.get_allocator());
    size_t kept_before = 0;
    for (const KvGroup& group : program.groups) {
        GroupCache cache;
        cache.keys = kv_layout(group.keys(), group.kv_heads);
        cache.values = kv_layout(group.values(), group.kv_heads);
        cache.layers = group.layers;
        cache.blocks = blocks;
        const size_t pointers = static_cast<size_t>(group.layers) * slabs;
        cache.key_slabs = AlignedArray<uint8_t*>(other, pointers);
        cache.value_slabs = AlignedArray<uint8_t*>(other, pointers);
        cache.kept_dims = AlignedArray<uint16_t>(other, group.kept_dims());
        std::copy_n(program.kept_dims.begin() + static_cast<ptrdiff_t>(kept_before), group.kept_dims(),
                    cache.kept_dims.begin());
        kept_before += group.kept_dims();
        made.push_back(std::move(cache));
    }
    caches = std::move(made);
    kv_ = kv;
    slabs_.assign(slabs, nullptr);
    for (int32_t slab = 0; slab < limits::kv_slabs(blocks); ++slab) exchange_slab(slab, allocate_slab(slab));
}

size_t PassBuffers::slab_bytes(int32_t slab) const {
    size_t block_bytes = 0;
    for (const GroupCache& cache : caches)
        block_bytes +=
            static_cast<size_t>(cache.layers) * (cache.keys.block_bytes + cache.values.block_bytes);
    return block_bytes * static_cast<size_t>(limits::kv_blocks_of_slab(slab, caches.front().blocks));
}

void* PassBuffers::allocate_slab(int32_t slab) {
    void* memory = kv_->allocate(slab_bytes(slab), slab_alignment);
    poison(memory, slab_bytes(slab));
    return memory;
}

void PassBuffers::free_slab(int32_t slab, void* memory) {
    if (memory != nullptr) kv_->deallocate(memory, slab_bytes(slab), slab_alignment);
}

void* PassBuffers::exchange_slab(int32_t slab, void* memory) {
    const auto index = static_cast<size_t>(slab);
    auto* next = static_cast<uint8_t*>(memory);
    for (GroupCache& cache : caches) {
        const auto blocks = static_cast<size_t>(limits::kv_blocks_of_slab(slab, cache.blocks));
        const auto place = [&](AlignedArray<uint8_t*>& planes, size_t step) {
            for (size_t i = index; i < planes.size(); i += slabs_.size()) {
                planes[i] = next;
                if (next != nullptr) next += step;
            }
        };
        place(cache.key_slabs, cache.keys.block_bytes * blocks);
        place(cache.value_slabs, cache.values.block_bytes * blocks);
    }
    return std::exchange(slabs_[index], memory);
}

void PassBuffers::allocate(const PassPlan& plan, const Program& program, Dims limit, int32_t threads,
                           Memory* memory) {
    most = limit;
    const auto rows = static_cast<size_t>(limit.tokens);
    const auto logit_row_count = static_cast<size_t>(limit.logit_rows);
    const auto floats = [&](Value of) {
        return AlignedArray<float>(memory, rows * static_cast<size_t>(plan.columns_of(of)));
    };
    residual = floats(Value::residual);
    qkv = floats(Value::qkv);
    attended = floats(Value::attended);
    delta = floats(Value::delta);
    gate_up = floats(Value::gate_up);
    logits = AlignedArray<float>(memory, logit_row_count * static_cast<size_t>(plan.vocabulary));
    results = AlignedArray<RowResult>(memory, logit_row_count);
    for (size_t i = 0; i < 2; ++i) {
        const size_t values = rows * static_cast<size_t>(plan.act_columns_max[i]);
        if (plan.uses_quantized) {
            acts[i].q = AlignedArray<int8_t>(memory, values);
            acts[i].scale = AlignedArray<float>(memory, values / 32 + 1);
            acts[i].sum = AlignedArray<int32_t>(memory, values / 16 + 1);
        }
        if (plan.uses_f32) acts[i].f32 = AlignedArray<float>(memory, values);
    }
    unfinished = AlignedArray<int32_t>(memory, static_cast<size_t>(plan.row_blocks_max(limit.tokens)));

    tokens = AlignedArray<int32_t>(memory, rows);
    logit_rows = AlignedArray<int32_t>(memory, logit_row_count);
    inverse_temperatures = AlignedArray<float>(memory, logit_row_count);
    rope_pairs = AlignedArray<int32_t>(memory, program.rope_pairs.size());
    std::copy(program.rope_pairs.begin(), program.rope_pairs.end(), rope_pairs.begin());
    size_t pairs = 0;
    for (const int32_t count : rope_pairs) pairs += static_cast<size_t>(count);
    cos_sin = AlignedArray<float>(memory, rows * pairs * 2);

    int32_t positions_max = block_tokens;
    for (const GroupCache& cache : caches) {
        const auto blocks = static_cast<size_t>(cache.blocks);
        const auto sequences = static_cast<int32_t>(std::min<size_t>(rows, limits::sequences_max));
        const int64_t table_blocks = block_table_capacity(sequences, cache.blocks);
        GroupPass group;
        group.slots = AlignedArray<int32_t>(memory, rows);
        group.block_table = AlignedArray<int32_t>(memory, static_cast<size_t>(table_blocks));
        group.copies = AlignedArray<BlockCopy>(memory, blocks);
        group.units = AlignedArray<AttentionUnit>(memory, rows);
        groups.push_back(std::move(group));
        positions_max = std::max(positions_max, cache.blocks * block_tokens);
    }
    span_rows_max_ = std::max(kept_spans(positions_max),
                              attend_rows_max * kept_spans(std::min(positions_max, cut_positions)));
    span_parts_ =
        AlignedArray<float>(memory, static_cast<size_t>(span_rows_max_ * plan.heads) * floats_per_span(plan));
    for (GroupPass& group : groups) {
        const size_t items_of_head = rows + static_cast<size_t>(span_rows_max_);
        group.attention_tiles =
            AlignedArray<AttentionTile>(memory, items_of_head * static_cast<size_t>(plan.kv_heads));
    }

    const auto act_columns = static_cast<size_t>(std::max(plan.act_columns_max[0], plan.act_columns_max[1]));
    row_scratch_at =
        round_up_64(attention_scratch_bytes({plan.heads, plan.kv_heads, plan.head_dim}, positions_max));
    scratch_stride = row_scratch_at + round_up_64(act_columns * sizeof(float));
    scratch = AlignedArray<std::byte>(memory, scratch_stride * static_cast<size_t>(threads));
}

Status PassBuffers::check_group(const GroupInput& input, const GroupPass& group, const GroupCache& cache,
                                Dims of) const {
    if (input.slots.size() != static_cast<size_t>(of.tokens)) return Status::INVALID_ARGUMENT;
    for (const int32_t slot : input.slots) {
        if (slot < -1 || slot >= cache.blocks * block_tokens) return Status::INVALID_ARGUMENT;
    }
    if (input.block_table.size() > group.block_table.size()) return Status::INVALID_ARGUMENT;
    if (input.copies.size() > group.copies.size()) return Status::INVALID_ARGUMENT;
    for (const BlockCopy& one : input.copies) {
        const bool inside = one.from >= 0 && one.from < cache.blocks && one.to >= 0 && one.to < cache.blocks;
        if (!inside || one.from == one.to) return Status::INVALID_ARGUMENT;
    }
    int32_t next_row = 0;
    for (const AttentionWork& work : input.work) {
        if (work.first_row != next_row || work.rows < 1 || work.rows > of.tokens - next_row)
            return Status::INVALID_ARGUMENT;
        next_row += work.rows;
        if (work.first_position < 0 || work.first_position > cache.blocks * block_tokens - work.rows ||
            work.first_block < 0) {
            return Status::INVALID_ARGUMENT;
        }
        const auto needed =
            static_cast<size_t>((work.first_position + work.rows + block_tokens - 1) / block_tokens);
        const auto first = static_cast<size_t>(work.first_block);
        if (first > input.block_table.size() || needed > input.block_table.size() - first)
            return Status::INVALID_ARGUMENT;
        for (const int32_t block : input.block_table.subspan(first, needed)) {
            if (block < 0 || block >= cache.blocks) return Status::INVALID_ARGUMENT;
        }
    }
    return next_row == of.tokens ? Status::OK : Status::INVALID_ARGUMENT;
}

Status PassBuffers::check(const PassInput& input, Dims of, const PassPlan& plan) const {
    if (of.tokens < 1 || of.tokens > most.tokens || of.logit_rows < 0 || of.logit_rows > most.logit_rows) {
        return Status::INVALID_ARGUMENT;
    }
    const auto rows = static_cast<size_t>(of.tokens);
    const auto logit_row_count = static_cast<size_t>(of.logit_rows);
    size_t pairs = 0;
    for (const int32_t count : rope_pairs) pairs += static_cast<size_t>(count);
    if (input.tokens.size() != rows || input.positions.size() != rows ||
        input.groups.size() != groups.size() || input.logit_rows.size() != logit_row_count ||
        input.inverse_temperatures.size() != logit_row_count || input.cos_sin.size() != rows * pairs * 2) {
        return Status::INVALID_ARGUMENT;
    }
    for (const int32_t token : input.tokens) {
        if (token < 0 || token >= plan.vocabulary) return Status::INVALID_ARGUMENT;
    }
    int32_t before = -1;
    for (const int32_t row : input.logit_rows) {
        if (row <= before || row >= of.tokens) return Status::INVALID_ARGUMENT;
        before = row;
    }
    for (size_t i = 0; i < groups.size(); ++i)
        TREADLE_TRY(check_group(input.groups[i], groups[i], caches[i], of));
    return Status::OK;
}

Status PassBuffers::take(const PassInput& input, Dims of, const PassPlan& plan) {
    TREADLE_TRY(check(input, of, plan));
    dims = of;
    copy(input.tokens, tokens);
    copy(input.logit_rows, logit_rows);
    copy(input.inverse_temperatures, inverse_temperatures);
    copy(input.cos_sin, cos_sin);
    for (size_t i = 0; i < groups.size(); ++i) {
        const GroupInput& from = input.groups[i];
        GroupPass& group = groups[i];
        copy(from.slots, group.slots);
        copy(from.block_table, group.block_table);
        copy(from.copies, group.copies);
        group.copy_count = static_cast<int32_t>(from.copies.size());
        group.unit_count = 0;
        for (const AttentionWork& work : from.work) {
            for (int32_t row = 0; row < work.rows; row += attend_rows_max) {
                group.units[static_cast<size_t>(group.unit_count++)] = {
                    .first_row = work.first_row + row,
                    .rows = std::min(attend_rows_max, work.rows - row),
                    .first_position = work.first_position + row,
                    .first_block = work.first_block};
            }
        }
    }
    return Status::OK;
}

namespace {

// Of one KV head.
double attention_ns(const AttentionUnit& unit, const PassPlan& plan, const Rates& rates) {
    constexpr double call_ns = 500;
    const double macs_per_key = 2.0 * plan.head_dim * (plan.heads / plan.kv_heads);
    return call_ns +
           macs_per_key * unit.rows * (unit.first_position + unit.rows) / rates.attention_macs_per_ns;
}

}  // namespace

// Cuts long units into pieces of about target_ns, while there is room for their parts: the last ones first, so that there is
// something short to do when others end.
void PassBuffers::cut_units(GroupPass& group, const PassPlan& plan, double target_ns,
                            const Rates& rates) const {
    int64_t span_rows = 0;
    for (int32_t i = group.unit_count; i-- > 0;) {
        AttentionUnit& unit = group.units[static_cast<size_t>(i)];
        const double wanted =
            std::min<double>(std::round(attention_ns(unit, plan, rates) / target_ns), unit.spans());
        const int64_t needed = unit.rows * kept_spans(unit.first_position + unit.rows);
        if (wanted < 2 || span_rows + needed > span_rows_max_) continue;
        unit.pieces = static_cast<int32_t>(wanted);
        unit.parts_at = static_cast<size_t>(span_rows * plan.heads) * floats_per_span(plan);
        span_rows += needed;
    }
}

void PassBuffers::cut_attention(const PassPlan& plan, const Rates& rates, int32_t threads) {
    constexpr double tiles_max = 1 << 20;
    for (GroupPass& group : groups) {
        double total_ns = 0;
        for (int32_t i = 0; i < group.unit_count; ++i)
            total_ns += attention_ns(group.units[static_cast<size_t>(i)], plan, rates) * plan.kv_heads;
        const double target_ns = std::max(tile_target_ns(total_ns, threads), total_ns / tiles_max);
        cut_units(group, plan, target_ns, rates);
        group.tiles = 0;
        AttentionTile tile{0, 0};
        double tile_ns = 0;
        for (int32_t i = 0; i < group.unit_count; ++i) {
            AttentionUnit& unit = group.units[static_cast<size_t>(i)];
            const double item_ns = attention_ns(unit, plan, rates) / unit.pieces;
            const int32_t items = plan.kv_heads * unit.pieces;
            unit.first_item = tile.end_item;
            for (int32_t item = 0; item < items; ++item) {
                if (tile_ns == 0) tile.first_unit = i;
                ++tile.end_item;
                tile_ns += item_ns;
                const bool is_last = i + 1 == group.unit_count && item + 1 == items;
                if (tile_ns < 0.75 * target_ns && !is_last) continue;
                group.attention_tiles[static_cast<size_t>(group.tiles++)] = tile;
                tile_ns = 0;
            }
        }
    }
}

SpanParts PassBuffers::span_parts(const PassPlan& plan, const AttentionUnit& unit, int32_t kv_head) {
    const auto kept = static_cast<size_t>(kept_spans(unit.first_position + unit.rows));
    const size_t spans = static_cast<size_t>(unit.rows * (plan.heads / plan.kv_heads)) * kept;
    float* const maxima =
        span_parts_.data() + unit.parts_at + static_cast<size_t>(kv_head) * spans * floats_per_span(plan);
    return {maxima, maxima + spans, kept};
}

float* PassBuffers::value(Value of) {
    switch (of) {
        case Value::residual: return residual.data();
        case Value::qkv: return qkv.data();
        case Value::attended: return attended.data();
        case Value::delta: return delta.data();
        case Value::gate_up: return gate_up.data();
        case Value::logits: return logits.data();
        default: return nullptr;
    }
}

Act PassBuffers::act_rows(const ActForm& form, int32_t first_row) {
    ActMemory& memory = acts[form.turn];
    const size_t offset = static_cast<size_t>(first_row) * static_cast<size_t>(form.columns);
    Act act;
    if (memory.q.data() != nullptr) {
        act.q = memory.q.data() + offset;
        act.scale = memory.scale.data() + offset / 32;
        act.sum = memory.sum.data() + offset / 16;
    }
    if (memory.f32.data() != nullptr) act.f32 = memory.f32.data() + offset;
    act.columns = form.columns;
    return act;
}

const float* PassBuffers::cos_sin_row(int32_t table, int32_t row) const {
    size_t pairs_before = 0;
    for (int32_t i = 0; i < table; ++i)
        pairs_before += static_cast<size_t>(rope_pairs[static_cast<size_t>(i)]);
    const auto pairs = static_cast<size_t>(rope_pairs[static_cast<size_t>(table)]);
    return cos_sin.data() +
           (pairs_before * static_cast<size_t>(dims.tokens) + pairs * static_cast<size_t>(row)) * 2;
}

}  // namespace treadle::cpu
