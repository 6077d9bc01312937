// The vocabulary of exact integer dots for AVX2; lanes_dot_scalar.h says what each word means.
#pragma once

#include "cpu/lanes_avx2.h"

namespace treadle::cpu::avx2 {

constexpr int32_t tile_rows = tile_rows_of(4);

#include "cpu/lanes_dot_nibbles.inl"

#include "cpu/lanes_dot_256.inl"

// Keeps the additions a chain: compilers turn the chains of all rows into trees, whose leaves no longer fit
// the registers.
TREADLE_LANES_WORD __m256i in_order(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
}

TREADLE_LANES_WORD Dot dot(Dot sum, I32x16 codes, const int8_t* four) {
    const __m256i activations = _mm256_set1_epi32(bits_of_four(four));
    return {{in_order(_mm256_add_epi16(sum.pairs.low, _mm256_maddubs_epi16(codes.low, activations))),
             in_order(_mm256_add_epi16(sum.pairs.high, _mm256_maddubs_epi16(codes.high, activations)))}};
}

template <int32_t plane>
TREADLE_LANES_WORD I32x16 finish(Dot sum) {
    const __m256i weight = _mm256_set1_epi16(plane_weight(plane));
    return {_mm256_madd_epi16(sum.pairs.low, weight), _mm256_madd_epi16(sum.pairs.high, weight)};
}

}  // namespace treadle::cpu::avx2
