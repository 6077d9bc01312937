// Outputs of one KV head's rows and heads: sums of values weighted by probabilities, per format of the cache. Included by
// attention.inl.
//
//     f16             acc = fma(p, v, acc)
//     q8_0, tbq4      acc = fma(p · v_scale, float(code), acc); of tbq4 float(level), and the sums stay rotated until the end
//
// Lanes are dimensions; positions ascend.

constexpr int32_t value_group(KvType type) {  // least dimensions that share a scale; the largest tile takes 64 at once
    return type == KvType::q8_0 ? 32 : 64;
}

// Sixteen dimensions of a position, `c` times 16 after `from`; half: of the pair of 16 in which nibbles lie.
template <KvType type, int half>
TREADLE_LANES_WORD F32x16 load_value(const uint8_t* from, int c, const Levels& levels) {
    if constexpr (type == KvType::f16) return load_f16(reinterpret_cast<const uint16_t*>(from) + 16 * c);
    if constexpr (type == KvType::q8_0) return to_f32(load_i8(reinterpret_cast<const int8_t*>(from) + 16 * c));
    return look_up<half>(levels, from + c / 2 * 16);
}

constexpr size_t value_bytes(KvType type, int32_t dimensions) {
    const auto count = static_cast<size_t>(dimensions);
    return type == KvType::f16 ? 2 * count : type == KvType::q8_0 ? count : count / 32 * 16;
}

// Goes on with the outputs of `columns` times 16 dimensions of a tile over positions begin .. end - 1 of a span, begin a multiple of
// 16: fma chains, ascending.
template <KvType type, int tile, int columns, int first_half = 0>
TREADLE_LANES_WORD void add_values(const Attention& a, const Levels& levels, int32_t first_block, int32_t begin,
                                   int32_t end, int32_t dimension, const float* p, float* out,
                                   size_t out_stride) {
    constexpr int groups = type == KvType::f16 ? 1 : (columns * 16 + value_group(type) - 1) / value_group(type);
    constexpr int32_t group = value_group(type);
    const KvLayout& layout = a.cache.values;
    const size_t position_bytes = value_bytes(type, a.head_dim);
    F32x16 sums[tile][columns];
    for (int i = 0; i < tile; i++)
        for (int c = 0; c < columns; c++)
            sums[i][c] = load(out + static_cast<size_t>(i) * out_stride + c * 16);
    for (; begin < end; begin += 16) {
        const KvHead values = a.values(first_block + begin / 16);
        const KvHead next = a.values(block_ahead(a, first_block + begin / 16));
        const uint8_t* from = values.codes + value_bytes(type, dimension);
        const uint8_t* ahead = next.codes + value_bytes(type, dimension);
        if constexpr (type != KvType::f16) prefetch_lines(next.scales, 1);
        float weights[groups][tile][16];
        if constexpr (type != KvType::f16) {
            for (int g = 0; g < groups; g++) {
                const F32x16 scale = load_f16(values.scales + 16 * (dimension / layout.group + g));
                for (int i = 0; i < tile; i++)
                    store(weights[g][i], mul(load(p + i * span_positions + begin), scale));
            }
        }
        const int32_t count = end - begin < 16 ? end - begin : 16;
        for (int32_t j = 0; j < count; j++, from += position_bytes, ahead += position_bytes) {
            prefetch_lines(ahead, value_bytes(type, 16 * columns));
            for (int c = 0; c < columns; c++) {
                const F32x16 value = (c + first_half) % 2 == 0 ? load_value<type, 0>(from, c, levels)
                                                               : load_value<type, 1>(from, c, levels);
                for (int i = 0; i < tile; i++) {
                    const float weight = type == KvType::f16 ? p[i * span_positions + begin + j]
                                                             : weights[c * 16 / group % groups][i][j];
                    sums[i][c] = fma(set1(weight), value, sums[i][c]);
                }
            }
        }
    }
    for (int i = 0; i < tile; i++)
        for (int c = 0; c < columns; c++)
            store(out + static_cast<size_t>(i) * out_stride + c * 16, sums[i][c]);
}

// The same for all dimensions.
template <KvType type, int tile>
static void value_tile(const Attention& a, int32_t first_block, int32_t begin, int32_t end, const float* p,
                       float* out, size_t out_stride) {
    constexpr int columns = columns_of<tile>;
    const Levels levels = load_levels(tbq_levels.data());
    int32_t d = 0;
    if constexpr (columns > 1) {
        for (; d + 16 * columns <= a.head_dim; d += 16 * columns)
            add_values<type, tile, columns>(a, levels, first_block, begin, end, d, p, out + d, out_stride);
    }
    for (; d < a.head_dim; d += 16) {
        if (type == KvType::tbq4 && d % 32 != 0)
            add_values<type, tile, 1, 1>(a, levels, first_block, begin, end, d, p, out + d, out_stride);
        else
            add_values<type, tile, 1>(a, levels, first_block, begin, end, d, p, out + d, out_stride);
    }
}

template <KvType type, int size = attention_tile_max>
static void value_any_tile(int32_t tile, const Attention& a, int32_t first_block, int32_t begin, int32_t end,
                           const float* p, float* out, size_t out_stride) {
    if constexpr (size > 1) {
        if (tile < size)
            return value_any_tile<type, size - 1>(tile, a, first_block, begin, end, p, out, out_stride);
    }
    value_tile<type, size>(a, first_block, begin, end, p, out, out_stride);
}

// Goes on with one row-head's chains over positions begin .. end - 1 of a span, which earlier row-heads of its tile don't see.
template <KvType type>
static void add_last_values(const Attention& a, int32_t first_block, int32_t begin, int32_t end,
                            const float* p, float* out) {
    const Levels levels = load_levels(tbq_levels.data());
    for (int32_t j = begin; j < end; j++) {
        const KvHead values = a.values(first_block + j / 16);
        const uint8_t* from =
            values.codes + static_cast<size_t>(j % 16) * value_bytes(type, a.head_dim);
        for (int32_t c = 0; c < a.head_dim / 16; c++) {
            float weights[16];
            store(weights, load(p + j / 16 * 16));
            if constexpr (type != KvType::f16)
                store(weights, mul(load(weights), load_f16(values.scales + 16 * (16 * c / a.cache.values.group))));
            const F32x16 value =
                c % 2 == 0 ? load_value<type, 0>(from, c, levels) : load_value<type, 1>(from, c, levels);
            store(out + 16 * c, fma(set1(weights[j % 16]), value, load(out + 16 * c)));
        }
    }
}

// Outputs of all row-heads from `first` on, which are +0 so far. What only later rows of a tile see is added to each on its own:
// an unseen value is left out, not multiplied by zero.
template <KvType type>
static void value_span(const Attention& a, int32_t first, int32_t span) {
    const int32_t first_block = span * (span_positions / 16);
    constexpr int32_t step = attention_blocks_at_once * 16;
    const int32_t visible_to_last = a.visible(a.row_heads() - 1, span);
    for (int32_t begin = 0; begin < visible_to_last; begin += step) {
        for (int32_t row_head = first; row_head < a.row_heads();) {
            const int32_t tile = tile_size(a.row_heads() - row_head, attention_tile_max);
            const int32_t common = a.visible(row_head, span);
            const int32_t end = common - begin < step ? common : begin + step;
            value_any_tile<type>(tile, a, first_block, begin, end, a.scores_of(row_head),
                                 a.part_of(row_head, span), a.part_stride());
            row_head += tile;
        }
    }
    for (int32_t row_head = first; row_head < a.row_heads();) {
        const int32_t tile = tile_size(a.row_heads() - row_head, attention_tile_max);
        for (int32_t i = 1; i < tile; i++)
            add_last_values<type>(a, first_block, a.visible(row_head, span), a.visible(row_head + i, span),
                                  a.scores_of(row_head + i), a.part_of(row_head + i, span));
        row_head += tile;
    }
}

// out (head_dim) back from the space of tbq4's values: butterflies, f32(1 / √n), signs.
template <int vectors>
TREADLE_LANES_WORD void rotate_back(float* x) {
    F32x16 v[vectors];
    for (int i = 0; i < vectors; i++) v[i] = load(x + 16 * i);
    hadamard(v);
    for (int i = 0; i < vectors; i++) v[i] = mul(v[i], set1(tbq_inverse_root(16 * vectors)));
    flip_signs(v);
    for (int i = 0; i < vectors; i++) store(x + 16 * i, v[i]);
}
