// The vocabulary of exact integer dots for AVX2; lanes_dot_scalar.h says what each word means.
// vpmaddubsw gives sums of two products in 16 bits, which are added in 16 bits as long as they cannot
// overflow:
//
//     bits of a code   |sum of two products|   quads until 32,767
//     2                 762                    43
//     3               1,778                    18
//     4               3,810                     8
//     5               7,874                     4
//     6              16,002                     2
//     8              64,770: saturates, so bytes are multiplied as two planes of nibbles
#pragma once

#include "cpu/lanes_avx2.h"

#if defined(__clang__)
#define TREADLE_UNROLL _Pragma("unroll")
#else
#define TREADLE_UNROLL _Pragma("GCC unroll 8")
#endif

namespace treadle::cpu::avx2 {

// Rows of activations that meet a panel at once: what registers hold. Results do not depend on it. Under a
// sanitizer smaller tiles compile in a minute instead of many.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int32_t tile_rows = 2;
#else
constexpr int32_t tile_rows = 4;
#endif

constexpr bool dots_have_16_bits = true;

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

struct Dot {
    __m256i low, high;  // 16 sums of 16 bits each: two for each lane
};

TREADLE_LANES_WORD Dot dot_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }

TREADLE_LANES_WORD __m256i broadcast_four(const int8_t* four) {
    int32_t bits;
    __builtin_memcpy(&bits, four, 4);
    return _mm256_set1_epi32(bits);
}

// Keeps the additions a chain: compilers turn the chains of all rows into trees, whose leaves no longer fit
// the registers.
TREADLE_LANES_WORD __m256i in_order(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
}

TREADLE_LANES_WORD Dot dot(Dot sum, I32x16 codes, const int8_t* four) {
    const __m256i activations = broadcast_four(four);
    return {in_order(_mm256_add_epi16(sum.low, _mm256_maddubs_epi16(codes.low, activations))),
            in_order(_mm256_add_epi16(sum.high, _mm256_maddubs_epi16(codes.high, activations)))};
}

constexpr int32_t byte_planes = 2;  // low nibbles, high nibbles

template <int32_t plane>
TREADLE_LANES_WORD I32x16 plane_of(I32x16 bytes) {
    return bit_and(shift_right<4 * plane>(bytes), set1(0x0f0f0f0f));
}

template <int32_t plane>
TREADLE_LANES_WORD I32x16 finish(Dot sum) {
    const __m256i weight = _mm256_set1_epi16(plane == 0 ? 1 : 16);
    return {_mm256_madd_epi16(sum.low, weight), _mm256_madd_epi16(sum.high, weight)};
}

struct Table16 {
    __m256i entries[byte_planes];  // the table of each plane, in both halves
};

TREADLE_LANES_WORD Table16 load_table(const uint8_t* entries) {
    const __m256i bytes =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
    const __m256i nibble = _mm256_set1_epi8(15);
    return {{_mm256_and_si256(bytes, nibble), _mm256_and_si256(_mm256_srli_epi32(bytes, 4), nibble)}};
}

template <int32_t plane>
TREADLE_LANES_WORD I32x16 look_up(const Table16& table, I32x16 indices) {
    return {_mm256_shuffle_epi8(table.entries[plane], indices.low),
            _mm256_shuffle_epi8(table.entries[plane], indices.high)};
}

}  // namespace treadle::cpu::avx2
