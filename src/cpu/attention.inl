// Attention over the paged cache, once for all tiers. Included by kernels.inl.
//
// One call goes over the cache once, in spans of 256 positions. It takes the rows and heads that share a KV head in tiles of up
// to attention_tile_max, so that what is loaded of keys and values into registers serves a tile, and what came into the
// first-level cache serves all tiles:
//
//     span:   scores ── one maximum ── p = exp2(s − maximum) ── sum of p, Σ p · v   = a part (maximum, output, sum)
//     group:  16 spans' parts merged ── a part
//     end:    the groups' parts merged ── output / sum
//
// attend does all of it, and keeps the parts of one group's spans. Of a long context attend_spans does the first step for some of
// the spans, as many calls as threads should share it, and merge_spans the other two.
//
// "Row-head" below is row * (heads of the KV head) + head: later ones see at least as far as earlier ones.
//
// Invariant: every number of a row-head comes from the same operations in the same order, however the tiles fall.

// The queries as codes, where keys are codes: what a score's integer dots read. In the place of the packed queries.
struct QueryCodes {
    static constexpr int32_t kept_max = 32;
    int8_t* q;             // (row_heads, head_dim)
    int8_t* kept;          // (row_heads, kept_max)
    float* scale;          // (row_heads, groups of the keys)
    int32_t* offset;       // (row_heads, groups): 128 · Σ q
    float* kept_scale;     // (row_heads)
    int32_t* kept_offset;  // (row_heads)
};

// Of one KV head in one block of keys or values.
struct KvHead {
    const uint8_t* codes;
    const uint8_t* kept;
    const uint16_t* scales;       // (groups, 16)
    const uint16_t* kept_scales;  // (16)
};

TREADLE_LANES_WORD KvHead kv_head_of(const KvLayout& layout, const uint8_t* block, int32_t head) {
    const auto index = static_cast<size_t>(head);
    const auto* halves = reinterpret_cast<const uint16_t*>(block);
    return {block + index * layout.code_step, block + layout.kept_at + index * layout.kept_step,
            halves + (layout.scales_at + index * layout.scale_step) / 2,
            halves + layout.kept_scales_at / 2 + 16 * index};
}

struct Attention {  // what one call works on
    int32_t head_dim;
    int32_t heads;  // of the KV head
    int32_t rows;
    int32_t first_position;
    const LayerCache& cache;
    int32_t kv_head;
    const int32_t* block_table;
    AttentionScratch layout;
    float* queries;
    float* scores;
    SpanParts spans;
    float* group_max;
    float* group_parts;
    QueryCodes codes;

    int32_t row_heads() const { return rows * heads; }
    int32_t blocks() const { return (first_position + rows + 15) / 16; }
    int32_t position(int32_t row_head) const { return first_position + row_head / heads; }
    int32_t visible(int32_t row_head, int32_t span) const {  // positions of the span that it sees
        const int32_t count = position(row_head) + 1 - span * span_positions;
        return count < span_positions ? count : span_positions;
    }
    float* scores_of(int32_t row_head) const {
        return scores + static_cast<size_t>(row_head) * span_positions;
    }
    size_t span_at(int32_t row_head, int32_t span) const {
        return static_cast<size_t>(row_head) * spans.kept + static_cast<size_t>(span) % spans.kept;
    }
    float* part_of(int32_t row_head, int32_t span) const {
        return spans.parts + span_at(row_head, span) * layout.part_floats;
    }
    size_t part_stride() const { return layout.part_floats * spans.kept; }  // from a row-head to the next
    KvHead keys(int32_t block) const {
        return kv_head_of(cache.keys, cache.key_block(block_table[block]), kv_head);
    }
    KvHead values(int32_t block) const {
        return kv_head_of(cache.values, cache.value_block(block_table[block]), kv_head);
    }
};

constexpr int32_t attention_tile_max = accumulators_max < 12 ? accumulators_max : 12;

// The next tile's rows and heads, of `rest`: as even as the most that a tile takes allow.
static int32_t tile_size(int32_t rest, int32_t most) {
    const int32_t tiles = (rest + most - 1) / most;
    return (rest + tiles - 1) / tiles;
}

// How many blocks, or times 16 dimensions, a tile of that size takes at once, as the registers allow.
template <int tile>
constexpr int columns_of = accumulators_max / tile >= 4   ? 4
                           : accumulators_max / tile >= 2 ? 2
                                                          : 1;

// Blocks lie anywhere, so no hardware foresees where the next one begins. Kernels ask for the one some blocks ahead while they
// compute, line by line: as many requests at once as one block has would hold up what is read now. They go to the second-level
// cache, which can wait for more lines than the first.
static int32_t block_ahead(const Attention& a, int32_t block) {
    constexpr int32_t blocks_ahead = 8;
    return block + blocks_ahead < a.blocks() ? block + blocks_ahead : block;
}

TREADLE_LANES_WORD void prefetch_lines(const void* from, size_t bytes) {
    constexpr int second_level = 2;
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(static_cast<const uint8_t*>(from) + i, 0, second_level);
}

#include "cpu/attention_keys.inl"

#include "cpu/attention_values.inl"

// Turns the scores of one row-head into probabilities over the first `visible` positions of a span (the rest becomes +0, by
// select) and returns their maximum and, in all lanes, their sum: lanes by position mod 16, ascending adds, tree.
TREADLE_LANES_WORD float to_probabilities(float* scores, int32_t visible, F32x16* sum_of_all) {
    const F32x16 lowest = set1(-std::numeric_limits<float>::infinity());
    const int32_t whole = visible & ~15;
    const I32x16 mask = less(lane_numbers(), set1(visible - whole));
    F32x16 most = lowest;
    for (int32_t i = 0; i < whole; i += 16) most = max(load(scores + i), most);
    if (whole < visible) most = max(select(mask, load(scores + whole), lowest), most);

    const float maximum = max_lane(most);
    F32x16 sums = zero_f32();
    for (int32_t i = 0; i < whole; i += 16) {
        const F32x16 p = exp2(sub(load(scores + i), set1(maximum)));
        store(scores + i, p);
        sums = add(sums, p);
    }
    if (whole < visible) {
        const F32x16 p = select(mask, exp2(sub(load(scores + whole), set1(maximum))), zero_f32());
        store(scores + whole, p);
        sums = add(sums, p);
    }
    *sum_of_all = set1(sum(sums));
    return maximum;
}

// Scores of all row-heads from `first` on, whose queries are prepared, against a span of which the last sees `visible` positions.
// A few blocks at a time go through all tiles, while they are in the first-level cache.
static void score_span(const Attention& a, int32_t first, int32_t first_block, int32_t visible) {
    const int32_t blocks = (visible + 15) / 16;
    for (int32_t begin = 0; begin < blocks; begin += attention_blocks_at_once) {
        const int32_t end =
            blocks - begin < attention_blocks_at_once ? blocks : begin + attention_blocks_at_once;
        score_tiles(a, first, first_block, begin, end);
    }
}

// One span for all row-heads from `first` on, each of which sees at least its first position.
static void attend_span(const Attention& a, int32_t first, int32_t span) {
    score_span(a, first, span * (span_positions / 16), a.visible(a.row_heads() - 1, span));
    for (int32_t row_head = first; row_head < a.row_heads(); row_head++) {
        F32x16 sum_of_all;
        const float maximum = to_probabilities(a.scores_of(row_head), a.visible(row_head, span), &sum_of_all);
        a.spans.maxima[a.span_at(row_head, span)] = maximum;
        float* const part = a.part_of(row_head, span);
        for (int32_t d = 0; d < a.head_dim; d += 16) store(part + d, zero_f32());
        store(part + a.head_dim, sum_of_all);
    }
    switch (a.cache.values.format.type) {
        case KvType::f16: return value_span<KvType::f16>(a, first, span);
        case KvType::q8_0: return value_span<KvType::q8_0>(a, first, span);
        default: return value_span<KvType::tbq4>(a, first, span);
    }
}

// out = Σ exp2(m − maximum) · part over `count` parts, ascending fma from +0, against the maximum of all, which is returned.
// maxima may be read up to a multiple of 16, whatever is there.
static float merge_parts(const float* maxima, const float* parts, int32_t count, size_t part_floats,
                         float* out) {
    const F32x16 lowest = set1(-std::numeric_limits<float>::infinity());
    F32x16 most = lowest;
    for (int32_t k = 0; k < count; k += 16)
        most = max(select(less(lane_numbers(), set1(count - k)), load(maxima + k), lowest), most);
    const float maximum = max_lane(most);
    for (size_t d = 0; d < part_floats; d += 16) store(out + d, zero_f32());
    for (int32_t begin = 0; begin < count; begin += 16) {
        float weights[16];
        store(weights, exp2(sub(load(maxima + begin), set1(maximum))));
        const int32_t used = count - begin < 16 ? count - begin : 16;
        for (size_t d = 0; d < part_floats; d += 16) {
            F32x16 sums = load(out + d);
            for (int32_t k = 0; k < used; k++)
                sums = fma(set1(weights[k]), load(parts + static_cast<size_t>(begin + k) * part_floats + d),
                           sums);
            store(out + d, sums);
        }
    }
    return maximum;
}

// Merges the spans of a group, of those row-heads that see some of it.
static void end_group(const Attention& a, int32_t group) {
    const int32_t first_span = group * group_spans;
    for (int32_t row_head = 0; row_head < a.row_heads(); row_head++) {
        const int32_t spans_seen = a.position(row_head) / span_positions + 1 - first_span;
        if (spans_seen <= 0) continue;
        const size_t at = static_cast<size_t>(row_head);
        a.group_max[at * a.layout.groups_padded + static_cast<size_t>(group)] = merge_parts(
            a.spans.maxima + a.span_at(row_head, first_span), a.part_of(row_head, first_span),
            spans_seen < group_spans ? spans_seen : group_spans, a.layout.part_floats,
            a.group_parts + (at * a.layout.groups + static_cast<size_t>(group)) * a.layout.part_floats);
    }
}

// Merges the groups and divides by the sum: one division per element.
static void write_output(const Attention& a, float* attended, size_t stride) {
    for (int32_t row_head = 0; row_head < a.row_heads(); row_head++) {
        const size_t at = static_cast<size_t>(row_head);
        float* const merged = a.spans.parts;  // no longer needed
        merge_parts(a.group_max + at * a.layout.groups_padded,
                    a.group_parts + at * a.layout.groups * a.layout.part_floats,
                    a.position(row_head) / (span_positions * group_spans) + 1, a.layout.part_floats, merged);
        float* const out = attended + static_cast<size_t>(row_head / a.heads) * stride +
                           static_cast<size_t>(row_head % a.heads) * static_cast<size_t>(a.head_dim);
        const F32x16 sum_of_all = load(merged + a.head_dim);
        for (int32_t d = 0; d < a.head_dim; d += 16) store(out + d, div(load(merged + d), sum_of_all));
        if (a.cache.values.format.type != KvType::tbq4) continue;
        for (int32_t d = 0; d < a.head_dim; d += a.cache.values.group) {
            if (a.cache.values.group == 64)
                rotate_back<4>(out + d);
            else
                rotate_back<8>(out + d);
        }
    }
}

static QueryCodes query_codes(float* scratch, size_t row_heads, int32_t head_dim, int32_t groups) {
    auto* const q = reinterpret_cast<int8_t*>(scratch);
    int8_t* const kept = q + row_heads * static_cast<size_t>(head_dim);
    auto* const scale = reinterpret_cast<float*>(kept + row_heads * QueryCodes::kept_max);
    auto* const offset = reinterpret_cast<int32_t*>(scale + row_heads * static_cast<size_t>(groups));
    auto* const kept_scale = reinterpret_cast<float*>(offset + row_heads * static_cast<size_t>(groups));
    return {q, kept, scale, offset, kept_scale, reinterpret_cast<int32_t*>(kept_scale + row_heads)};
}

// What the kernels below work on. `spans` null: the spans of a group, in scratch.
static Attention attention_of(const AttentionShape& shape, const LayerCache& cache, const int32_t* block_table,
                              int32_t first_position, int32_t rows, int32_t kv_head, const SpanParts* spans,
                              void* scratch) {
    const AttentionScratch layout(shape, rows, first_position + rows);
    float* const floats = static_cast<float*>(scratch);
    return {shape.head_dim,
            shape.heads / shape.kv_heads,
            rows,
            first_position,
            cache,
            kv_head,
            block_table,
            layout,
            floats,
            floats + layout.scores_at,
            spans != nullptr
                ? *spans
                : SpanParts{floats + layout.span_max_at, floats + layout.span_parts_at, group_spans},
            floats + layout.group_max_at,
            floats + layout.group_parts_at,
            query_codes(floats, layout.row_heads, shape.head_dim, cache.keys.groups)};
}

// Prepares the queries of the row-heads that see something of a span, if it was not done for the span before, and goes over it.
// `prepared` is the first of those that are; -1: none.
static void go_over_span(const Attention& a, const float* queries, size_t stride, int32_t span,
                         int32_t* prepared) {
    const int32_t first_row = span * span_positions - a.first_position;  // rows before it see nothing of it
    const int32_t first = first_row > 0 ? first_row * a.heads : 0;
    const bool coded = a.cache.keys.format.type != KvType::f16;
    if (coded && *prepared < 0) quantize_queries(a, queries, stride);
    if (!coded && first != *prepared) pack_queries(a, queries, stride, first);
    *prepared = first;
    attend_span(a, first, span);
}

static size_t first_head_at(const AttentionShape& shape, int32_t kv_head) {
    return static_cast<size_t>(kv_head) * static_cast<size_t>(shape.heads / shape.kv_heads) *
           static_cast<size_t>(shape.head_dim);
}

static void attend(const AttentionShape& shape, const LayerCache& cache, const int32_t* block_table,
            int32_t first_position, int32_t rows, int32_t kv_head, const float* qkv, size_t qkv_stride,
            float* attended, size_t attended_stride, void* scratch) {
    const Attention a =
        attention_of(shape, cache, block_table, first_position, rows, kv_head, nullptr, scratch);
    const size_t first_head = first_head_at(shape, kv_head);
    const int32_t last_span = (first_position + rows - 1) / span_positions;
    int32_t prepared = -1;
    for (int32_t span = 0; span <= last_span; span++) {
        go_over_span(a, qkv + first_head, qkv_stride, span, &prepared);
        if (span == last_span || span % group_spans == group_spans - 1) end_group(a, span / group_spans);
    }
    write_output(a, attended + first_head, attended_stride);
}

static void attend_spans(const AttentionShape& shape, const LayerCache& cache, const int32_t* block_table,
            int32_t first_position, int32_t rows, int32_t kv_head, const float* qkv, size_t qkv_stride,
            int32_t first_span, int32_t end_span, const SpanParts& parts, void* scratch) {
    const Attention a =
        attention_of(shape, cache, block_table, first_position, rows, kv_head, &parts, scratch);
    int32_t prepared = -1;
    for (int32_t span = first_span; span < end_span; span++)
        go_over_span(a, qkv + first_head_at(shape, kv_head), qkv_stride, span, &prepared);
}

static void merge_spans(const AttentionShape& shape, const LayerCache& cache, int32_t first_position,
            int32_t rows, int32_t kv_head, const SpanParts& parts, float* attended,
            size_t attended_stride, void* scratch) {
    const Attention a = attention_of(shape, cache, nullptr, first_position, rows, kv_head, &parts, scratch);
    const int32_t last_group = (first_position + rows - 1) / (span_positions * group_spans);
    for (int32_t group = 0; group <= last_group; group++) end_group(a, group);
    write_output(a, attended + first_head_at(shape, kv_head), attended_stride);
}
