// The rope table against the C library's double functions and the published formulas, which are written out
// here once more and differently: YaRN as in its paper (wavelengths and turns), with the rounding to whole
// pairs that all implementations share.
#include <doctest/doctest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "model/rope_tables.h"
#include "model_fixture.h"

using namespace treadle;

namespace {

struct Made {
    test::TestAllocator allocator;
    Memory memory{allocator.hooks(), MemoryKind::other};
    RopeTable table{&memory};
    explicit Made(const RopeParameters& rope, const std::vector<float>& factors = {}) {
        table.make(rope, factors);
    }
};

RopeParameters plain(int32_t dims, double base) {
    RopeParameters rope;
    rope.rotary_dims = dims;
    rope.freq_base = base;
    return rope;
}

void check_close(double got, double expected, double relative) {
    CHECK(std::abs(got - expected) <= relative * std::abs(expected));
}

}  // namespace

TEST_CASE("rope: plain frequencies and angles") {
    for (const double base : {10000.0, 100000.0, 500000.0, 1000000.0}) {
        const int32_t dims = 64;
        const Made made(plain(dims, base));
        REQUIRE(made.table.pairs() == 32);
        CHECK(made.table.amplitude() == 1.0);
        std::vector<float> row(64);
        for (const int32_t position : {0, 1, 2, 7, 255, 4399, 8191, 131071, (1 << 24) - 1}) {
            made.table.fill(position, row.data());
            for (int32_t i = 0; i < 32; ++i) {
                const double frequency = std::pow(base, -2.0 * i / dims);
                check_close(made.table.frequencies()[i], frequency, 1e-14);
                const double angle = position * made.table.frequencies()[i];
                CHECK(row[2 * i] == static_cast<float>(std::cos(angle)));
                CHECK(row[2 * i + 1] == static_cast<float>(std::sin(angle)));
            }
        }
    }
}

TEST_CASE("rope: position 0 turns nothing") {
    RopeParameters rope = plain(16, 10000);
    const Made made(rope);
    float row[16];
    made.table.fill(0, row);
    for (int i = 0; i < 8; ++i) {
        CHECK(row[2 * i] == 1.0f);
        CHECK(row[2 * i + 1] == 0.0f);
    }
}

TEST_CASE("rope: linear scaling divides all frequencies") {
    RopeParameters rope = plain(64, 10000);
    const Made own(rope);
    rope.scaling = RopeScaling::linear;
    rope.factor = 4;
    rope.attention_factor = 0.5;
    const Made scaled(rope);
    CHECK(scaled.table.amplitude() == 0.5);
    for (int i = 0; i < 32; ++i) CHECK(scaled.table.frequencies()[i] == own.table.frequencies()[i] / 4);
}

TEST_CASE("rope: llama3 factors divide their pair's frequency") {
    // As the converter writes them for factor 8, low 1, high 4, original context 8192 (Llama 3.1), head_dim
    // 128.
    const int32_t dims = 128;
    const double base = 500000, factor = 8, low = 1, high = 4, original = 8192;
    std::vector<float> factors;
    std::vector<double> expected;
    for (int i = 0; i < dims / 2; ++i) {
        const double frequency = std::pow(base, -2.0 * i / dims);
        const double wavelength = 2 * std::numbers::pi / frequency;
        const double smooth = (original / wavelength - low) / (high - low);
        const double blended = wavelength < original / high ? frequency
                               : wavelength > original / low
                                   ? frequency / factor
                                   : (1 - smooth) * frequency / factor + smooth * frequency;
        expected.push_back(blended);
        factors.push_back(static_cast<float>(frequency / blended));
    }
    const Made made(plain(dims, base), factors);
    for (int i = 0; i < dims / 2; ++i) check_close(made.table.frequencies()[i], expected[i], 1e-7);
    CHECK(factors.front() == 1.0f);
    CHECK(factors.back() == 8.0f);
}

TEST_CASE("rope: yarn keeps fast pairs, interpolates slow ones, blends between") {
    struct Case {
        int32_t dims;
        double base, factor;
        int32_t original;
        double fast, slow;
    };
    const Case cases[] = {
        {64, 10000, 4, 2048, 32, 1},  {128, 10000, 32, 4096, 32, 1},    {128, 1000000, 4, 32768, 32, 1},
        {64, 100000, 2, 8192, 16, 2}, {16, 10000, 4, 64, 32, 1},        {16, 10000, 1, 256, 32, 1},
        {64, 2, 8, 100, 32, 1},       {128, 10000, 40, 4096, 32, 1e-3}, {32, 1.001, 4, 1 << 24, 32, 1}};
    for (const Case& c : cases) {
        RopeParameters rope = plain(c.dims, c.base);
        rope.scaling = RopeScaling::yarn;
        rope.factor = c.factor;
        rope.original_context = c.original;
        rope.beta_fast = c.fast;
        rope.beta_slow = c.slow;
        const Made made(rope);
        const auto pair_with = [&](double turns) {  // base^(2 pair / dims) = original / (2 pi turns)
            return 0.5 * c.dims * std::log(c.original / (2 * std::numbers::pi * turns)) / std::log(c.base);
        };
        const double low = std::fmax(std::floor(pair_with(c.fast)), 0.0);
        const double high = std::fmin(std::ceil(pair_with(c.slow)), c.dims - 1.0);
        for (int i = 0; i < c.dims / 2; ++i) {
            const double frequency = std::pow(c.base, -2.0 * i / c.dims);
            const double ramp = std::fmin(1.0, std::fmax(0.0, (i - low) / std::fmax(0.001, high - low)));
            check_close(made.table.frequencies()[i], frequency * (1 - ramp) + frequency / c.factor * ramp,
                        1e-13);
        }
        check_close(made.table.amplitude(), 1 + 0.1 * std::log(c.factor), 1e-14);
        std::vector<float> row(static_cast<size_t>(c.dims));
        made.table.fill(1000, row.data());
        for (int i = 0; i < c.dims / 2; ++i) {
            const double angle = 1000 * made.table.frequencies()[i];
            CHECK(std::abs(row[2 * i] - std::cos(angle) * made.table.amplitude()) < 1e-7);
            CHECK(std::abs(row[2 * i + 1] - std::sin(angle) * made.table.amplitude()) < 1e-7);
        }
    }
}

TEST_CASE("rope: the stated attention factor multiplies yarn's own") {
    RopeParameters rope = plain(64, 10000);
    rope.scaling = RopeScaling::yarn;
    rope.factor = 4;
    rope.original_context = 2048;
    rope.attention_factor = 0.25;
    check_close(Made(rope).table.amplitude(), 0.25 * (1 + 0.1 * std::log(4.0)), 1e-14);
}

TEST_CASE("rope: a table lives in the memory it was given") {
    Made made(plain(128, 10000));
    CHECK(made.memory.bytes_in_use() == 64 * sizeof(double));
}
