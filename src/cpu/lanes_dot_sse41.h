// The vocabulary of exact integer dots for SSE4.1; lanes_dot_scalar.h says what each word means.
#pragma once

#include "cpu/lanes_sse41.h"

namespace treadle::cpu::sse41 {

constexpr int32_t tile_rows = tile_rows_of(4);

#include "cpu/lanes_dot_nibbles.inl"

TREADLE_LANES_WORD I32x16 load_line(const uint8_t* from) {
    const auto* line = reinterpret_cast<const __m128i*>(from);
    return {
        {_mm_load_si128(line), _mm_load_si128(line + 1), _mm_load_si128(line + 2), _mm_load_si128(line + 3)}};
}

TREADLE_LANES_WORD I32x16 load_add_pairs(const int32_t* from) {
    const I32x16 a = load(from);
    const I32x16 b = load(from + 16);
    return {{_mm_hadd_epi32(a.at[0], a.at[1]), _mm_hadd_epi32(a.at[2], a.at[3]),
             _mm_hadd_epi32(b.at[0], b.at[1]), _mm_hadd_epi32(b.at[2], b.at[3])}};
}

TREADLE_LANES_WORD __m128i add_products(__m128i sum, __m128i codes, __m128i activations) {
    return _mm_add_epi16(sum, _mm_maddubs_epi16(codes, activations));
}

TREADLE_LANES_WORD Dot dot(Dot sum, I32x16 codes, const int8_t* four) {
    return {each<I32x16, add_products>(sum.pairs, codes, set1(bits_of_four(four)))};
}

template <int32_t plane>
TREADLE_LANES_WORD I32x16 finish(Dot sum) {
    const __m128i weight = _mm_set1_epi16(plane_weight(plane));
    return each<I32x16, _mm_madd_epi16>(sum.pairs, I32x16{{weight, weight, weight, weight}});
}

struct Table16 {
    __m128i entries[byte_planes];
};

TREADLE_LANES_WORD Table16 load_table(const uint8_t* entries) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(entries));
    const __m128i nibble = _mm_set1_epi8(15);
    return {{_mm_and_si128(bytes, nibble), _mm_and_si128(_mm_srli_epi32(bytes, 4), nibble)}};
}

template <int32_t plane>
TREADLE_LANES_WORD I32x16 look_up(const Table16& table, I32x16 indices) {
    const __m128i entries = table.entries[plane];
    return each<I32x16, _mm_shuffle_epi8>(I32x16{{entries, entries, entries, entries}}, indices);
}

}  // namespace treadle::cpu::sse41
