// The functions of the numerics contract (rule 6): what the C library would give, but the same bytes on every compiler, CPU and
// operating system. Sampling, log-probabilities and the RoPE tables call them; the kernels' lanes repeat exp2 and exp.
//
// Invariant: only IEEE + - * / in the type's own precision, fma where a comment says so, and integer operations, in the order
// that is written here; rounding is to nearest (base/float_mode.h) and contraction is off. A NaN comes back as it is.
#pragma once

#include <bit>
#include <cstdint>

namespace treadle::math {

// The float exp2, shared by the scalar code and every tier: 2^n * (1 + f * q(f)), n = rint(x), f = x - n, by Horner's scheme in
// fma. Between its bounds 2^n * (...) is a normal number, so that n is simply added to the exponent's bits.
constexpr float exp2_floor = -92.0f;    // below: +0
constexpr float exp2_ceiling = 128.0f;  // from there on: +inf
constexpr float rint_magic =
    12582912.0f;  // 1.5 * 2^23: adding it leaves rint(x) in the low bits of the sum, for |x| < 2^22

// 2^f = 1 + f * (q1 + f * (q2 + ... + f * q6)), relative error 5.3e-9 on [-0.5, 0.5] with these rounded coefficients.
constexpr float exp2_q1 = 0x1.62e432p-1f;
constexpr float exp2_q2 = 0x1.ebfbe6p-3f;
constexpr float exp2_q3 = 0x1.c6ada8p-5f;
constexpr float exp2_q4 = 0x1.3b21ccp-7f;
constexpr float exp2_q5 = 0x1.5fbd7ep-10f;
constexpr float exp2_q6 = 0x1.4bcaeep-13f;

constexpr float log2e = 0x1.715476p+0f;       // log2(e) rounded
constexpr float log2e_rest = 0x1.4ae0cp-26f;  // log2(e) - log2e, rounded

// 2^x: exactly 1 at 0, +0 below -92, +inf from 128 on. Error below 0.82 ulp (all floats tried).
float exp2(float x);

// e^x = 2^(t + r): t = x * log2e rounded, r = fma(x, log2e_rest, fma(x, log2e, -t)); then as exp2 with n = rint(t) and
// f = (t - n) + r. +0 where t < -92, +inf where t >= 128. Error below 0.93 ulp (all floats tried).
float exp(float x);

// Natural logarithm, evaluated in double and rounded once: error below 0.5001 ulp (all floats tried). -inf at 0, NaN below.
float log(float x);

// In double, for tables. Error of sin and cos: below 1e-15 for |x| <= 2^25; beyond that and for infinities NaN.
double sin(double x);
double cos(double x);

// Relative error below 4e-16 where the result is normal; gradual underflow, +inf from 1024 on.
double exp2(double x);

// Error below 1e-15 * max(1, |log2(x)|). x <= 0: -inf at 0, NaN below.
double log2(double x);

// base^exponent = exp2(exponent * log2(base)) for base > 0: relative error below 1e-15 * (2 + |exponent * log2(base)|).
double pow(double base, double exponent);

}  // namespace treadle::math
