// What the tiers with registers of 256 bits share of the vocabulary of exact integer dots. Included by lanes_dot_*.h inside the
// tier's namespace.

TREADLE_LANES_WORD I32x16 load_line(const uint8_t* from) {
    const auto* line = reinterpret_cast<const __m256i*>(from);
    return {_mm256_load_si256(line), _mm256_load_si256(line + 1)};
}

TREADLE_LANES_WORD I32x16 load_add_pairs(const int32_t* from) {
    const I32x16 a = load(from);
    const I32x16 b = load(from + 16);
    return {_mm256_permute4x64_epi64(_mm256_hadd_epi32(a.low, a.high), 0xd8),
            _mm256_permute4x64_epi64(_mm256_hadd_epi32(b.low, b.high), 0xd8)};
}

struct Table16 {
    __m256i entries[byte_planes];  // the table of each plane, in both halves
};

TREADLE_LANES_WORD Table16 load_table(const uint8_t* entries) {
    const __m256i bytes =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
    Table16 table;
    table.entries[0] = plane_of<0>(I32x16{bytes, bytes}).low;
    if constexpr (byte_planes == 2) table.entries[byte_planes - 1] = plane_of<1>(I32x16{bytes, bytes}).low;
    return table;
}

template <int32_t plane>
TREADLE_LANES_WORD I32x16 look_up(const Table16& table, I32x16 indices) {
    return {_mm256_shuffle_epi8(table.entries[plane], indices.low),
            _mm256_shuffle_epi8(table.entries[plane], indices.high)};
}
