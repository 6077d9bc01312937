// The bodies of tiles, one function per kind of region and of row-wise operation.
#include "cpu/pass_tiles.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace treadle::cpu {
namespace {

size_t at(int32_t row, int32_t columns) { return static_cast<size_t>(row) * static_cast<size_t>(columns); }

}  // namespace

void PassTiles::run(const Region& region, const Cut& cut, int32_t index, int32_t thread) const {
    const std::span<const Step> steps = plan.steps_of(region);
    if (region.kind == RegionKind::attend) return run_attend(region, cut, index, thread);
    const Tile tile = cut.tile(index);
    switch (region.kind) {
        case RegionKind::copies: return run_copies(tile.first_unit, tile.last_unit);
        case RegionKind::rows: return run_rows(steps, tile.first_unit, tile.last_unit, thread);
        case RegionKind::linear:
            run_matrix(steps.front(), tile);
            if (region.counts_parts() && ends_block(cut, tile.row_block, 1))
                run_rows(steps.subspan(1), tile.first_row, tile.last_row, thread);
            return;
        case RegionKind::logits: return run_logits(steps.front(), tile);
        case RegionKind::candidates: return run_candidates(tile.first_unit, tile.last_unit);
        case RegionKind::attend: return;
    }
}

// Counts parts of a block of rows as written. Who counts the last (true) sees all that the others wrote.
bool PassTiles::ends_block(const Cut& cut, int32_t block, int32_t parts) const {
    const std::atomic_ref<int32_t> unfinished(
        buffers.unfinished[static_cast<size_t>(cut.first_counter + block)]);
    return unfinished.fetch_sub(parts, std::memory_order_acq_rel) == parts;
}

void PassTiles::run_rows(std::span<const Step> steps, int32_t first, int32_t last, int32_t thread) const {
    for (int32_t row = first; row < last; ++row) {
        for (const Step& step : steps) run_row(step, row, thread);
    }
}

// Layers first .. last-1, counted over all groups. The copies of a layer run in order.
void PassTiles::run_copies(int32_t first_layer, int32_t last_layer) const {
    int32_t layers_before = 0;
    for (size_t i = 0; i < buffers.groups.size(); ++i) {
        const GroupPass& group = buffers.groups[i];
        const GroupCache& cache = buffers.caches[i];
        const int32_t first = std::max(first_layer - layers_before, 0);
        const int32_t last = std::min(last_layer - layers_before, cache.layers);
        layers_before += cache.layers;
        for (int32_t layer = first; layer < last; ++layer) {
            const LayerCache planes = cache.layer(layer);
            for (int32_t c = 0; c < group.copy_count; ++c) {
                const BlockCopy copy = group.copies[static_cast<size_t>(c)];
                std::memcpy(planes.key_block(copy.to), planes.key_block(copy.from), planes.keys.block_bytes);
                std::memcpy(planes.value_block(copy.to), planes.value_block(copy.from),
                            planes.values.block_bytes);
            }
        }
    }
}

void PassTiles::run_row(const Step& step, int32_t row, int32_t thread) const {
    if (const auto* embed = std::get_if<Embed>(&step.op)) return embed_row(*embed, step, row);
    if (const auto* norm = std::get_if<AddNorm>(&step.op)) return norm_row(*norm, step, row, thread);
    if (const auto* rope = std::get_if<RopeWrite>(&step.op)) return rope_row(*rope, row);
    if (std::holds_alternative<Quantize>(step.op)) return quantize_row(step, row);
    if (const auto* gate = std::get_if<Gate>(&step.op)) return gate_row(*gate, step, row, thread);
}

void PassTiles::embed_row(const Embed& op, const Step& step, int32_t row) const {
    const PackedMatrix& weight = plan.parts[static_cast<size_t>(step.first_part)].weight;
    kernels.embed(weight, buffers.tokens[static_cast<size_t>(row)], op.scale,
                  buffers.residual.data() + at(row, plan.hidden));
}

void PassTiles::norm_row(const AddNorm& op, const Step& step, int32_t row, int32_t thread) const {
    const float* delta = op.add_delta ? buffers.delta.data() + at(row, plan.hidden) : nullptr;
    float* normed = act_target(step, row, thread);
    kernels.add_norm(buffers.residual.data() + at(row, plan.hidden), delta, step.gain, op.epsilon,
                     plan.hidden, normed);
    finish_act(step, row, normed);
}

void PassTiles::rope_row(const RopeWrite& op, int32_t row) const {
    const auto group = static_cast<size_t>(op.group);
    float* const queries = buffers.qkv.data() + at(row, plan.qkv_columns());
    kernels.rope(shape(), {op.pair_order, op.rotary_dims, op.query_scale},
                 buffers.cos_sin_row(op.rope_table, row), queries);
    const int32_t slot = buffers.groups[group].slots[static_cast<size_t>(row)];
    if (slot < 0) return;
    const float* const keys = queries + at(plan.heads, plan.head_dim);
    kernels.write_kv(buffers.caches[group].layer(op.layer), keys, keys + at(plan.kv_heads, plan.head_dim),
                     slot);
}

void PassTiles::quantize_row(const Step& step, int32_t row) const {
    const float* values = buffers.attended.data() + at(row, step.act.columns);
    if (step.act.f32) {
        std::memcpy(buffers.act_rows(step.act, row).f32, values,
                    static_cast<size_t>(step.act.columns) * sizeof(float));
    }
    finish_act(step, row, values);
}

void PassTiles::gate_row(const Gate& op, const Step& step, int32_t row, int32_t thread) const {
    float* gated = act_target(step, row, thread);
    kernels.gate(op.kind, buffers.gate_up.data() + at(row, 2 * plan.feed_forward), plan.feed_forward, gated);
    finish_act(step, row, gated);
}

// Where a row of act is made in f32: in act itself if somebody reads it there.
float* PassTiles::act_target(const Step& step, int32_t row, int32_t thread) const {
    return step.act.f32 ? buffers.act_rows(step.act, row).f32 : buffers.row_scratch(thread);
}

void PassTiles::finish_act(const Step& step, int32_t row, const float* values) const {
    if (!step.act.quantized) return;
    const Act act = buffers.act_rows(step.act, row);
    kernels.quantize(values, step.act.columns, act.q, act.scale, act.sum);
}

void PassTiles::run_matrix(const Step& step, const Tile& tile) const {
    const auto& op = std::get<Linear>(step.op);
    const int32_t width = plan.columns_of(op.output);
    float* output = buffers.value(op.output) + at(tile.first_row, width);
    const Act act = buffers.act_rows(step.act, tile.first_row);
    for (int32_t i = 0; i < step.parts; ++i) {
        const MatrixPart& part = plan.parts[static_cast<size_t>(step.first_part + i)];
        const int32_t begin = std::max(tile.first_unit - part.panel, 0);
        const int32_t end = std::min(tile.last_unit - part.panel, part.weight.panels());
        if (begin >= end) continue;
        kernels.linear(part.weight, part.bias, act, nullptr, tile.last_row - tile.first_row, begin, end,
                       output + part.column, static_cast<size_t>(width));
    }
}

void PassTiles::run_logits(const Step& step, const Tile& tile) const {
    const MatrixPart& part = plan.parts[static_cast<size_t>(step.first_part)];
    kernels.linear(
        part.weight, nullptr, buffers.act_rows(step.act, 0), buffers.logit_rows.data() + tile.first_row,
        tile.last_row - tile.first_row, tile.first_unit, tile.last_unit,
        buffers.logits.data() + at(tile.first_row, plan.vocabulary), static_cast<size_t>(plan.vocabulary));
}

void PassTiles::run_attend(const Region& region, const Cut& cut, int32_t index, int32_t thread) const {
    const std::span<const Step> steps = plan.steps_of(region);
    const auto& op = std::get<Attend>(steps.front().op);
    const GroupPass& group = buffers.groups[static_cast<size_t>(op.group)];
    const AttentionTile tile = group.attention_tiles[static_cast<size_t>(index)];
    int32_t item = index == 0 ? 0 : group.attention_tiles[static_cast<size_t>(index - 1)].end_item;
    for (int32_t block = tile.first_unit; item < tile.end_item; ++block) {
        const AttentionUnit& unit = group.units[static_cast<size_t>(block)];
        const int32_t first = item;
        const int32_t end = std::min(unit.first_item + plan.kv_heads * unit.pieces, tile.end_item);
        for (; item < end; ++item) run_attention_item(op, unit, item - unit.first_item, thread);
        if (!ends_block(cut, block, end - first)) continue;
        if (unit.pieces > 1) merge_pieces(op, unit, thread);
        run_rows(steps.subspan(1), unit.first_row, unit.first_row + unit.rows, thread);
    }
}

void PassTiles::run_attention_item(const Attend& op, const AttentionUnit& unit, int32_t item,
                                   int32_t thread) const {
    const auto group = static_cast<size_t>(op.group);
    const int32_t kv_head = item / unit.pieces;
    const int32_t piece = item % unit.pieces;
    const LayerCache cache = buffers.caches[group].layer(op.layer);
    const int32_t* const blocks = buffers.groups[group].block_table.data() + unit.first_block;
    const float* const queries = buffers.qkv.data() + at(unit.first_row, plan.qkv_columns());
    const auto stride = static_cast<size_t>(plan.qkv_columns());
    if (unit.pieces > 1) {
        return kernels.attend_spans(shape(), cache, blocks, unit.first_position, unit.rows, kv_head, queries,
                                    stride, unit.first_span(piece), unit.first_span(piece + 1),
                                    buffers.span_parts(plan, unit, kv_head),
                                    buffers.attention_scratch(thread));
    }
    const int32_t columns = plan.heads * plan.head_dim;
    kernels.attend(shape(), cache, blocks, unit.first_position, unit.rows, kv_head, queries, stride,
                   buffers.attended.data() + at(unit.first_row, columns), static_cast<size_t>(columns),
                   buffers.attention_scratch(thread));
}

void PassTiles::merge_pieces(const Attend& op, const AttentionUnit& unit, int32_t thread) const {
    const LayerCache cache = buffers.caches[static_cast<size_t>(op.group)].layer(op.layer);
    const int32_t columns = plan.heads * plan.head_dim;
    for (int32_t kv_head = 0; kv_head < plan.kv_heads; ++kv_head) {
        kernels.merge_spans(shape(), cache, unit.first_position, unit.rows, kv_head,
                            buffers.span_parts(plan, unit, kv_head),
                            buffers.attended.data() + at(unit.first_row, columns),
                            static_cast<size_t>(columns), buffers.attention_scratch(thread));
    }
}

void PassTiles::run_candidates(int32_t first_row, int32_t last_row) const {
    for (int32_t row = first_row; row < last_row; ++row) {
        const auto index = static_cast<size_t>(row);
        kernels.candidates(buffers.logits.data() + at(row, plan.vocabulary), plan.vocabulary,
                           buffers.inverse_temperatures[index], &buffers.results[index]);
    }
}

}  // namespace treadle::cpu
