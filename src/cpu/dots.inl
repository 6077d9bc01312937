// Unpacking codes that lie in lines (packed.h), and exact integer dots of them with activations: what linear layers and quantized
// keys share. Included by linear.inl and kernels.inl inside the tier's namespace, after its vocabulary of dots.

// ---- Unpacking --------------------------------------------------------------------------------------

template <int32_t from, int32_t to>
TREADLE_LANES_WORD I32x16 move_bit(I32x16 a) {
    if constexpr (from > to) return shift_right<from - to>(a);
    if constexpr (from < to) return shift_left<to - from>(a);
    return a;
}

// Codes of one quad of a group that starts at `lines`, one byte each (packed.h).
template <PackedCodes kind, int32_t quad>
TREADLE_LANES_WORD I32x16 unpack(const uint8_t* lines) {
    constexpr int32_t nibble_line = quad % 4 * 64;
    constexpr int32_t crumb_line = quad / 4 * 64;
    if constexpr (kind == PackedCodes::u8) {
        return load_line(lines + quad * 64);
    } else if constexpr (kind == PackedCodes::u2 || kind == PackedCodes::u3) {
        const I32x16 low =
            bit_and(move_bit<quad % 4 * 2, 0>(load_line(lines + crumb_line)), set1(0x03030303));
        if constexpr (kind == PackedCodes::u2) return low;
        return bit_or(low, bit_and(move_bit<quad, 2>(load_line(lines + 128)), set1(0x04040404)));
    } else {
        const I32x16 low =
            bit_and(move_bit<quad / 4 * 4, 0>(load_line(lines + nibble_line)), set1(0x0f0f0f0f));
        if constexpr (kind == PackedCodes::u5)
            return bit_or(low, bit_and(move_bit<quad, 4>(load_line(lines + 256)), set1(0x10101010)));
        if constexpr (kind == PackedCodes::u6)
            return bit_or(low, bit_and(move_bit<quad % 4 * 2, 4>(load_line(lines + 256 + crumb_line)),
                                       set1(0x30303030)));
        return low;
    }
}

// ---- Integer dots -----------------------------------------------------------------------------------

constexpr bool is_wide(PackedCodes kind) { return kind == PackedCodes::u8 || kind == PackedCodes::table4; }

// Quads that the tier may add up before it must finish a sum (lanes_dot_avx2.h).
constexpr int32_t quads_per_sum(PackedCodes kind) {
    if (!dots_have_16_bits) return 8;
    return kind == PackedCodes::u6 ? 2 : kind == PackedCodes::u5 ? 4 : 8;
}

// The order in which the quads of a group are taken, which does not change a sum: those that share a
// line are neighbours. A group of 16 has quads 0 .. 3 or 4 .. 7.
template <int32_t group>
constexpr int32_t quad_at(int32_t position) {
    return group == 32 ? position / 2 + position % 2 * 4 : position;
}

// Codes of a quad as the tier multiplies them; kinds of 8 bits have byte_planes planes.
template <PackedCodes kind, int32_t quad, int32_t plane>
TREADLE_LANES_WORD I32x16 codes_of(const uint8_t* lines, [[maybe_unused]] const Table16& table) {
    const I32x16 codes = unpack<kind, quad>(lines);
    if constexpr (kind == PackedCodes::u8) return plane_of<plane>(codes);
    if constexpr (kind == PackedCodes::table4) return look_up<plane>(table, codes);
    return codes;
}

// Adds quads at positions first .. last - 1 to the sums of each row.
template <PackedCodes kind, int32_t group, int32_t first, int32_t last, int32_t planes, int32_t rows>
TREADLE_LANES_WORD void add_quads(const uint8_t* lines, const int8_t* const (&q)[rows], int32_t k,
                                  const Table16& table, Dot (&sums)[planes][rows]) {
    constexpr int32_t quad = quad_at<group>(first);
    I32x16 codes[planes];
    codes[0] = codes_of<kind, quad, 0>(lines, table);
    if constexpr (planes == 2) codes[1] = codes_of<kind, quad, 1>(lines, table);
    TREADLE_UNROLL
    for (int32_t t = 0; t < rows; ++t) {
        const int8_t* four = q[t] + k + quad * 4;
        sums[0][t] = dot(sums[0][t], codes[0], four);
        if constexpr (planes == 2) sums[1][t] = dot(sums[1][t], codes[1], four);
    }
    if constexpr (first + 1 < last) add_quads<kind, group, first + 1, last>(lines, q, k, table, sums);
}

// total[t] += the exact dot of codes at positions first .. last - 1 with the activations of row t, in as many
// sums as the tier needs; the first sets total instead.
template <PackedCodes kind, int32_t group, int32_t first, int32_t last, int32_t rows, bool fresh = true>
TREADLE_LANES_WORD void dot_quads(const uint8_t* lines, const int8_t* const (&q)[rows], int32_t k,
                                  const Table16& table, I32x16 (&total)[rows]) {
    constexpr int32_t stop = last - first > quads_per_sum(kind) ? first + quads_per_sum(kind) : last;
    constexpr int32_t planes = is_wide(kind) ? byte_planes : 1;
    Dot sums[planes][rows];
    TREADLE_UNROLL
    for (int32_t t = 0; t < rows; ++t) {
        sums[0][t] = dot_zero();
        if constexpr (planes == 2) sums[1][t] = dot_zero();
    }
    add_quads<kind, group, first, stop>(lines, q, k, table, sums);
    TREADLE_UNROLL
    for (int32_t t = 0; t < rows; ++t) {
        I32x16 part = finish<0>(sums[0][t]);
        if constexpr (planes == 2) part = add(part, finish<1>(sums[1][t]));
        total[t] = fresh ? part : add(total[t], part);
    }
    if constexpr (stop < last) dot_quads<kind, group, stop, last, rows, false>(lines, q, k, table, total);
}
