// The vocabulary of 16 lanes for AVX-512 (F, BW, DQ, VL), one register per value. lanes_scalar.h says what each word means. Only
// files named *_avx512.cpp may include it.
//
// Invariant: equal by bits to the scalar word; always_inline in this tier's own namespace.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/lanes.h"

namespace treadle::cpu::avx512 {

struct F32x16 {
    __m512 at;
};

struct I32x16 {
    __m512i at;
};

constexpr const char* tier_name = "avx512";
constexpr Rates rates = {60, 16, 10, 2, 10};
constexpr int32_t accumulators_max = 24;  // values that registers hold beside what else a loop needs

// ---- Making, loading, storing. Pointers need no alignment.

TREADLE_LANES_WORD F32x16 set1(float value) { return {_mm512_set1_ps(value)}; }

TREADLE_LANES_WORD I32x16 set1(int32_t value) { return {_mm512_set1_epi32(value)}; }

TREADLE_LANES_WORD F32x16 zero_f32() { return {_mm512_setzero_ps()}; }

TREADLE_LANES_WORD I32x16 lane_numbers() {
    return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}

TREADLE_LANES_WORD F32x16 load(const float* from) { return {_mm512_loadu_ps(from)}; }

TREADLE_LANES_WORD I32x16 load(const int32_t* from) { return {_mm512_loadu_si512(from)}; }

TREADLE_LANES_WORD __mmask16 lanes_below(int count) {
    return static_cast<__mmask16>((uint32_t{1} << count) - 1);
}

TREADLE_LANES_WORD F32x16 load_first(const float* from, int count) {
    return {_mm512_maskz_loadu_ps(lanes_below(count), from)};
}

TREADLE_LANES_WORD void store(float* to, F32x16 a) { _mm512_storeu_ps(to, a.at); }

TREADLE_LANES_WORD void store(int32_t* to, I32x16 a) { _mm512_storeu_si512(to, a.at); }

TREADLE_LANES_WORD void store_first(float* to, F32x16 a, int count) {
    _mm512_mask_storeu_ps(to, lanes_below(count), a.at);
}

TREADLE_LANES_WORD void store_i8(int8_t* to, I32x16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a.at));
}

TREADLE_LANES_WORD I32x16 load_i8(const int8_t* from) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}

TREADLE_LANES_WORD I32x16 load_u8(const uint8_t* from) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}

// ---- f16, round to nearest even; stored as caches do: beyond ±65504 saturating, NaN stays NaN.

TREADLE_LANES_WORD F32x16 load_f16(const uint16_t* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}

TREADLE_LANES_WORD void store_f16(uint16_t* to, F32x16 a) {
    // The second operand wins where it is NaN.
    const __m512 above_least = _mm512_max_ps(_mm512_set1_ps(-65504.0f), a.at);
    const __m512 kept = _mm512_min_ps(_mm512_set1_ps(65504.0f), above_least);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(kept, _MM_FROUND_TO_NEAREST_INT));
}

TREADLE_LANES_WORD F32x16 load_bf16(const uint16_t* from) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}

// ---- Nibbles that index a table of 16 small integers, as floats.

struct Levels {
    __m512 at;
};

TREADLE_LANES_WORD Levels load_levels(const int8_t* levels) {
    return {_mm512_cvtepi32_ps(load_i8(levels).at)};
}

template <int half>
TREADLE_LANES_WORD F32x16 look_up(const Levels& levels, const uint8_t* from) {
    const __m512i bytes = load_u8(from).at;  // a permutation reads the low four bits
    return {_mm512_permutexvar_ps(half == 0 ? bytes : _mm512_srli_epi32(bytes, 4), levels.at)};
}

// ---- Float arithmetic, each result rounded once.

TREADLE_LANES_WORD F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.at, b.at)}; }

TREADLE_LANES_WORD F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.at, b.at)}; }

TREADLE_LANES_WORD F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.at, b.at)}; }

TREADLE_LANES_WORD F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.at, b.at)}; }

TREADLE_LANES_WORD F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.at)}; }

TREADLE_LANES_WORD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.at, b.at, c.at)}; }

TREADLE_LANES_WORD F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.at, b.at)}; }

TREADLE_LANES_WORD F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.at, b.at)}; }

// ---- Integer arithmetic, wrapping.

TREADLE_LANES_WORD I32x16 add(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.at, b.at)}; }

TREADLE_LANES_WORD I32x16 sub(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.at, b.at)}; }

TREADLE_LANES_WORD I32x16 max(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.at, b.at)}; }

template <int count>
TREADLE_LANES_WORD I32x16 shift_left(I32x16 a) {
    return {_mm512_slli_epi32(a.at, count)};
}

template <int count>
TREADLE_LANES_WORD I32x16 shift_right(I32x16 a) {
    return {_mm512_srli_epi32(a.at, count)};
}

template <int count>
TREADLE_LANES_WORD I32x16 shift_right_signed(I32x16 a) {
    return {_mm512_srai_epi32(a.at, count)};
}

// ---- Bits.

TREADLE_LANES_WORD I32x16 bits_of(F32x16 a) { return {_mm512_castps_si512(a.at)}; }

TREADLE_LANES_WORD F32x16 f32_of_bits(I32x16 a) { return {_mm512_castsi512_ps(a.at)}; }

TREADLE_LANES_WORD I32x16 bit_and(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.at, b.at)}; }

TREADLE_LANES_WORD I32x16 bit_or(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.at, b.at)}; }

TREADLE_LANES_WORD I32x16 bit_xor(I32x16 a, I32x16 b) { return {_mm512_xor_si512(a.at, b.at)}; }

// ---- Conversions.

TREADLE_LANES_WORD F32x16 to_f32(I32x16 a) { return {_mm512_cvtepi32_ps(a.at)}; }

TREADLE_LANES_WORD I32x16 to_i32(F32x16 a) { return {_mm512_cvtps_epi32(a.at)}; }

// ---- Comparing and choosing. A comparison with a NaN is false. Masks are lanes of ones here as in every tier; compilers see
// through the way there and back.

TREADLE_LANES_WORD I32x16 less(F32x16 a, F32x16 b) {
    return {_mm512_movm_epi32(_mm512_cmp_ps_mask(a.at, b.at, _CMP_LT_OQ))};
}

TREADLE_LANES_WORD I32x16 equal(F32x16 a, F32x16 b) {
    return {_mm512_movm_epi32(_mm512_cmp_ps_mask(a.at, b.at, _CMP_EQ_OQ))};
}

TREADLE_LANES_WORD I32x16 less(I32x16 a, I32x16 b) {
    return {_mm512_movm_epi32(_mm512_cmplt_epi32_mask(a.at, b.at))};
}

TREADLE_LANES_WORD F32x16 select(I32x16 mask, F32x16 yes, F32x16 no) {
    return {_mm512_mask_blend_ps(_mm512_movepi32_mask(mask.at), no.at, yes.at)};
}

TREADLE_LANES_WORD I32x16 select(I32x16 mask, I32x16 yes, I32x16 no) {
    return {_mm512_mask_blend_epi32(_mm512_movepi32_mask(mask.at), no.at, yes.at)};
}

TREADLE_LANES_WORD uint32_t mask_bits(I32x16 mask) { return _mm512_movepi32_mask(mask.at); }

// ---- Across lanes.

template <int stride>
TREADLE_LANES_WORD F32x16 swap_lanes(F32x16 a) {
    if constexpr (stride == 8) return {_mm512_shuffle_f32x4(a.at, a.at, 0x4e)};
    if constexpr (stride == 4) return {_mm512_shuffle_f32x4(a.at, a.at, 0xb1)};
    return {_mm512_permute_ps(a.at, stride == 2 ? 0x4e : 0xb1)};
}

// Trees of strides 8, 4, 2, 1, lane i taking in lane i + stride.

TREADLE_LANES_WORD float sum(F32x16 a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.at), _mm512_extractf32x8_ps(a.at, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

TREADLE_LANES_WORD int32_t sum(I32x16 a) { return _mm512_reduce_add_epi32(a.at); }

TREADLE_LANES_WORD float max_lane(F32x16 a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.at), _mm512_extractf32x8_ps(a.at, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

TREADLE_LANES_WORD int32_t max_lane(I32x16 a) { return _mm512_reduce_max_epi32(a.at); }

}  // namespace treadle::cpu::avx512
