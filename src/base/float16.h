// Conversions between f32 and the 16-bit floats of model files and caches, in plain integer code, so that
// every compiler and CPU gives the same bytes. Called wherever a stored scale, weight or key is read or
// written without a SIMD conversion.
//
// Invariant: equal to F16C's vcvtph2ps and vcvtps2ph (round to nearest even) by bits, NaN included: a NaN
// keeps its sign and the top of its payload and becomes quiet.
#pragma once

#include <bit>
#include <cstdint>

namespace treadle {

constexpr float f16_max = 65504.0f;

constexpr float f32_from_f16(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16;
    const uint32_t exponent = half >> 10 & 0x1fu;
    const uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0) {  // zero and subnormals: units of 2^-24, all of them normal in f32
        const uint32_t magnitude = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
        return std::bit_cast<float>(sign | magnitude);
    }
    if (exponent == 31) {
        const uint32_t quiet = mantissa != 0 ? 0x00400000u : 0u;
        return std::bit_cast<float>(sign | 0x7f800000u | quiet | mantissa << 13);
    }
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Round to nearest even; beyond the largest half, infinity.
constexpr uint16_t f16_from_f32(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u)
        return static_cast<uint16_t>(sign | 0x7c00u);                  // 65520 is the tie to infinity
    if (magnitude <= 0x33000000u) return static_cast<uint16_t>(sign);  // 2^-25 is the tie to zero
    if (magnitude < 0x38800000u) {                                     // below 2^-14: a subnormal half
        const uint32_t mantissa = (magnitude & 0x007fffffu) | 0x00800000u;
        const uint32_t shift = 126 - (magnitude >> 23);  // to units of 2^-24: 14 to 24
        const uint32_t kept = mantissa >> shift;
        const uint32_t rest = mantissa & ((1u << shift) - 1);
        const uint32_t tie = 1u << (shift - 1);
        const uint32_t up = rest > tie || (rest == tie && (kept & 1u) != 0) ? 1u : 0u;
        return static_cast<uint16_t>(sign | (kept + up));
    }
    const uint32_t rebased = magnitude - (112u << 23);
    return static_cast<uint16_t>(sign | (rebased + 0xfffu + (rebased >> 13 & 1u)) >> 13);
}

// As stored in caches: finite values and infinities beyond the largest half become ±65504; NaN stays NaN.
constexpr uint16_t f16_from_f32_saturate(float value) {
    const uint16_t half = f16_from_f32(value);
    return (half & 0x7fffu) == 0x7c00u ? static_cast<uint16_t>(half - 1) : half;
}

// Exact, NaN payloads included.
constexpr float f32_from_bf16(uint16_t brain) {
    return std::bit_cast<float>(static_cast<uint32_t>(brain) << 16);
}

}  // namespace treadle
