// The vocabulary of exact integer dots for AVX-512 with VNNI; lanes_dot_scalar.h says what each word means. vpdpbusd adds four
// products of unsigned codes and signed activations in 32 bits, so no sum of a group overflows.
#pragma once

#include "cpu/lanes_avx512.h"

namespace treadle::cpu::avx512 {

constexpr int32_t tile_rows = tile_rows_of(8);

#include "cpu/lanes_dot_bytes.inl"

TREADLE_LANES_WORD I32x16 load_line(const uint8_t* from) { return {_mm512_load_si512(from)}; }

TREADLE_LANES_WORD I32x16 load_add_pairs(const int32_t* from) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const __m512i a = _mm512_loadu_si512(from);
    const __m512i b = _mm512_loadu_si512(from + 16);
    return {_mm512_add_epi32(_mm512_permutex2var_epi32(a, even, b), _mm512_permutex2var_epi32(a, odd, b))};
}

TREADLE_LANES_WORD Dot dot(Dot sum, I32x16 codes, const int8_t* four) {
    return {{_mm512_dpbusd_epi32(sum.total.at, codes.at, _mm512_set1_epi32(bits_of_four(four)))}};
}

struct Table16 {
    __m512i entries;  // in every quarter
};

TREADLE_LANES_WORD Table16 load_table(const uint8_t* entries) {
    return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)))};
}

template <int32_t plane>
TREADLE_LANES_WORD I32x16 look_up(const Table16& table, I32x16 indices) {
    return {_mm512_shuffle_epi8(table.entries, indices.at)};
}

}  // namespace treadle::cpu::avx512
