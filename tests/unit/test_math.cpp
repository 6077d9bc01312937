// base/math.h against the C library's long double functions, base/philox.h against Random123's known answers, base/float_mode.h.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>

#include "base/float_mode.h"
#include "base/math.h"
#include "base/philox.h"

using namespace treadle;

namespace {

const double double_inf = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("math: sin and cos in double") {
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> unit(-1.0, 1.0);
    double worst = 0;
    for (int i = 0; i < 400000; i++) {
        const double x = std::ldexp(unit(random), i % 26);
        worst = std::max(worst,
                         std::abs(static_cast<double>(std::sin(static_cast<long double>(x)) - math::sin(x))));
        worst = std::max(worst,
                         std::abs(static_cast<double>(std::cos(static_cast<long double>(x)) - math::cos(x))));
    }
    for (int n = 0; n < 200000; n++) {  // near the borders of the quadrants
        const double x = n * 0.78539816339744830961;
        worst = std::max(worst,
                         std::abs(static_cast<double>(std::sin(static_cast<long double>(x)) - math::sin(x))));
        worst = std::max(worst,
                         std::abs(static_cast<double>(std::cos(static_cast<long double>(x)) - math::cos(x))));
    }
    MESSAGE("sin, cos: error " << worst);
    CHECK(worst < 1e-15);
    CHECK(math::sin(0.0) == 0.0);
    CHECK(math::cos(0.0) == 1.0);
    for (const double x : {double_inf, -double_inf, 0x1p26, std::nan("")}) {
        CHECK(std::isnan(math::sin(x)));
        CHECK(std::isnan(math::cos(x)));
    }
}

TEST_CASE("math: exp2, log2 and pow in double") {
    std::mt19937_64 random(2);
    std::uniform_real_distribution<double> unit(-1.0, 1.0);
    double worst_exp2 = 0, worst_log2 = 0, worst_pow = 0;
    for (int i = 0; i < 300000; i++) {
        const double x = 1020 * unit(random);
        const long double truth = std::exp2(static_cast<long double>(x));
        worst_exp2 = std::max(worst_exp2, std::abs(static_cast<double>((math::exp2(x) - truth) / truth)));
        const double y =
            std::ldexp(1.0 + std::abs(unit(random)), static_cast<int>(2000 * unit(random)) % 1022);
        const long double log_truth = std::log2(static_cast<long double>(y));
        worst_log2 = std::max(worst_log2, std::abs(static_cast<double>(math::log2(y) - log_truth)) /
                                              std::max(1.0, std::abs(static_cast<double>(log_truth))));
        const double base = std::exp2(30 * std::abs(unit(random)));
        const double exponent = unit(random);
        const long double pow_truth =
            std::pow(static_cast<long double>(base), static_cast<long double>(exponent));
        worst_pow = std::max(
            worst_pow, std::abs(static_cast<double>((math::pow(base, exponent) - pow_truth) / pow_truth)) /
                           (2 + std::abs(exponent * std::log2(base))));
    }
    MESSAGE("exp2: " << worst_exp2 << ", log2: " << worst_log2 << ", pow: " << worst_pow);
    CHECK(worst_exp2 < 4e-16);
    CHECK(worst_log2 < 1e-15);
    CHECK(worst_pow < 1e-15);
    for (int n = -1074; n <= 1023; n++) {
        CHECK(math::exp2(static_cast<double>(n)) == std::ldexp(1.0, n));
        CHECK(math::log2(std::ldexp(1.0, n)) == n);
    }
    CHECK(math::exp2(1024.0) == double_inf);
    CHECK(math::exp2(-2000.0) == 0.0);
    CHECK(math::exp2(-double_inf) == 0.0);
    CHECK(math::exp2(1023.75) == doctest::Approx(std::exp2(1023.75)).epsilon(1e-15));
    CHECK(math::log2(double_inf) == double_inf);
    CHECK(math::log2(0.0) == -double_inf);
    CHECK(std::isnan(math::log2(-1.0)));
    CHECK(std::isnan(math::exp2(std::nan(""))));
    CHECK(math::pow(10000.0, 0.0) == 1.0);
    CHECK(math::pow(1e9, -1.0) == doctest::Approx(1e-9).epsilon(1e-14));
}

TEST_CASE("philox: Random123's known answers") {
    CHECK(philox4x32_10({0, 0, 0, 0}, {0, 0}) ==
          PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    const uint32_t ones = 0xffffffff;
    CHECK(philox4x32_10({ones, ones, ones, ones}, {ones, ones}) ==
          PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    CHECK(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
          PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("philox: the layout of key and counter") {
    const uint64_t seed = 0x299f31d0a4093822, sample_index = 0x13198a2e243f6a88;
    CHECK(philox_words(seed, sample_index, 0x85a308d3) ==
          philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0}, {0xa4093822, 0x299f31d0}));
    double sum = 0;
    for (uint32_t position = 0; position < 20000; position++) {
        const double u = philox_uniform(7, 3, position);
        REQUIRE(u >= 0);
        REQUIRE(u < 1);
        sum += u;
    }
    CHECK(sum / 20000 == doctest::Approx(0.5).epsilon(0.02));
}

TEST_CASE("float mode: the contract's mode inside, the host's outside") {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0xFFC0);  // flush to zero, denormals are zero, round down, masked
    {
        const FloatMode mode;
        CHECK(_mm_getcsr() == 0x1F80);
        volatile float tiny = std::numeric_limits<float>::min();
        tiny = tiny * 0.5f;
        CHECK(tiny > 0);
    }
    CHECK(_mm_getcsr() == 0xFFC0);
    _mm_setcsr(before);
}

namespace {

const float float_inf = std::numeric_limits<float>::infinity();

// The distance from the truth in units of the last place of the truth's float.
double error_ulp(float value, long double truth) {
    const int exponent = std::ilogb(truth);
    return std::abs(static_cast<double>(std::ldexp(value - truth, 23 - exponent)));
}

template <class Function, class Truth>
double worst_ulp(Function function, Truth truth, uint32_t first_bits, uint32_t last_bits, uint32_t step) {
    double worst = 0;
    for (uint64_t bits = first_bits; bits <= last_bits; bits += step) {
        const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
        worst = std::max(worst, error_ulp(function(x), truth(static_cast<long double>(x))));
    }
    return worst;
}

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

// Every `step`-th float for which the result is finite and not zero; the smallest, of which exp2 and exp are 1, only in samples.
void check_float_functions(uint32_t step) {
    const uint32_t small = step > 1 ? 0 : bits_of(0x1p-27f);
    const uint32_t small_negative = small | 0x80000000;
    const auto exp2 = [](float x) { return math::exp2(x); };
    const auto exp2_truth = [](long double x) { return std::exp2(x); };
    const double worst_exp2 = std::max(worst_ulp(exp2, exp2_truth, small, bits_of(127.99999f), step),
                                       worst_ulp(exp2, exp2_truth, small_negative, bits_of(-92.0f), step));
    const auto exp = [](float x) { return math::exp(x); };
    const auto exp_truth = [](long double x) { return std::exp(x); };
    const double worst_exp = std::max(worst_ulp(exp, exp_truth, small, bits_of(88.72283f), step),
                                      worst_ulp(exp, exp_truth, small_negative, bits_of(-63.769539f), step));
    const auto log = [](float x) { return math::log(x); };
    const auto log_truth = [](long double x) { return x == 1 ? 1e-30L : std::log(x); };
    const double worst_log =
        std::max(worst_ulp(log, log_truth, 1, bits_of(1.0f) - 1, step),
                 worst_ulp(log, log_truth, bits_of(1.0f) + 1, bits_of(float_inf) - 1, step));
    MESSAGE("exp2: " << worst_exp2 << " ulp, exp: " << worst_exp << " ulp, log: " << worst_log << " ulp");
    CHECK(worst_exp2 < 0.82);
    CHECK(worst_exp < 0.93);
    CHECK(worst_log < 0.5001);
}

}  // namespace

TEST_CASE("math: exp2, exp and log in float, a sample of all inputs") { check_float_functions(4999); }

TEST_CASE("math: exp2, exp and log in float, all inputs" * doctest::skip()) { check_float_functions(1); }

TEST_CASE("math: exp2, exp and log in float, edges") {
    CHECK(math::exp2(0.0f) == 1.0f);
    CHECK(math::exp2(-0.0f) == 1.0f);
    CHECK(math::exp(0.0f) == 1.0f);
    CHECK(math::exp(-0.0f) == 1.0f);
    for (int n = -92; n < 128; n++) CHECK(math::exp2(static_cast<float>(n)) == std::ldexp(1.0f, n));
    for (const float x : {std::nextafter(-92.0f, -100.0f), -100.0f, -3e38f, -float_inf}) {
        CHECK(bits_of(math::exp2(x)) == 0);
        CHECK(bits_of(math::exp(x)) == 0);
    }
    for (const float x : {128.0f, 1000.0f, 3e38f, float_inf}) {
        CHECK(math::exp2(x) == float_inf);
        CHECK(math::exp(x) == float_inf);
    }
    CHECK(math::exp2(std::nextafter(128.0f, 0.0f)) < float_inf);
    for (const uint32_t bits : {0x7fc00000u, 0xffc12345u, 0x7fffffffu}) {
        const float x = std::bit_cast<float>(bits);
        CHECK(bits_of(math::exp2(x)) == bits);
        CHECK(bits_of(math::exp(x)) == bits);
        CHECK(bits_of(math::log(x)) == bits);
    }
    CHECK(bits_of(math::log(1.0f)) == 0);
    CHECK(math::log(0.0f) == -float_inf);
    CHECK(math::log(float_inf) == float_inf);
    CHECK(std::isnan(math::log(-1.0f)));
    CHECK(math::log(std::bit_cast<float>(1u)) == doctest::Approx(-103.278929903));
}
