// The 16-lane vocabulary: every tier's words against the scalar ones by bits over special and random values,
// and base's exact fused multiply-add against the CPU's.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/exact_fma.h"
#include "cpu/lanes_dot_scalar.h"
#include "lanes_words.h"

#define TREADLE_TEST_TIER scalar
#include "lanes_words.inl"
#include "tiers.h"

LanesWords scalar_lanes_words() { return words::all(); }

namespace {

constexpr uint32_t special_bits[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x00000002, 0x007fffff, 0x807fffff, 0x00800000,
    0x80800000, 0x00800001, 0x33000000, 0x33000001, 0x33800000, 0x387fc000, 0x387fe000, 0x38800000,
    0x3effffff, 0x3f000000, 0x3f000001, 0x3f800000, 0xbf800000, 0x3f800001, 0x3fc00000, 0x40200000,
    0xc0200000, 0x477fe000, 0x477fefff, 0x477ff000, 0xc77ff000, 0x47800000, 0x4affffff, 0x4b000001,
    0x4effffff, 0x4f000000, 0xcf000000, 0xcf000001, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
    0x7fc00000, 0xffc00000, 0x7f800001, 0x7fffffff, 0x0d800000, 0x0d7fffff, 0x00007fff, 0x3c003c00,
    0x7c00fc00, 0x7e00fe01,
};

uint32_t any_bits(std::mt19937& random) {
    if (random() % 2 == 0) return special_bits[random() % (sizeof special_bits / sizeof special_bits[0])];
    if (random() % 2 == 0) return static_cast<uint32_t>(random());
    return std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(random())) * 0x1p-24f);
}

bool is_nan_f32(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }
bool is_nan_f16(uint32_t bits) { return (bits & 0x7fff) > 0x7c00; }

bool same(const LanesWord& word, const uint32_t* a, const uint32_t* b) {
    for (int i = 0; i < 16; ++i) {
        if (a[i] == b[i]) continue;
        if (word.gives_f32 && is_nan_f32(a[i]) && is_nan_f32(b[i])) continue;
        if (word.gives_f16) {
            const auto half_same = [](uint32_t x, uint32_t y) {
                return x == y || (is_nan_f16(x) && is_nan_f16(y));
            };
            if (half_same(a[i] & 0xffff, b[i] & 0xffff) && half_same(a[i] >> 16, b[i] >> 16)) continue;
        }
        return false;
    }
    return true;
}

bool same_f32(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

struct TierWords {
    const char* name;
    LanesWords words;
};

// Of all tiers that this processor runs.
std::vector<TierWords> runnable_words() {
    using treadle::cpu::CpuTier;
    std::vector<TierWords> all;
#define TREADLE_TEST_TIER_WORDS(tier) \
    if (treadle::cpu::cpu_has(CpuTier::tier)) all.push_back({#tier, tier##_lanes_words()});
    TREADLE_CPU_TIERS(TREADLE_TEST_TIER_WORDS)
#undef TREADLE_TEST_TIER_WORDS
    if (treadle::cpu::cpu_has(CpuTier::avx512))
        all.push_back({"avx2_vnni_on_avx512", avx2_vnni_on_avx512_lanes_words()});
    return all;
}

struct FmaInput {
    float a, b, c;
};

// A product beside half a unit of the addend's last place, or just that, at times among the subnormals.
FmaInput near_middle(std::mt19937_64& random) {
    const auto pick = [&](uint64_t count) { return static_cast<int>((random() >> 32) % count); };
    const bool subnormal = pick(2) == 0;
    const int exponent = subnormal ? -150 : pick(128) - 64;
    const float less = static_cast<float>(pick(16)) * 0x1p-23f;
    const float a = std::ldexp(pick(2) == 0 ? 1 + less : 1 - less, exponent / 2);
    const float b = std::ldexp(1 - less, exponent - exponent / 2);
    const auto mantissa = static_cast<float>((1 << 23) + (pick(2) == 0 ? -pick(2) : pick(1 << 23)));
    return {pick(2) == 0 ? a : -a, b, std::ldexp(mantissa, subnormal ? -149 - pick(32) : exponent + 1)};
}

FmaInput any_fma_input(std::mt19937_64& random) {
    const uint64_t x = random(), y = random();
    uint32_t bits[3] = {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32), static_cast<uint32_t>(y)};
    const auto pick = static_cast<uint32_t>(y >> 32);
    // Half of the time exponents such that product and addend meet; at times near the subnormals; at times specials.
    if (pick % 2 == 0) {
        const uint32_t low = pick % 8 == 0 ? 0x20000000u : 0x3f000000u;
        bits[0] = (bits[0] & 0x80ffffffu) | low;
        bits[1] = (bits[1] & 0x80ffffffu) | low;
        const uint32_t sum_exponent = pick % 8 == 0 ? (bits[2] >> 23 & 7u) : 98 + (bits[2] >> 23 & 63u);
        bits[2] = (bits[2] & 0x807fffffu) | sum_exponent << 23;
    } else if (pick % 16 == 1) {
        for (uint32_t& value : bits)
            value = special_bits[value % (sizeof special_bits / sizeof special_bits[0])];
    } else if (pick % 16 == 3) {
        return near_middle(random);
    }
    return {std::bit_cast<float>(bits[0]), std::bit_cast<float>(bits[1]), std::bit_cast<float>(bits[2])};
}

void check_words(const LanesWords& tier) {
    const LanesWords scalar = scalar_lanes_words();
    REQUIRE(scalar.count == tier.count);
    std::mt19937 random(7);
    for (int w = 0; w < scalar.count; ++w) {
        int different = 0;
        for (int round = 0; round < 3000; ++round) {
            LanesInput in;
            for (uint32_t* values : {in.a, in.b, in.c})
                for (int i = 0; i < 16; ++i) values[i] = any_bits(random);
            in.count = static_cast<int32_t>(random() % 17);
            alignas(64) uint32_t expected[16] = {};
            alignas(64) uint32_t found[16] = {};
            scalar.words[w].run(in, expected);
            tier.words[w].run(in, found);
            different += same(scalar.words[w], expected, found) ? 0 : 1;
        }
        INFO(scalar.words[w].name);
        CHECK(different == 0);
    }
}

}  // namespace

TEST_CASE("lanes: every word of every tier equals the scalar word by bits") {
    for (const TierWords& tier : runnable_words()) {
        INFO(std::string(tier.name));
        check_words(tier.words);
    }
}

TEST_CASE("lanes: the scalar words mean what they say") {
    using namespace treadle::cpu::scalar;
    CHECK(sum(add(to_f32(lane_numbers()), set1(0.5f))) == 128.0f);
    CHECK(max_lane(lane_numbers()) == 15);
    const F32x16 halves = mul(to_f32(lane_numbers()), set1(0.5f));
    const I32x16 rounded = to_i32(halves);
    CHECK(rounded.at[1] == 0);
    CHECK(rounded.at[3] == 2);
    CHECK(rounded.at[5] == 2);
    CHECK(to_i32(set1(-2147483648.0f)).at[0] == INT32_MIN);
    CHECK(to_i32(set1(2147483520.0f)).at[0] == 2147483520);
    uint16_t halfs[16];
    store_f16(halfs, set1(1e9f));
    CHECK(halfs[0] == 0x7bff);
    store_f16(halfs, set1(-INFINITY));
    CHECK(halfs[15] == 0xfbff);
    store_f16(halfs, set1(NAN));
    CHECK((halfs[0] & 0x7fff) > 0x7c00);
    // A tree, not a chain: 2^24 + 1 + 1 + … in another order would give another sum.
    float values[16] = {0x1p24f, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0};
    CHECK(sum(load(values)) == 0x1p24f + 4);
}

TEST_CASE("exact_fma: rounds once") {
    using treadle::exact_fma;
    static_assert(exact_fma(0x1.000002p0f, 0x1.000002p0f, -0x1.000004p0f) == 0x1p-46f);
    CHECK(std::bit_cast<uint32_t>(exact_fma(-1.0f, 0.0f, 0.0f)) == 0);
    CHECK(std::bit_cast<uint32_t>(exact_fma(-1.0f, 0.0f, -0.0f)) == 0x80000000);
    CHECK(exact_fma(0x1p-149f, 0.5f, 0.0f) == 0.0f);
    CHECK(exact_fma(0x1p-149f, 0.5f, 0x1p-149f) == 0x1p-148f);
    CHECK(exact_fma(0x1.fffffep127f, 2.0f, -0x1.fffffep127f) == 0x1.fffffep127f);
    CHECK(exact_fma(0x1.fffffep127f, 2.0f, 0.0f) == INFINITY);
    CHECK(std::isnan(exact_fma(INFINITY, 0.0f, 1.0f)));
    CHECK(std::isnan(exact_fma(INFINITY, 1.0f, -INFINITY)));
}

TEST_CASE("fma: every tier's and the CPU's own equal exact_fma on random and special values") {
    using treadle::exact_fma;
    constexpr int batch = 4096;
    std::vector<float> a(batch), b(batch), c(batch), expected(batch), found(batch);
    const auto count_different = [&] {
        long different = 0;
        for (int i = 0; i < batch; ++i) different += same_f32(expected[i], found[i]) ? 0 : 1;
        return different;
    };
    const std::vector<TierWords> tiers = runnable_words();
    std::vector<long> different(tiers.size());
    long hardware_different = 0;
    std::mt19937_64 random(11);
    for (int round = 0; round < 2600; ++round) {
        for (int i = 0; i < batch; ++i) {
            const FmaInput in = any_fma_input(random);
            a[i] = in.a;
            b[i] = in.b;
            c[i] = in.c;
            expected[i] = exact_fma(in.a, in.b, in.c);
        }
        for (size_t tier = 0; tier < tiers.size(); ++tier) {
            for (int i = 0; i < batch; i += 16) tiers[tier].words.fma(&a[i], &b[i], &c[i], &found[i]);
            different[tier] += count_different();
        }
        if (treadle::cpu::cpu_has(treadle::cpu::CpuTier::avx2)) {
            hardware_fma(a.data(), b.data(), c.data(), found.data(), batch);
            hardware_different += count_different();
        }
    }
    CHECK(hardware_different == 0);
    for (size_t tier = 0; tier < tiers.size(); ++tier) {
        INFO(std::string(tiers[tier].name));
        CHECK(different[tier] == 0);
    }
}
