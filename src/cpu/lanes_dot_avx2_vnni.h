// The vocabulary of exact integer dots for AVX2 with AVX-VNNI; lanes_dot_scalar.h says what each word means. vpdpbusd adds four
// products of unsigned codes and signed activations in 32 bits.
#pragma once

#include "cpu/lanes_avx2_vnni.h"

namespace treadle::cpu::avx2_vnni {

constexpr int32_t tile_rows = tile_rows_of(4);

#include "cpu/lanes_dot_bytes.inl"

#include "cpu/lanes_dot_256.inl"

// Compiled without AVX-VNNI it is the same instruction of AVX-512, for the tests.
TREADLE_LANES_WORD __m256i add_products(__m256i sum, __m256i codes, __m256i activations) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, codes, activations);
#else
    return _mm256_dpbusd_epi32(sum, codes, activations);
#endif
}

TREADLE_LANES_WORD Dot dot(Dot sum, I32x16 codes, const int8_t* four) {
    const __m256i activations = _mm256_set1_epi32(bits_of_four(four));
    return {{add_products(sum.total.low, codes.low, activations),
             add_products(sum.total.high, codes.high, activations)}};
}

}  // namespace treadle::cpu::avx2_vnni
