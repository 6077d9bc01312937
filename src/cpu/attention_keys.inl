// Scores of one KV head's rows and heads against blocks of keys, per format of the cache. Included by attention.inl.
//
//     f16            one chain of fma over the dimensions, ascending from +0
//     q8_0           the query in int8 per 32:   s = fma(float(dot), q_scale · k_scale, s) per group, ascending from +0
//     tbq4, tbq4x    the query split and rotated like a key, in int8 with one scale: the same step per group, then one for the
//                    kept dimensions
//
// Lanes are the 16 positions of a block.

// ---- Queries

// Copies the queries from row-head `first` on into tiles, each (head_dim, tile), to be read one dimension after the other.
static void pack_queries(const Attention& a, const float* queries, size_t stride, int32_t first) {
    float* to = a.queries;
    for (int32_t begin = first; begin < a.row_heads();) {
        const int32_t tile = tile_size(a.row_heads() - begin, attention_tile_max);
        for (int32_t i = 0; i < tile; i++) {
            const int32_t row_head = begin + i;
            const float* from = queries + static_cast<size_t>(row_head / a.heads) * stride +
                                static_cast<size_t>(row_head % a.heads) * static_cast<size_t>(a.head_dim);
            for (int32_t d = 0; d < a.head_dim; d++) to[d * tile + i] = from[d];
        }
        begin += tile;
        to += static_cast<size_t>(tile) * static_cast<size_t>(a.head_dim);
    }
}

// What biased codes count too much: 128 · Σ q over `n` values, a multiple of 16.
TREADLE_LANES_WORD int32_t code_offset(const int32_t* sums, int32_t n) {
    int32_t total = 0;
    for (int32_t i = 0; i < n / 16; i++) total += sums[i];
    return 128 * total;
}

template <int vectors>
TREADLE_LANES_WORD void rotate_query(float* x) {
    F32x16 v[vectors];
    for (int i = 0; i < vectors; i++) v[i] = load(x + 16 * i);
    flip_signs(v);
    hadamard(v);
    for (int i = 0; i < vectors; i++) store(x + 16 * i, mul(v[i], set1(tbq_inverse_root(16 * vectors))));
}

static void quantize_query(const Attention& a, const float* query, int32_t row_head) {
    const KvLayout& keys = a.cache.keys;
    const QueryCodes& codes = a.codes;
    const auto index = static_cast<size_t>(row_head);
    int8_t* const q = codes.q + index * static_cast<size_t>(a.head_dim);
    float* const scale = codes.scale + row_head * keys.groups;
    int32_t* const offset = codes.offset + row_head * keys.groups;
    int32_t sums[2 * tbq_group_max / 16];
    if (keys.format.type == KvType::q8_0) {
        for (int32_t g = 0; g < keys.groups; g++) {
            quantize_run(query + 32 * g, 32, q + 32 * g, scale + g, sums);
            offset[g] = code_offset(sums, 32);
        }
        return;
    }
    float kept[QueryCodes::kept_max];
    float rotated[2 * tbq_group_max];
    split_kept(query, a.head_dim, a.cache.kept_dims + a.kv_head * keys.kept, keys.kept, kept, rotated);
    if (keys.kept > 0) {
        const int32_t padded = (keys.kept + 15) / 16 * 16;
        quantize_run(kept, padded, codes.kept + index * QueryCodes::kept_max, codes.kept_scale + row_head, sums);
        codes.kept_offset[row_head] = code_offset(sums, padded);
    }
    for (int32_t g = 0; g < keys.groups; g++) {
        if (keys.group == 64)
            rotate_query<4>(rotated + 64 * g);
        else
            rotate_query<8>(rotated + 128 * g);
    }
    quantize_run(rotated, a.head_dim, q, scale, sums);
    for (int32_t g = 0; g < keys.groups; g++) {
        scale[g] = scale[0];
        offset[g] = code_offset(sums + g * keys.group / 16, keys.group);
    }
}

static void quantize_queries(const Attention& a, const float* queries, size_t stride) {
    for (int32_t row_head = 0; row_head < a.row_heads(); row_head++)
        quantize_query(a,
                       queries + static_cast<size_t>(row_head / a.heads) * stride +
                           static_cast<size_t>(row_head % a.heads) * static_cast<size_t>(a.head_dim),
                       row_head);
}

// ---- f16

// A tile against `columns` blocks.
template <int tile, int columns>
TREADLE_LANES_WORD void score_blocks(const Attention& a, const float* queries, int32_t block, float* scores) {
    const uint16_t* keys[columns];
    const uint16_t* ahead[columns];
    F32x16 sums[tile][columns];
    for (int c = 0; c < columns; c++) {
        keys[c] = reinterpret_cast<const uint16_t*>(a.keys(block + c).codes);
        ahead[c] = reinterpret_cast<const uint16_t*>(a.keys(block_ahead(a, block + c)).codes);
        for (int i = 0; i < tile; i++) sums[i][c] = zero_f32();
    }
    for (int32_t begin = 0; begin < a.head_dim; begin += 4) {  // by four: unrolled
        for (int c = 0; c < columns; c++) prefetch_lines(ahead[c] + begin * 16, 128);
        for (int32_t d = begin; d < begin + 4; d++) {
            for (int c = 0; c < columns; c++) {
                const F32x16 key = load_f16(keys[c] + d * 16);
                for (int i = 0; i < tile; i++) sums[i][c] = fma(set1(queries[d * tile + i]), key, sums[i][c]);
            }
        }
    }
    for (int c = 0; c < columns; c++)
        for (int i = 0; i < tile; i++) store(scores + i * span_positions + c * 16, sums[i][c]);
}

template <int tile>
static void score_f16(const Attention& a, const float* queries, int32_t first_block, int32_t begin, int32_t end,
                      float* scores) {
    constexpr int columns = columns_of<tile>;
    int32_t block = begin;
    for (; block + columns <= end; block += columns)
        score_blocks<tile, columns>(a, queries, first_block + block, scores + block * 16);
    for (; block < end; block++) score_blocks<tile, 1>(a, queries, first_block + block, scores + block * 16);
}

// ---- Codes

// The kept dimensions: `quads` lines of bytes.
template <int32_t quads, int tile>
TREADLE_LANES_WORD void add_kept(const Attention& a, int32_t row_head, const KvHead& keys, const Table16& table,
                                 F32x16 (&s)[tile]) {
    const int8_t* q[tile];
    for (int i = 0; i < tile; i++) q[i] = a.codes.kept + (row_head + i) * QueryCodes::kept_max;
    I32x16 total[tile];
    dot_quads<PackedCodes::u8, 16, 0, quads>(keys.kept, q, 0, table, total);
    const F32x16 scale = load_f16(keys.kept_scales);
    TREADLE_UNROLL
    for (int i = 0; i < tile; i++) {
        total[i] = sub(total[i], set1(a.codes.kept_offset[row_head + i]));
        s[i] = fma(to_f32(total[i]), mul(scale, set1(a.codes.kept_scale[row_head + i])), s[i]);
    }
}

template <PackedCodes kind, int tile>
TREADLE_LANES_WORD void score_block(const Attention& a, int32_t row_head, int32_t block, const Table16& table,
                                    float* scores) {
    constexpr int32_t line_bytes = kind == PackedCodes::u8 ? 8 * 64 : 4 * 64;  // of 32 dimensions
    const KvLayout& layout = a.cache.keys;
    const KvHead keys = a.keys(block);
    const KvHead next = a.keys(block_ahead(a, block));
    const int8_t* q[tile];
    F32x16 s[tile];
    TREADLE_UNROLL
    for (int i = 0; i < tile; i++) {
        q[i] = a.codes.q + (row_head + i) * a.head_dim;
        s[i] = zero_f32();
    }
    const uint8_t* lines = keys.codes;
    const uint8_t* ahead = next.codes;
    prefetch_lines(next.scales, 1);
    for (int32_t g = 0, k = 0; g < layout.groups; g++) {
        I32x16 total[tile];
        prefetch_lines(ahead, line_bytes);
        dot_quads<kind, 32, 0, 8>(lines, q, k, table, total);
        lines += line_bytes;
        ahead += line_bytes;
        k += 32;
        if constexpr (kind == PackedCodes::table4) {
            for (; k < (g + 1) * layout.group; k += 32, lines += line_bytes, ahead += line_bytes) {
                prefetch_lines(ahead, line_bytes);
                dot_quads<kind, 32, 0, 8, tile, false>(lines, q, k, table, total);
            }
        }
        const F32x16 scale = load_f16(keys.scales + 16 * g);
        TREADLE_UNROLL
        for (int i = 0; i < tile; i++) {
            const int32_t at = (row_head + i) * layout.groups + g;
            total[i] = sub(total[i], set1(a.codes.offset[at]));
            s[i] = fma(to_f32(total[i]), mul(scale, set1(a.codes.scale[at])), s[i]);
        }
    }
    if constexpr (kind == PackedCodes::table4) {
        if (layout.kept == 8) add_kept<2>(a, row_head, keys, table, s);
        if (layout.kept == 16) add_kept<4>(a, row_head, keys, table, s);
        if (layout.kept == 32) add_kept<8>(a, row_head, keys, table, s);
    }
    for (int i = 0; i < tile; i++) store(scores + i * span_positions, s[i]);
}

template <PackedCodes kind, int tile>
static void score_codes(const Attention& a, int32_t row_head, int32_t first_block, int32_t begin, int32_t end,
                        float* scores) {
    const Table16 table = load_table(tbq_level_bytes.data());
    for (int32_t block = begin; block < end; block++)
        score_block<kind, tile>(a, row_head, first_block + block, table, scores + block * 16);
}

// ---- Tiles

template <int size = attention_tile_max>
static void score_f16_tile(int32_t tile, const Attention& a, const float* queries, int32_t first_block,
                           int32_t begin, int32_t end, float* scores) {
    if constexpr (size > 1) {
        if (tile < size) return score_f16_tile<size - 1>(tile, a, queries, first_block, begin, end, scores);
    }
    score_f16<size>(a, queries, first_block, begin, end, scores);
}

template <PackedCodes kind, int size = tile_rows>
static void score_codes_tile(int32_t tile, const Attention& a, int32_t row_head, int32_t first_block,
                             int32_t begin, int32_t end, float* scores) {
    if constexpr (size > 1) {
        if (tile < size)
            return score_codes_tile<kind, size - 1>(tile, a, row_head, first_block, begin, end, scores);
    }
    score_codes<kind, size>(a, row_head, first_block, begin, end, scores);
}

// All row-heads from `first` on, which are prepared, against blocks begin .. end - 1 of a span.
static void score_tiles(const Attention& a, int32_t first, int32_t first_block, int32_t begin, int32_t end) {
    const KvType type = a.cache.keys.format.type;
    const int32_t tile_max = type == KvType::f16 ? attention_tile_max : tile_rows;
    const float* queries = a.queries;
    for (int32_t row_head = first; row_head < a.row_heads();) {
        const int32_t tile = tile_size(a.row_heads() - row_head, tile_max);
        float* const scores = a.scores_of(row_head);
        if (type == KvType::f16)
            score_f16_tile(tile, a, queries, first_block, begin, end, scores);
        else if (type == KvType::q8_0)
            score_codes_tile<PackedCodes::u8>(tile, a, row_head, first_block, begin, end, scores);
        else
            score_codes_tile<PackedCodes::table4>(tile, a, row_head, first_block, begin, end, scores);
        row_head += tile;
        queries += tile * a.head_dim;
    }
}
