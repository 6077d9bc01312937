// f16 and bf16 conversions: all halves, and many floats against the CPU's own F16C where it has it.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "base/float16.h"
#include "gguf_writer.h"

namespace treadle {
namespace {

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

#if defined(__x86_64__)
bool has_f16c() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

__attribute__((target("f16c"))) uint32_t hardware_f32_bits(uint16_t half) {
    return bits_of(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half))));
}

__attribute__((target("f16c"))) uint16_t hardware_f16(float value) {
    const __m128i halves = _mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT);
    return static_cast<uint16_t>(_mm_cvtsi128_si32(halves));
}
#else
bool has_f16c() { return false; }
uint32_t hardware_f32_bits(uint16_t) { return 0; }
uint16_t hardware_f16(float) { return 0; }
#endif

}  // namespace

TEST_CASE("float16: every half keeps its value through f32") {
    for (uint32_t half = 0; half < 65536; ++half) {
        const auto bits = static_cast<uint16_t>(half);
        const float value = f32_from_f16(bits);
        const uint32_t exponent = half >> 10 & 31;
        const uint32_t mantissa = half & 1023;
        const double sign = half >= 32768 ? -1.0 : 1.0;
        if (exponent == 31) {
            CHECK((mantissa != 0 ? std::isnan(value) : std::isinf(value)));
            CHECK(std::signbit(value) == (sign < 0));
        } else {
            const double expected = exponent == 0
                                        ? std::ldexp(mantissa, -24)
                                        : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
            CHECK(static_cast<double>(value) == sign * expected);
            CHECK(std::signbit(value) == (sign < 0));
        }
        const bool nan = exponent == 31 && mantissa != 0;
        CHECK(f16_from_f32(value) == (nan ? (bits | 0x200) : bits));
        if (has_f16c()) CHECK(bits_of(value) == hardware_f32_bits(bits));
    }
}

TEST_CASE("float16: rounding to half goes to the nearest, ties to even, between every two neighbours") {
    for (uint32_t half = 0; half < 0x7bff; ++half) {
        const double lower = f32_from_f16(static_cast<uint16_t>(half));
        const double upper = f32_from_f16(static_cast<uint16_t>(half + 1));
        const auto middle = static_cast<float>((lower + upper) / 2);  // exact: it has one more bit
        const auto even = static_cast<uint16_t>(half + (half & 1));
        CHECK(f16_from_f32(middle) == even);
        CHECK(f16_from_f32(std::nextafter(middle, 0.0f)) == half);
        CHECK(f16_from_f32(std::nextafter(middle, 1e9f)) == half + 1);
        CHECK(f16_from_f32(-middle) == (even | 0x8000));
    }
    CHECK(f16_from_f32(std::nextafter(65520.0f, 0.0f)) == 0x7bff);
    CHECK(f16_from_f32(65520.0f) == 0x7c00);
    CHECK(f16_from_f32(-1e30f) == 0xfc00);
}

TEST_CASE("float16: floats round as F16C does") {
    if (!has_f16c()) return;
    const auto check = [](uint32_t bits) {
        const float value = std::bit_cast<float>(bits);
        const uint16_t half = f16_from_f32(value);
        if (half != hardware_f16(value)) FAIL("bits " << bits << " gave " << half);
        return true;
    };
    uint64_t checked = 0;
    for (uint64_t bits = 0; bits < 1ull << 32; bits += 997) checked += check(static_cast<uint32_t>(bits));
    test::Random random(1);
    for (int i = 0; i < 2'000'000; ++i) {  // the range in which halves live
        const uint32_t magnitude = 0x32000000u + random.below(0x48000000u - 0x32000000u);
        checked += check(magnitude | random.below(2) << 31);
    }
    CHECK(checked > 6'000'000);
}

TEST_CASE("float16: the saturating form clamps at 65504 and keeps NaN") {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    CHECK(f16_from_f32_saturate(infinity) == 0x7bff);
    CHECK(f16_from_f32_saturate(-infinity) == 0xfbff);
    CHECK(f16_from_f32_saturate(65520.0f) == 0x7bff);
    CHECK(f16_from_f32_saturate(-3e38f) == 0xfbff);
    CHECK(f16_from_f32_saturate(65503.0f) == f16_from_f32(65503.0f));
    CHECK(f16_from_f32_saturate(-0.0f) == 0x8000);
    const uint16_t nan = f16_from_f32_saturate(std::numeric_limits<float>::quiet_NaN());
    CHECK(std::isnan(f32_from_f16(nan)));
}

TEST_CASE("float16: bf16 is the upper half of an f32") {
    for (uint32_t brain = 0; brain < 65536; ++brain) {
        CHECK(bits_of(f32_from_bf16(static_cast<uint16_t>(brain))) == brain << 16);
    }
    static_assert(f32_from_bf16(0x3f80) == 1.0f);
    static_assert(f32_from_f16(0x3c00) == 1.0f && f16_from_f32(-2.0f) == 0xc000);
}

}  // namespace treadle
