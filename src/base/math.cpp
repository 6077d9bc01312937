// base/math.h. The double part takes Taylor polynomials on small intervals: their coefficients are quotients of exact integers,
// so no table of constants has to be trusted. The float part says in scalar code what src/cpu/vector_math.inl says in lanes.

#include "base/math.h"

#include <limits>

#include "base/exact_fma.h"

namespace treadle::math {
namespace {

constexpr double double_rint_magic = 0x1.8p52;  // rint(x) = (x + magic) - magic for |x| < 2^51
constexpr double ln2 = 0x1.62e42fefa39efp-1;
constexpr double reduction_limit =
    0x1p25;  // the parts of pi/2 below have 28 bits, so that n * part is exact up to here

constexpr float float_inf = std::numeric_limits<float>::infinity();

// 2^(n + f) for the n that lies in the low bits of n_plus_magic.
float exp2_of_parts(float n_plus_magic, float f) {
    float q = exact_fma(f, exp2_q6, exp2_q5);
    q = exact_fma(f, q, exp2_q4);
    q = exact_fma(f, q, exp2_q3);
    q = exact_fma(f, q, exp2_q2);
    q = exact_fma(f, q, exp2_q1);
    const uint32_t exponent = std::bit_cast<uint32_t>(n_plus_magic) << 23;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(exact_fma(f, q, 1.0f)) + exponent);
}

double nan_double() { return std::numeric_limits<double>::quiet_NaN(); }

// sin and cos on [-pi/4, pi/4]: the first term left out is below 2^-57 of the sum.
double sin_polynomial(double r) {
    const double square = r * r;
    double sum = 1.0 / 355687428096000.0;  // 1/17!
    sum = -1.0 / 1307674368000.0 + square * sum;
    sum = 1.0 / 6227020800.0 + square * sum;
    sum = -1.0 / 39916800.0 + square * sum;
    sum = 1.0 / 362880.0 + square * sum;
    sum = -1.0 / 5040.0 + square * sum;
    sum = 1.0 / 120.0 + square * sum;
    sum = -1.0 / 6.0 + square * sum;
    return r + r * (square * sum);
}

double cos_polynomial(double r) {
    const double square = r * r;
    double sum = -1.0 / 6402373705728000.0;  // 1/18!
    sum = 1.0 / 20922789888000.0 + square * sum;
    sum = -1.0 / 87178291200.0 + square * sum;
    sum = 1.0 / 479001600.0 + square * sum;
    sum = -1.0 / 3628800.0 + square * sum;
    sum = 1.0 / 40320.0 + square * sum;
    sum = -1.0 / 720.0 + square * sum;
    sum = 1.0 / 24.0 + square * sum;
    sum = -0.5 + square * sum;
    return 1.0 + square * sum;
}

// Cody and Waite: x = quadrant * pi/2 + the returned remainder.
double reduce(double x, int* quadrant) {
    const double n = (x * 0x1.45f306dc9c883p-1 + double_rint_magic) - double_rint_magic;
    *quadrant = static_cast<int>(static_cast<int64_t>(n) & 3);
    double r = x - n * 0x1.921fb54p+0;  // exact, as is the next product
    r = r - n * 0x1.10b4610p-30;
    return r - n * 0x1.a62633145c06ep-58;
}

double from_quadrant(double r, int quadrant) {
    const double value = (quadrant & 1) != 0 ? cos_polynomial(r) : sin_polynomial(r);
    return (quadrant & 2) != 0 ? -value : value;
}

// value * 2^exponent for 1/2 < value < 2 and |exponent| <= 1100, with one rounding.
double scale_by_power(double value, int exponent) {
    if (exponent > 1023) {
        value *= 0x1p1023;
        exponent -= 1023;
    } else if (exponent < -1022) {
        const double small = std::bit_cast<double>(static_cast<uint64_t>(exponent + 200 + 1023) << 52);
        return (value * small) * 0x1p-200;
    }
    return value * std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// x = 2^exponent * (1 + s) / (1 - s) for a positive, finite x; returns log((1 + s) / (1 - s)), in ±log(2)/2.
double log_of_mantissa(double x, int* exponent) {
    int shift = 0;
    if (x < std::numeric_limits<double>::min()) {
        x *= 0x1p54;
        shift = -54;
    }
    const uint64_t bits = std::bit_cast<uint64_t>(x);
    double mantissa = std::bit_cast<double>((bits & 0x000fffffffffffff) | 0x3ff0000000000000);
    *exponent = static_cast<int>(bits >> 52) - 1023 + shift;
    if (mantissa > 0x1.6a09e667f3bcdp+0) {  // the square root of two
        mantissa *= 0.5;
        *exponent += 1;
    }
    const double s = (mantissa - 1.0) / (mantissa + 1.0);
    const double square = s * s;
    double sum = 1.0 / 23.0;  // the inverse hyperbolic tangent's series: s^2 <= 0.0295
    for (int odd = 21; odd >= 3; odd -= 2) sum = 1.0 / odd + square * sum;
    return 2.0 * s + 2.0 * s * (square * sum);
}

}  // namespace

float exp2(float x) {
    if (x != x) return x;
    if (x < exp2_floor) return 0.0f;
    if (x >= exp2_ceiling) return float_inf;
    const float n_plus_magic = x + rint_magic;
    return exp2_of_parts(n_plus_magic, x - (n_plus_magic - rint_magic));
}

float exp(float x) {
    if (x != x) return x;
    const float t = x * log2e;
    if (t < exp2_floor) return 0.0f;
    if (t >= exp2_ceiling) return float_inf;
    const float r = exact_fma(x, log2e_rest, exact_fma(x, log2e, 0.0f - t));
    const float n_plus_magic = t + rint_magic;
    return exp2_of_parts(n_plus_magic, (t - (n_plus_magic - rint_magic)) + r);
}

float log(float x) {
    if (x != x) return x;
    if (x <= 0) return x < 0 ? std::numeric_limits<float>::quiet_NaN() : -float_inf;
    if (x == float_inf) return x;
    int exponent = 0;
    const double rest = log_of_mantissa(x, &exponent);
    return static_cast<float>(exponent * ln2 + rest);
}

double sin(double x) {
    if (!(x >= -reduction_limit && x <= reduction_limit)) return x != x ? x : nan_double();
    int quadrant = 0;
    const double r = reduce(x, &quadrant);
    return from_quadrant(r, quadrant);
}

double cos(double x) {
    if (!(x >= -reduction_limit && x <= reduction_limit)) return x != x ? x : nan_double();
    int quadrant = 0;
    const double r = reduce(x, &quadrant);
    return from_quadrant(r, quadrant + 1);
}

double exp2(double x) {
    if (x != x) return x;
    if (x >= 1024.0) return std::numeric_limits<double>::infinity();
    if (x < -1080.0) return 0.0;
    const double n = (x + double_rint_magic) - double_rint_magic;
    const double y = (x - n) * ln2;
    double sum = 1.0 / 87178291200.0;  // 1/14!
    double factorial = 6227020800.0;
    for (int k = 13; k >= 1; k--) {
        sum = 1.0 / factorial + y * sum;
        factorial /= k;
    }
    return scale_by_power(1.0 + y * sum, static_cast<int>(n));
}

double log2(double x) {
    if (x != x) return x;
    if (x <= 0) return x < 0 ? nan_double() : -std::numeric_limits<double>::infinity();
    if (x > std::numeric_limits<double>::max()) return x;
    int exponent = 0;
    const double rest = log_of_mantissa(x, &exponent);
    return exponent + rest * 0x1.71547652b82fep+0;
}

double pow(double base, double exponent) { return exp2(exponent * log2(base)); }

}  // namespace treadle::math
