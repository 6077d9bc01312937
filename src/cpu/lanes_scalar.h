// The vocabulary of 16 lanes in plain C++: the meaning of every word. Each kernel of src/cpu is written
// once over these words and compiled per tier, inside the namespace of that tier; lanes_sse41.h,
// lanes_256.inl and lanes_avx512.h say the same words for other tiers.
//
// Invariant: for equal inputs every tier's word gives equal bits, except that of a NaN only the fact is
// promised. Words need rounding to nearest and no flushing of subnormals (MXCSR 0x1F80). A mask is an
// I32x16 with each lane all ones or all zeros. Everything is always_inline in the tier's own namespace:
// no function compiled for one tier may be called by another.
#pragma once

#include <bit>
#include <cstdint>

#include "base/exact_fma.h"
#include "base/float16.h"
#include "cpu/lanes.h"

// Kept as loops: unrolled, the kernels would take minutes to compile.
#if defined(__clang__)
#define TREADLE_EACH_LANE _Pragma("clang loop unroll(disable)") for (int lane = 0; lane < 16; ++lane)
#else
#define TREADLE_EACH_LANE _Pragma("GCC unroll 1") for (int lane = 0; lane < 16; ++lane)
#endif

namespace treadle::cpu::scalar {

struct F32x16 {
    float at[16];
};

struct I32x16 {
    int32_t at[16];
};

constexpr const char* tier_name = "scalar";
constexpr Rates rates = {0.5, 0.3, 0.3, 0.1, 10};
constexpr int32_t accumulators_max = 6;  // values that registers hold beside what else a loop needs

// ---- Making, loading, storing. Pointers need no alignment.

TREADLE_LANES_WORD F32x16 set1(float value) {
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = value;
    return r;
}

TREADLE_LANES_WORD I32x16 set1(int32_t value) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = value;
    return r;
}

TREADLE_LANES_WORD F32x16 zero_f32() { return set1(0.0f); }

TREADLE_LANES_WORD I32x16 lane_numbers() {  // 0, 1, … 15
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = lane;
    return r;
}

TREADLE_LANES_WORD F32x16 load(const float* from) {
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = from[lane];
    return r;
}

TREADLE_LANES_WORD I32x16 load(const int32_t* from) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = from[lane];
    return r;
}

TREADLE_LANES_WORD F32x16 load_first(const float* from,
                                     int count) {  // lanes from `count` (0 .. 16) on are +0, not read
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = lane < count ? from[lane] : 0.0f;
    return r;
}

TREADLE_LANES_WORD void store(float* to, F32x16 a) { TREADLE_EACH_LANE to[lane] = a.at[lane]; }

TREADLE_LANES_WORD void store(int32_t* to, I32x16 a) { TREADLE_EACH_LANE to[lane] = a.at[lane]; }

TREADLE_LANES_WORD void store_first(float* to, F32x16 a,
                                    int count) {  // lanes from `count` (0 .. 16) on are not written
    for (int lane = 0; lane < count; ++lane) to[lane] = a.at[lane];
}

TREADLE_LANES_WORD void store_i8(int8_t* to, I32x16 a) {  // lanes in -128 .. 127
    TREADLE_EACH_LANE to[lane] = static_cast<int8_t>(a.at[lane]);
}

TREADLE_LANES_WORD I32x16 load_i8(const int8_t* from) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = from[lane];
    return r;
}

TREADLE_LANES_WORD I32x16 load_u8(const uint8_t* from) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = from[lane];
    return r;
}

// ---- f16, round to nearest even; stored as caches do: beyond ±65504 saturating, NaN stays NaN.

TREADLE_LANES_WORD F32x16 load_f16(const uint16_t* from) {
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = f32_from_f16(from[lane]);
    return r;
}

TREADLE_LANES_WORD void store_f16(uint16_t* to, F32x16 a) {
    TREADLE_EACH_LANE to[lane] = f16_from_f32_saturate(a.at[lane]);
}

TREADLE_LANES_WORD F32x16 load_bf16(const uint16_t* from) {
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = f32_from_bf16(from[lane]);
    return r;
}

// ---- Nibbles that index a table of 16 small integers, as floats.

struct Levels {
    float at[16];
};

TREADLE_LANES_WORD Levels load_levels(const int8_t* levels) {
    Levels r;
    TREADLE_EACH_LANE r.at[lane] = levels[lane];
    return r;
}

template <int half>
TREADLE_LANES_WORD F32x16 look_up(const Levels& levels,
                                  const uint8_t* from) {  // low (0) or high bits of 16 bytes
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = levels.at[from[lane] >> 4 * half & 15];
    return r;
}

// ---- Float arithmetic, each result rounded once.

TREADLE_LANES_WORD F32x16 add(F32x16 a, F32x16 b) {
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] + b.at[lane];
    return r;
}

TREADLE_LANES_WORD F32x16 sub(F32x16 a, F32x16 b) {
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] - b.at[lane];
    return r;
}

TREADLE_LANES_WORD F32x16 mul(F32x16 a, F32x16 b) {
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] * b.at[lane];
    return r;
}

TREADLE_LANES_WORD F32x16 div(F32x16 a, F32x16 b) {
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] / b.at[lane];
    return r;
}

TREADLE_LANES_WORD F32x16 sqrt(F32x16 a) {
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = __builtin_sqrtf(a.at[lane]);
    return r;
}

TREADLE_LANES_WORD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {  // a · b + c, rounded once
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = exact_fma(a.at[lane], b.at[lane], c.at[lane]);
    return r;
}

TREADLE_LANES_WORD F32x16 min(F32x16 a, F32x16 b) {  // b where either is NaN or both are zeros
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] < b.at[lane] ? a.at[lane] : b.at[lane];
    return r;
}

TREADLE_LANES_WORD F32x16 max(F32x16 a, F32x16 b) {  // b where either is NaN or both are zeros
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] > b.at[lane] ? a.at[lane] : b.at[lane];
    return r;
}

// ---- Integer arithmetic, wrapping.

TREADLE_LANES_WORD I32x16 add(I32x16 a, I32x16 b) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] =
        static_cast<int32_t>(static_cast<uint32_t>(a.at[lane]) + static_cast<uint32_t>(b.at[lane]));
    return r;
}

TREADLE_LANES_WORD I32x16 sub(I32x16 a, I32x16 b) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] =
        static_cast<int32_t>(static_cast<uint32_t>(a.at[lane]) - static_cast<uint32_t>(b.at[lane]));
    return r;
}

TREADLE_LANES_WORD I32x16 max(I32x16 a, I32x16 b) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] > b.at[lane] ? a.at[lane] : b.at[lane];
    return r;
}

template <int count>
TREADLE_LANES_WORD I32x16 shift_left(I32x16 a) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = static_cast<int32_t>(static_cast<uint32_t>(a.at[lane]) << count);
    return r;
}

template <int count>
TREADLE_LANES_WORD I32x16 shift_right(I32x16 a) {  // zeros come in
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = static_cast<int32_t>(static_cast<uint32_t>(a.at[lane]) >> count);
    return r;
}

template <int count>
TREADLE_LANES_WORD I32x16 shift_right_signed(I32x16 a) {  // the sign comes in
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] >> count;
    return r;
}

// ---- Bits.

TREADLE_LANES_WORD I32x16 bits_of(F32x16 a) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = std::bit_cast<int32_t>(a.at[lane]);
    return r;
}

TREADLE_LANES_WORD F32x16 f32_of_bits(I32x16 a) {
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = std::bit_cast<float>(a.at[lane]);
    return r;
}

TREADLE_LANES_WORD I32x16 bit_and(I32x16 a, I32x16 b) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] & b.at[lane];
    return r;
}

TREADLE_LANES_WORD I32x16 bit_or(I32x16 a, I32x16 b) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] | b.at[lane];
    return r;
}

TREADLE_LANES_WORD I32x16 bit_xor(I32x16 a, I32x16 b) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] ^ b.at[lane];
    return r;
}

// ---- Conversions.

TREADLE_LANES_WORD F32x16 to_f32(I32x16 a) {  // rounded to nearest even
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = static_cast<float>(a.at[lane]);
    return r;
}

// Rounded to nearest even; INT32_MIN for NaN and what int32 cannot hold. In double, adding 1.5 · 2^52
// leaves the rounded integer in the low bits.
TREADLE_LANES_WORD I32x16 to_i32(F32x16 a) {
    I32x16 r;
    TREADLE_EACH_LANE {
        const float value = a.at[lane];
        const bool fits = value >= -0x1p31f && value < 0x1p31f;
        const uint64_t rounded = std::bit_cast<uint64_t>(static_cast<double>(value) + 0x1.8p52);
        r.at[lane] = fits ? static_cast<int32_t>(static_cast<uint32_t>(rounded)) : INT32_MIN;
    }
    return r;
}

// ---- Comparing and choosing. A comparison with a NaN is false.

TREADLE_LANES_WORD I32x16 less(F32x16 a, F32x16 b) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] < b.at[lane] ? -1 : 0;
    return r;
}

TREADLE_LANES_WORD I32x16 equal(F32x16 a, F32x16 b) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] == b.at[lane] ? -1 : 0;
    return r;
}

TREADLE_LANES_WORD I32x16 less(I32x16 a, I32x16 b) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane] < b.at[lane] ? -1 : 0;
    return r;
}

TREADLE_LANES_WORD F32x16 select(I32x16 mask, F32x16 yes, F32x16 no) {
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = mask.at[lane] != 0 ? yes.at[lane] : no.at[lane];
    return r;
}

TREADLE_LANES_WORD I32x16 select(I32x16 mask, I32x16 yes, I32x16 no) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = mask.at[lane] != 0 ? yes.at[lane] : no.at[lane];
    return r;
}

TREADLE_LANES_WORD uint32_t mask_bits(I32x16 mask) {  // bit i is lane i
    uint32_t bits = 0;
    TREADLE_EACH_LANE bits |= (mask.at[lane] != 0 ? 1u : 0u) << lane;
    return bits;
}

// ---- Across lanes.

template <int stride>
TREADLE_LANES_WORD F32x16 swap_lanes(F32x16 a) {  // lane i takes lane i xor stride, a power of two
    F32x16 r;
    TREADLE_EACH_LANE r.at[lane] = a.at[lane ^ stride];
    return r;
}

// Trees of strides 8, 4, 2, 1, lane i taking in lane i + stride.

TREADLE_LANES_WORD float sum(F32x16 a) {
    for (int stride = 8; stride > 0; stride /= 2)
        for (int lane = 0; lane < stride; ++lane) a.at[lane] = a.at[lane] + a.at[lane + stride];
    return a.at[0];
}

TREADLE_LANES_WORD int32_t sum(I32x16 a) {  // must not overflow
    int32_t total = 0;
    TREADLE_EACH_LANE total += a.at[lane];
    return total;
}

TREADLE_LANES_WORD float max_lane(F32x16 a) {  // the tree of max(lane i, lane i + stride)
    for (int stride = 8; stride > 0; stride /= 2)
        for (int lane = 0; lane < stride; ++lane)
            a.at[lane] = a.at[lane] > a.at[lane + stride] ? a.at[lane] : a.at[lane + stride];
    return a.at[0];
}

TREADLE_LANES_WORD int32_t max_lane(I32x16 a) {
    int32_t best = a.at[0];
    TREADLE_EACH_LANE best = a.at[lane] > best ? a.at[lane] : best;
    return best;
}

}  // namespace treadle::cpu::scalar
