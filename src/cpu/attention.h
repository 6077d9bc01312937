// Attention over the paged cache (rule 5): what kernels.h calls attend, per tier. attention.inl holds it once for all tiers.
//
// Invariant: what a row gets depends on its queries and on the cache up to its position, never on how many rows a call has,
// where the blocks lie, or what unwritten slots hold.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"

namespace treadle::cpu {

constexpr int32_t group_spans = 16;
constexpr int32_t attention_blocks_at_once =
    4;  // whose keys or values stay in the first-level cache for all tiles

// How attend divides its scratch; all counts are floats and multiples of 16. A part is what one span or one group contributes to
// one row and head: its output, then its sum 16 times (so that the sum is merged like 16 more dimensions).
//
//     queries      (row_heads, head_dim)                in tiles, each (head_dim, rows and heads of the tile)
//     scores       (row_heads, 256)                     of the span under way, then probabilities
//     span_max     (row_heads, 16)                      not where the parts of spans go elsewhere (SpanParts)
//     span_parts   (row_heads, 16, part_floats)         of the group under way
//     group_max    (row_heads, groups up to 16 more)
//     group_parts  (row_heads, groups, part_floats)
struct AttentionScratch {
    AttentionScratch(const AttentionShape& shape, int32_t rows, int32_t positions)
        : row_heads(static_cast<size_t>(rows) * static_cast<size_t>(shape.heads / shape.kv_heads)),
          part_floats(static_cast<size_t>(shape.head_dim) + 16),
          groups((static_cast<size_t>(positions) + span_positions * group_spans - 1) /
                 (span_positions * group_spans)),
          groups_padded((groups + 15) / 16 * 16), scores_at(row_heads * static_cast<size_t>(shape.head_dim)),
          span_max_at(scores_at + row_heads * span_positions),
          span_parts_at(span_max_at + row_heads * group_spans),
          group_max_at(span_parts_at + row_heads * group_spans * part_floats),
          group_parts_at(group_max_at + row_heads * groups_padded),
          floats(group_parts_at + row_heads * groups * part_floats) {}

    size_t row_heads;
    size_t part_floats;
    size_t groups;
    size_t groups_padded;
    size_t scores_at;
    size_t span_max_at;
    size_t span_parts_at;
    size_t group_max_at;
    size_t group_parts_at;
    size_t floats;
};

}  // namespace treadle::cpu
