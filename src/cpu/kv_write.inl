// Writing keys and values to the cache in its formats (kv_layout.h), once for all tiers. Included by kernels.inl.
//
// Invariant: what a position's slot holds depends on its own keys and values only, by bytes; rows of a pass write different bytes.

// ---- The rotation of tbq4: signs, then butterflies (a + b, a - b) of strides n / 2 .. 1.

template <int stride>
TREADLE_LANES_WORD F32x16 butterfly(F32x16 a) {
    constexpr int bit = stride == 8 ? 3 : stride == 4 ? 2 : stride == 2 ? 1 : 0;
    const I32x16 second = bit_and(shift_left<31 - bit>(lane_numbers()), set1(INT32_MIN));
    return add(swap_lanes<stride>(a), f32_of_bits(bit_xor(bits_of(a), second)));
}

template <int vectors>
TREADLE_LANES_WORD void hadamard(F32x16 (&v)[vectors]) {
    for (int stride = vectors / 2; stride > 0; stride /= 2) {
        for (int i = 0; i < vectors; i++) {
            if ((i & stride) != 0) continue;
            const F32x16 a = v[i];
            const F32x16 b = v[i + stride];
            v[i] = add(a, b);
            v[i + stride] = sub(a, b);
        }
    }
    for (int i = 0; i < vectors; i++)
        v[i] = butterfly<1>(butterfly<2>(butterfly<4>(butterfly<8>(v[i]))));
}

template <int vectors>
TREADLE_LANES_WORD void flip_signs(F32x16 (&v)[vectors]) {
    for (int i = 0; i < vectors; i++)
        v[i] = f32_of_bits(bit_xor(bits_of(v[i]), load(tbq_signs.data() + 16 * i)));
}

// The sum of all values by the tree of strides n / 2 .. 1.
template <int vectors>
TREADLE_LANES_WORD float tree_sum(F32x16 (&v)[vectors]) {
    for (int stride = vectors / 2; stride > 0; stride /= 2)
        for (int i = 0; i < stride; i++) v[i] = add(v[i], v[i + stride]);
    return sum(v[0]);
}

// ---- Codes

TREADLE_LANES_WORD uint16_t f16_of(float value) {
    uint16_t halves[16];
    store_f16(halves, set1(value));
    return halves[0];
}

// One group of tbq4, 16 * vectors values: codes as pairs of 16 in nibbles (vectors / 2, 16), and the scale.
template <int vectors>
TREADLE_LANES_WORD void quantize_tbq(const float* x, uint8_t* codes, uint16_t* scale) {
    F32x16 v[vectors];
    F32x16 leaves[vectors];
    for (int i = 0; i < vectors; i++) {
        v[i] = load(x + 16 * i);
        leaves[i] = mul(v[i], v[i]);
    }
    float lengths[16];
    store(lengths, sqrt(set1(tree_sum(leaves))));
    const float length = lengths[0];
    if (!(length > 0 && length <= std::numeric_limits<float>::max())) {
        __builtin_memset(codes, 0x88, 8 * vectors);
        *scale = length == 0 ? 0 : 0x7e00;
        return;
    }
    flip_signs(v);
    hadamard(v);
    F32x16 level_squares[vectors];
    I32x16 code[vectors];
    for (int i = 0; i < vectors; i++) {
        const F32x16 u = div(v[i], set1(length));
        code[i] = set1(0);
        I32x16 level = set1(tbq_levels[0]);
        for (int k = 0; k < tbq_codes - 1; k++) {
            const I32x16 above = less(set1(tbq_thresholds[k]), u);
            code[i] = sub(code[i], above);
            level = add(level, bit_and(above, set1(tbq_levels[k + 1] - tbq_levels[k])));
        }
        leaves[i] = mul(u, to_f32(level));
        level_squares[i] = mul(to_f32(level), to_f32(level));
    }
    *scale = f16_of(length * tree_sum(leaves) / tree_sum(level_squares) / tbq_root(16 * vectors));
    for (int i = 0; i < vectors; i += 2) {
        const I32x16 both = bit_or(code[i], shift_left<4>(code[i + 1]));
        store_i8(reinterpret_cast<int8_t*>(codes + 8 * i), shift_right_signed<24>(shift_left<24>(both)));
    }
}

static void quantize_tbq_group(const float* x, int32_t n, uint8_t* codes, uint16_t* scale) {
    if (n == 64)
        quantize_tbq<4>(x, codes, scale);
    else
        quantize_tbq<8>(x, codes, scale);
}

// ---- Keys

// Puts `count` bytes of one position into lines of four each.
TREADLE_LANES_WORD void write_quads(const uint8_t* bytes, int32_t count, uint8_t* lines, int32_t position) {
    for (int32_t i = 0; i < count; i += 4) __builtin_memcpy(lines + i * 16 + position * 4, bytes + i, 4);
}

// n values, a multiple of 16 in x, of which `count` are stored: as int8 with 128 added, and a scale.
TREADLE_LANES_WORD void write_int8_key(const float* x, int32_t n, int32_t count, uint8_t* lines, uint16_t* scale,
                                       int32_t position) {
    int8_t q[32];
    int32_t sums[2];
    float key_scale;
    quantize_run(x, n, q, &key_scale, sums);
    uint8_t bytes[32];
    for (int32_t i = 0; i < count; i++) bytes[i] = static_cast<uint8_t>(q[i] + 128);
    write_quads(bytes, count, lines, position);
    scale[position] = f16_of(key_scale);
}

// Splits a head: the kept dimensions into `kept`, filled up with zeros to a multiple of 16, and the others, zeros in place of
// those, into `rest`.
static void split_kept(const float* x, int32_t head_dim, const uint16_t* dims, int32_t count, float* kept,
                       float* rest) {
    __builtin_memcpy(rest, x, static_cast<size_t>(head_dim) * sizeof(float));
    for (int32_t i = 0; i < (count + 15) / 16 * 16; i++) {
        kept[i] = i < count ? x[dims[i]] : 0.0f;
        if (i < count) rest[dims[i]] = 0.0f;
    }
}

static void write_key(const LayerCache& cache, const float* x, int32_t head, uint8_t* block, int32_t position) {
    const KvLayout& layout = cache.keys;
    const int32_t head_dim = layout.format.head_dim;
    const auto index = static_cast<size_t>(head);
    uint8_t* const codes = block + index * layout.code_step;
    auto* const scales = reinterpret_cast<uint16_t*>(block + layout.scales_at + index * layout.scale_step);
    if (layout.format.type == KvType::f16) {
        auto* const key = reinterpret_cast<uint16_t*>(codes) + position;
        for (int32_t d = 0; d < head_dim; d += 16) {
            uint16_t halves[16];
            store_f16(halves, load(x + d));
            for (int32_t lane = 0; lane < 16; lane++) key[(d + lane) * 16] = halves[lane];
        }
        return;
    }
    if (layout.format.type == KvType::q8_0) {
        for (int32_t d = 0; d < head_dim; d += 32)
            write_int8_key(x + d, 32, 32, codes + d * 16, scales + d / 2, position);
        return;
    }
    float rest[2 * tbq_group_max];
    if (layout.kept > 0) {
        float kept[32];
        split_kept(x, head_dim, cache.kept_dims + head * layout.kept, layout.kept, kept, rest);
        write_int8_key(kept, (layout.kept + 15) / 16 * 16, layout.kept,
                       block + layout.kept_at + index * layout.kept_step,
                       reinterpret_cast<uint16_t*>(block + layout.kept_scales_at) + 16 * head, position);
        x = rest;
    }
    for (int32_t g = 0; g < layout.groups; g++) {
        uint8_t bytes[tbq_group_max / 2];
        const int32_t first = g * layout.group;
        quantize_tbq_group(x + first, layout.group, bytes, scales + 16 * g + position);
        for (int32_t d = 0; d < layout.group; d += 32)
            write_quads(bytes + d / 2, 16, codes + (first + d) * 8, position);
    }
}

// ---- Values

static void write_value(const KvLayout& layout, const float* x, int32_t head, uint8_t* block, int32_t position) {
    const int32_t head_dim = layout.format.head_dim;
    const auto index = static_cast<size_t>(head);
    uint8_t* const codes = block + index * layout.code_step + static_cast<size_t>(position) * (layout.code_step / 16);
    auto* const scales =
        reinterpret_cast<uint16_t*>(block + layout.scales_at + index * layout.scale_step) + position;
    if (layout.format.type == KvType::f16) {
        for (int32_t d = 0; d < head_dim; d += 16)
            store_f16(reinterpret_cast<uint16_t*>(codes) + d, load(x + d));
        return;
    }
    for (int32_t g = 0; g < layout.groups; g++) {
        const int32_t first = g * layout.group;
        if (layout.format.type == KvType::q8_0) {
            float scale;
            int32_t sums[2];
            quantize_run(x + first, 32, reinterpret_cast<int8_t*>(codes) + first, &scale, sums);
            scales[16 * g] = f16_of(scale);
        } else {
            quantize_tbq_group(x + first, layout.group, codes + first / 2, scales + 16 * g);
        }
    }
}

// keys and values: (kv_heads, head_dim) each.
static void write_kv(const LayerCache& cache, const float* keys, const float* values, int32_t slot) {
    uint8_t* const key_block = cache.key_block(slot / 16);
    uint8_t* const value_block = cache.value_block(slot / 16);
    const int32_t position = slot % 16;
    for (int32_t head = 0; head < cache.keys.kv_heads; head++) {
        const int32_t head_at = head * cache.keys.format.head_dim;
        write_key(cache, keys + head_at, head, key_block, position);
        write_value(cache.values, values + head_at, head, value_block, position);
    }
}
