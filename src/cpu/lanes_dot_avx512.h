// The vocabulary of exact integer dots for AVX-512 with VNNI; lanes_dot_scalar.h says what each word means. vpdpbusd adds four
// products of unsigned codes and signed activations in 32 bits, so no sum of a group overflows.
#pragma once

#include "cpu/lanes_avx512.h"

#if defined(__clang__)
#define TREADLE_UNROLL _Pragma("unroll")
#else
#define TREADLE_UNROLL _Pragma("GCC unroll 8")
#endif

namespace treadle::cpu::avx512 {

// Rows of activations that meet a panel at once: what registers hold. Results do not depend on it. Under a
// sanitizer smaller tiles compile in a minute instead of many.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int32_t tile_rows = 2;
#else
constexpr int32_t tile_rows = 8;
#endif

constexpr bool dots_have_16_bits = false;

TREADLE_LANES_WORD I32x16 load_line(const uint8_t* from) { return {_mm512_load_si512(from)}; }

TREADLE_LANES_WORD I32x16 load_add_pairs(const int32_t* from) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const __m512i a = _mm512_loadu_si512(from);
    const __m512i b = _mm512_loadu_si512(from + 16);
    return {_mm512_add_epi32(_mm512_permutex2var_epi32(a, even, b), _mm512_permutex2var_epi32(a, odd, b))};
}

struct Dot {
    __m512i total;
};

TREADLE_LANES_WORD Dot dot_zero() { return {_mm512_setzero_si512()}; }

TREADLE_LANES_WORD Dot dot(Dot sum, I32x16 codes, const int8_t* four) {
    int32_t bits;
    __builtin_memcpy(&bits, four, 4);
    return {_mm512_dpbusd_epi32(sum.total, codes.at, _mm512_set1_epi32(bits))};
}

constexpr int32_t byte_planes = 1;

template <int32_t plane>
TREADLE_LANES_WORD I32x16 plane_of(I32x16 bytes) {
    return bytes;
}

template <int32_t plane>
TREADLE_LANES_WORD I32x16 finish(Dot sum) {
    return {sum.total};
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
