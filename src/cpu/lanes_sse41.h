// The vocabulary of 16 lanes for SSE4.1, four registers per value. lanes_scalar.h says what each word means. Only files named
// *_sse41.cpp may include it.
//
// Invariant: equal by bits to the scalar word; always_inline in this tier's own namespace.
#pragma once

#include <smmintrin.h>

#include <cstdint>
#include <cstring>

#include "cpu/lanes.h"

namespace treadle::cpu::sse41 {

struct F32x16 {
    __m128 at[4];  // lanes 4i .. 4i + 3
};

struct I32x16 {
    __m128i at[4];
};

constexpr const char* tier_name = "sse41";
constexpr Rates rates = {12, 2, 1.5, 0.3, 10};
constexpr int32_t accumulators_max = 3;  // values that registers hold beside what else a loop needs

// op of each register in turn.
template <class Result, auto op, class... Values>
TREADLE_LANES_WORD Result each(Values... values) {
    return {{op(values.at[0]...), op(values.at[1]...), op(values.at[2]...), op(values.at[3]...)}};
}

// ---- Making, loading, storing. Pointers need no alignment.

TREADLE_LANES_WORD F32x16 set1(float value) {
    const __m128 all = _mm_set1_ps(value);
    return {{all, all, all, all}};
}

TREADLE_LANES_WORD I32x16 set1(int32_t value) {
    const __m128i all = _mm_set1_epi32(value);
    return {{all, all, all, all}};
}

TREADLE_LANES_WORD F32x16 zero_f32() { return set1(0.0f); }

TREADLE_LANES_WORD I32x16 lane_numbers() {
    return {{_mm_setr_epi32(0, 1, 2, 3), _mm_setr_epi32(4, 5, 6, 7), _mm_setr_epi32(8, 9, 10, 11),
             _mm_setr_epi32(12, 13, 14, 15)}};
}

TREADLE_LANES_WORD F32x16 load(const float* from) {
    return {{_mm_loadu_ps(from), _mm_loadu_ps(from + 4), _mm_loadu_ps(from + 8), _mm_loadu_ps(from + 12)}};
}

TREADLE_LANES_WORD I32x16 load(const int32_t* from) {
    const auto* registers = reinterpret_cast<const __m128i*>(from);
    return {{_mm_loadu_si128(registers), _mm_loadu_si128(registers + 1), _mm_loadu_si128(registers + 2),
             _mm_loadu_si128(registers + 3)}};
}

TREADLE_LANES_WORD F32x16 load_first(const float* from, int count) {
    if (count == 16) return load(from);
    float lanes[16] = {};
    std::memcpy(lanes, from, static_cast<size_t>(count) * sizeof(float));
    return load(lanes);
}

TREADLE_LANES_WORD void store(float* to, F32x16 a) {
    for (int i = 0; i < 4; ++i) _mm_storeu_ps(to + 4 * i, a.at[i]);
}

TREADLE_LANES_WORD void store(int32_t* to, I32x16 a) {
    for (int i = 0; i < 4; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + i, a.at[i]);
}

TREADLE_LANES_WORD void store_first(float* to, F32x16 a, int count) {
    if (count == 16) return store(to, a);
    float lanes[16];
    store(lanes, a);
    std::memcpy(to, lanes, static_cast<size_t>(count) * sizeof(float));
}

TREADLE_LANES_WORD void store_i8(int8_t* to, I32x16 a) {
    const __m128i bytes =
        _mm_packs_epi16(_mm_packs_epi32(a.at[0], a.at[1]), _mm_packs_epi32(a.at[2], a.at[3]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

// widen(four bytes) of each four.
template <auto widen>
TREADLE_LANES_WORD I32x16 widened(__m128i bytes) {
    return {{widen(bytes), widen(_mm_srli_si128(bytes, 4)), widen(_mm_srli_si128(bytes, 8)),
             widen(_mm_srli_si128(bytes, 12))}};
}

TREADLE_LANES_WORD I32x16 load_u16(const uint16_t* from) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 8));
    return {{_mm_cvtepu16_epi32(first), _mm_cvtepu16_epi32(_mm_srli_si128(first, 8)),
             _mm_cvtepu16_epi32(second), _mm_cvtepu16_epi32(_mm_srli_si128(second, 8))}};
}

TREADLE_LANES_WORD I32x16 load_i8(const int8_t* from) {
    return widened<_mm_cvtepi8_epi32>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

TREADLE_LANES_WORD I32x16 load_u8(const uint8_t* from) {
    return widened<_mm_cvtepu8_epi32>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// ---- f16, round to nearest even; stored as caches do: beyond ±65504 saturating, NaN stays NaN.

// Of halves in the low 16 bits of each lane.
TREADLE_LANES_WORD __m128 f32_of_halves(__m128i halves) {
    const __m128i magnitude = _mm_and_si128(halves, _mm_set1_epi32(0x7fff));
    const __m128i rebias = _mm_set1_epi32(112 << 23);
    const __m128i rebased = _mm_add_epi32(_mm_slli_epi32(magnitude, 13), rebias);
    // A subnormal m · 2^-24 is the normal 2^-14 · (1 + m / 1024), less 2^-14; nothing is taken from the others.
    const __m128i subnormal = _mm_cmpgt_epi32(_mm_set1_epi32(0x400), magnitude);
    const __m128i with_one = _mm_add_epi32(rebased, _mm_and_si128(subnormal, _mm_set1_epi32(1 << 23)));
    const __m128i one = _mm_and_si128(subnormal, _mm_set1_epi32(113 << 23));
    const __m128i value = _mm_castps_si128(_mm_sub_ps(_mm_castsi128_ps(with_one), _mm_castsi128_ps(one)));
    const __m128i not_finite = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff));
    const __m128i sign = _mm_slli_epi32(_mm_srli_epi32(halves, 15), 31);
    return _mm_castsi128_ps(_mm_or_si128(_mm_add_epi32(value, _mm_and_si128(not_finite, rebias)), sign));
}

TREADLE_LANES_WORD __m128i halves_of_f32(__m128 value) {
    const __m128i bits = _mm_castps_si128(value);
    const __m128i magnitude = _mm_and_si128(bits, _mm_set1_epi32(0x7fffffff));
    const __m128i capped = _mm_min_epi32(magnitude, _mm_set1_epi32(0x477fe000));  // 65504
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(capped, 13), _mm_set1_epi32(1));
    const __m128i rebased = _mm_sub_epi32(capped, _mm_set1_epi32((112 << 23) - 0xfff));
    const __m128i normal = _mm_srli_epi32(_mm_add_epi32(rebased, odd), 13);
    // Beside 0.5 a float's last bit is worth 2^-24, as a subnormal half's.
    const __m128 half = _mm_set1_ps(0.5f);
    const __m128i subnormal =
        _mm_sub_epi32(_mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(capped), half)), _mm_castps_si128(half));
    const __m128i is_normal = _mm_cmpgt_epi32(capped, _mm_set1_epi32(0x387fffff));
    const __m128i is_nan = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7f800000));
    const __m128i finite = _mm_blendv_epi8(subnormal, normal, is_normal);
    const __m128i sign = _mm_slli_epi32(_mm_srli_epi32(bits, 31), 15);
    return _mm_or_si128(_mm_or_si128(finite, sign), _mm_and_si128(is_nan, _mm_set1_epi32(0x7e00)));
}

TREADLE_LANES_WORD F32x16 load_f16(const uint16_t* from) {
    return each<F32x16, f32_of_halves>(load_u16(from));
}

TREADLE_LANES_WORD void store_f16(uint16_t* to, F32x16 a) {
    const I32x16 halves = each<I32x16, halves_of_f32>(a);
    auto* registers = reinterpret_cast<__m128i*>(to);
    _mm_storeu_si128(registers, _mm_packus_epi32(halves.at[0], halves.at[1]));
    _mm_storeu_si128(registers + 1, _mm_packus_epi32(halves.at[2], halves.at[3]));
}

// ---- Nibbles that index a table of 16 small integers, as floats.

#include "cpu/lanes_levels.inl"

template <int half>
TREADLE_LANES_WORD F32x16 look_up(const Levels& levels, const uint8_t* from) {
    return each<F32x16, _mm_cvtepi32_ps>(widened<_mm_cvtepi8_epi32>(levels_of<half>(levels, from)));
}

// ---- Float arithmetic, each result rounded once.

TREADLE_LANES_WORD F32x16 add(F32x16 a, F32x16 b) { return each<F32x16, _mm_add_ps>(a, b); }

TREADLE_LANES_WORD F32x16 sub(F32x16 a, F32x16 b) { return each<F32x16, _mm_sub_ps>(a, b); }

TREADLE_LANES_WORD F32x16 mul(F32x16 a, F32x16 b) { return each<F32x16, _mm_mul_ps>(a, b); }

TREADLE_LANES_WORD F32x16 div(F32x16 a, F32x16 b) { return each<F32x16, _mm_div_ps>(a, b); }

TREADLE_LANES_WORD F32x16 sqrt(F32x16 a) { return each<F32x16, _mm_sqrt_ps>(a); }

TREADLE_LANES_WORD F32x16 min(F32x16 a, F32x16 b) { return each<F32x16, _mm_min_ps>(a, b); }

TREADLE_LANES_WORD F32x16 max(F32x16 a, F32x16 b) { return each<F32x16, _mm_max_ps>(a, b); }

TREADLE_LANES_WORD __m128 upper(__m128 a) { return _mm_movehl_ps(a, a); }

// The product of two floats is exact in double.
TREADLE_LANES_WORD __m128d product_in_double(__m128 a, __m128 b) {
    return _mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b));
}

// a · b + c of the lower two lanes as exact_fma.h does it: the sum rounded to odd.
TREADLE_LANES_WORD __m128 careful_fma_of_two(__m128 a, __m128 b, __m128 c) {
    const __m128d product = product_in_double(a, b);
    const __m128d addend = _mm_cvtps_pd(c);
    const __m128d sum = _mm_add_pd(product, addend);
    const __m128d addend_taken = _mm_sub_pd(sum, product);
    const __m128d lost =
        _mm_add_pd(_mm_sub_pd(product, _mm_sub_pd(sum, addend_taken)), _mm_sub_pd(addend, addend_taken));
    const __m128i inexact =
        _mm_castpd_si128(_mm_and_pd(_mm_cmpneq_pd(lost, _mm_setzero_pd()), _mm_cmpord_pd(lost, lost)));
    // Towards zero, then the last bit set.
    const __m128i too_far = _mm_srli_epi64(_mm_castpd_si128(_mm_xor_pd(sum, lost)), 63);
    const __m128i towards_zero = _mm_sub_epi64(_mm_castpd_si128(sum), _mm_and_si128(too_far, inexact));
    const __m128i odd = _mm_or_si128(towards_zero, _mm_and_si128(inexact, _mm_set1_epi64x(1)));
    return _mm_cvtpd_ps(_mm_castsi128_pd(odd));
}

// All three (16).
[[gnu::cold, gnu::noinline]] static inline void careful_fma(const float* a, const float* b, float* c) {
    for (int i = 0; i < 16; i += 4) {
        const __m128 x = _mm_loadu_ps(a + i);
        const __m128 y = _mm_loadu_ps(b + i);
        const __m128 z = _mm_loadu_ps(c + i);
        _mm_storeu_ps(c + i, _mm_movelh_ps(careful_fma_of_two(x, y, z),
                                           careful_fma_of_two(upper(x), upper(y), upper(z))));
    }
}

// A sum that is rounded to double and then to float is mostly what it would be if rounded once: where its double lies between
// two floats and not just in their middle, both roundings end on the side of the true sum. In the middle the double's last 29
// bits are a one and zeros; where the result is at or below the smallest normal float, middles look otherwise. A result of zero
// comes of an exact sum: a product without addend, or one that takes away nearly all of it.
TREADLE_LANES_WORD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    F32x16 result;
    __m128i last_bits = _mm_setzero_si128();        // the least of all, shifted to the top
    __m128i magnitude = _mm_set1_epi32(INT32_MAX);  // the least of all but zero, doubled, from INT32_MIN
    for (int i = 0; i < 4; ++i) {
        const __m128d low = _mm_add_pd(product_in_double(a.at[i], b.at[i]), _mm_cvtps_pd(c.at[i]));
        const __m128d high =
            _mm_add_pd(product_in_double(upper(a.at[i]), upper(b.at[i])), _mm_cvtps_pd(upper(c.at[i])));
        result.at[i] = _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
        const __m128 lower_halves = _mm_shuffle_ps(_mm_castpd_ps(low), _mm_castpd_ps(high), 0x88);
        last_bits = _mm_min_epi32(last_bits, _mm_slli_epi32(_mm_castps_si128(lower_halves), 3));
        const __m128i bits = _mm_castps_si128(result.at[i]);
        magnitude =
            _mm_min_epi32(magnitude, _mm_add_epi32(_mm_add_epi32(bits, bits), _mm_set1_epi32(INT32_MAX)));
    }
    const __m128i between = _mm_cmpeq_epi32(last_bits, _mm_set1_epi32(INT32_MIN));
    const __m128i small = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(INT32_MIN + (1 << 24)));
    if (__builtin_expect(_mm_movemask_epi8(_mm_or_si128(between, small)), 0) != 0) {
        float lanes[3][16];
        store(lanes[0], a);
        store(lanes[1], b);
        store(lanes[2], c);
        careful_fma(lanes[0], lanes[1], lanes[2]);
        result = load(lanes[2]);
    }
    return result;
}

// ---- Integer arithmetic, wrapping.

TREADLE_LANES_WORD I32x16 add(I32x16 a, I32x16 b) { return each<I32x16, _mm_add_epi32>(a, b); }

TREADLE_LANES_WORD I32x16 sub(I32x16 a, I32x16 b) { return each<I32x16, _mm_sub_epi32>(a, b); }

TREADLE_LANES_WORD I32x16 max(I32x16 a, I32x16 b) { return each<I32x16, _mm_max_epi32>(a, b); }

template <int count>
TREADLE_LANES_WORD I32x16 shift_left(I32x16 a) {
    return {{_mm_slli_epi32(a.at[0], count), _mm_slli_epi32(a.at[1], count), _mm_slli_epi32(a.at[2], count),
             _mm_slli_epi32(a.at[3], count)}};
}

template <int count>
TREADLE_LANES_WORD I32x16 shift_right(I32x16 a) {
    return {{_mm_srli_epi32(a.at[0], count), _mm_srli_epi32(a.at[1], count), _mm_srli_epi32(a.at[2], count),
             _mm_srli_epi32(a.at[3], count)}};
}

template <int count>
TREADLE_LANES_WORD I32x16 shift_right_signed(I32x16 a) {
    return {{_mm_srai_epi32(a.at[0], count), _mm_srai_epi32(a.at[1], count), _mm_srai_epi32(a.at[2], count),
             _mm_srai_epi32(a.at[3], count)}};
}

// ---- Bits.

TREADLE_LANES_WORD I32x16 bits_of(F32x16 a) { return each<I32x16, _mm_castps_si128>(a); }

TREADLE_LANES_WORD F32x16 f32_of_bits(I32x16 a) { return each<F32x16, _mm_castsi128_ps>(a); }

TREADLE_LANES_WORD I32x16 bit_and(I32x16 a, I32x16 b) { return each<I32x16, _mm_and_si128>(a, b); }

TREADLE_LANES_WORD I32x16 bit_or(I32x16 a, I32x16 b) { return each<I32x16, _mm_or_si128>(a, b); }

TREADLE_LANES_WORD I32x16 bit_xor(I32x16 a, I32x16 b) { return each<I32x16, _mm_xor_si128>(a, b); }

// ---- Conversions.

TREADLE_LANES_WORD F32x16 load_bf16(const uint16_t* from) {
    return f32_of_bits(shift_left<16>(load_u16(from)));
}

TREADLE_LANES_WORD F32x16 to_f32(I32x16 a) { return each<F32x16, _mm_cvtepi32_ps>(a); }

TREADLE_LANES_WORD I32x16 to_i32(F32x16 a) { return each<I32x16, _mm_cvtps_epi32>(a); }

// ---- Comparing and choosing. A comparison with a NaN is false.

TREADLE_LANES_WORD I32x16 less(F32x16 a, F32x16 b) { return bits_of(each<F32x16, _mm_cmplt_ps>(a, b)); }

TREADLE_LANES_WORD I32x16 equal(F32x16 a, F32x16 b) { return bits_of(each<F32x16, _mm_cmpeq_ps>(a, b)); }

TREADLE_LANES_WORD I32x16 less(I32x16 a, I32x16 b) { return each<I32x16, _mm_cmplt_epi32>(a, b); }

TREADLE_LANES_WORD F32x16 select(I32x16 mask, F32x16 yes, F32x16 no) {
    return each<F32x16, _mm_blendv_ps>(no, yes, f32_of_bits(mask));
}

TREADLE_LANES_WORD I32x16 select(I32x16 mask, I32x16 yes, I32x16 no) {
    return each<I32x16, _mm_blendv_epi8>(no, yes, mask);
}

TREADLE_LANES_WORD uint32_t mask_bits(I32x16 mask) {
    const __m128i bytes =
        _mm_packs_epi16(_mm_packs_epi32(mask.at[0], mask.at[1]), _mm_packs_epi32(mask.at[2], mask.at[3]));
    return static_cast<uint32_t>(_mm_movemask_epi8(bytes));
}

// ---- Across lanes.

template <int order>
TREADLE_LANES_WORD __m128 shuffled(__m128 a) {
    return _mm_shuffle_ps(a, a, order);
}

template <int stride>
TREADLE_LANES_WORD F32x16 swap_lanes(F32x16 a) {
    if constexpr (stride == 8) return {{a.at[2], a.at[3], a.at[0], a.at[1]}};
    if constexpr (stride == 4) return {{a.at[1], a.at[0], a.at[3], a.at[2]}};
    return each<F32x16, shuffled<stride == 2 ? 0x4e : 0xb1>>(a);
}

// Trees of strides 8, 4, 2, 1, lane i taking in lane i + stride: op on registers, then lane 0 holds the result.
template <auto op>
TREADLE_LANES_WORD __m128 tree(F32x16 a) {
    const __m128 four = op(op(a.at[0], a.at[2]), op(a.at[1], a.at[3]));
    const __m128 two = op(four, upper(four));
    return op(two, _mm_movehdup_ps(two));
}

template <auto op>
TREADLE_LANES_WORD __m128i tree(I32x16 a) {
    const __m128i four = op(op(a.at[0], a.at[2]), op(a.at[1], a.at[3]));
    const __m128i two = op(four, _mm_unpackhi_epi64(four, four));
    return op(two, _mm_shuffle_epi32(two, 1));
}

TREADLE_LANES_WORD float sum(F32x16 a) { return _mm_cvtss_f32(tree<_mm_add_ps>(a)); }

TREADLE_LANES_WORD int32_t sum(I32x16 a) { return _mm_cvtsi128_si32(tree<_mm_add_epi32>(a)); }

TREADLE_LANES_WORD float max_lane(F32x16 a) { return _mm_cvtss_f32(tree<_mm_max_ps>(a)); }

TREADLE_LANES_WORD int32_t max_lane(I32x16 a) { return _mm_cvtsi128_si32(tree<_mm_max_epi32>(a)); }

}  // namespace treadle::cpu::sse41
