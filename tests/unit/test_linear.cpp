// The linear kernels of every tier and type, against a slow reference by bits and against double within a
// tolerance: random weights, extremes, scales that are not finite, every count of rows and every cut.
#include <doctest/doctest.h>

#include <string>

#include "test_linear_support.h"
#include "tiers.h"

using namespace treadle;
using namespace treadle::test;

namespace {

constexpr float untouched = 12345.0f;

struct Packed {
    explicit Packed(TensorBytes& source) {
        Error error;
        const Status status =
            pack_whole(source, WeightUse::matrix, source.data.data(), &memory.weights, &weight, &error);
        INFO(std::string(error.message));
        REQUIRE(status == Status::OK);
    }
    TestMemory memory;
    WholeWeight weight;
};

std::vector<float> reference_outputs(const ReferenceMatrix& matrix, const Activations& act) {
    const auto outputs = static_cast<size_t>(matrix.rows());
    std::vector<float> out(static_cast<size_t>(act.rows) * outputs);
    for (size_t t = 0; t < static_cast<size_t>(act.rows); ++t)
        for (size_t n = 0; n < outputs; ++n) out[t * outputs + n] = matrix.dot(n, act, t);
    return out;
}

int count_different(const std::vector<float>& a, const std::vector<float>& b) {
    int different = a.size() == b.size() ? 0 : 1;
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) different += same_f32(a[i], b[i]) ? 0 : 1;
    return different;
}

// Runs the whole matrix with every row of `act` in every tier, and returns how many outputs differ.
int count_different(TensorBytes& source, Activations& act) {
    Packed packed(source);
    const std::vector<float> expected = reference_outputs(ReferenceMatrix(source), act);
    const cpu::PackedMatrix& w = packed.weight.matrix;
    int different = 0;
    for (const cpu::Kernels* tier : test::runnable_kernels()) {
        std::vector<float> out(expected.size(), untouched);
        tier->linear(w, nullptr, act.act(), nullptr, act.rows, 0, w.panels(), out.data(),
                     static_cast<size_t>(w.rows));
        different += count_different(expected, out);
    }
    return different;
}

std::vector<int64_t> column_counts(TensorType type) {
    const auto block = static_cast<int64_t>(type_info(type).block_values);
    if (block == 256) return {256, 1280, 2304};
    if (block == 32) return {32, 96, 1056, 2080};
    return {1, 33, 1024, 2080};
}

}  // namespace

TEST_CASE("linear: every type and tier equals the reference by bits, whatever the cut") {
    std::mt19937 random(3);
    for (int index = 0; index < type_count; ++index) {
        const TypeInfo& info = type_at(index);
        for (const int64_t columns : column_counts(info.type)) {
            INFO(std::string(info.name) << ", columns " << columns);
            const auto rows = static_cast<int64_t>(1 + random() % 40);
            TensorBytes source(info.type, rows, columns);
            fill_random(source, random);
            Packed packed(source);
            Activations act(9, static_cast<int32_t>(columns));
            act.fill(random);
            const std::vector<float> expected = reference_outputs(ReferenceMatrix(source), act);
            const cpu::PackedMatrix& w = packed.weight.matrix;
            const auto outputs = static_cast<size_t>(rows);
            const size_t stride = outputs + 3;
            for (const cpu::Kernels* tier : test::runnable_kernels()) {
                INFO(std::string(tier->tier));
                int different = 0;
                for (int32_t count = 1; count <= act.rows; ++count) {
                    std::vector<float> out(static_cast<size_t>(count) * stride, untouched);
                    const auto cut = static_cast<int32_t>(random() % static_cast<uint32_t>(w.panels() + 1));
                    tier->linear(w, nullptr, act.act(), nullptr, count, cut, w.panels(), out.data(), stride);
                    tier->linear(w, nullptr, act.act(), nullptr, count, 0, cut, out.data(), stride);
                    for (size_t t = 0; t < static_cast<size_t>(count); ++t)
                        for (size_t n = 0; n < stride; ++n)
                            different += same_f32(out[t * stride + n],
                                                  n < outputs ? expected[t * outputs + n] : untouched)
                                             ? 0
                                             : 1;
                }
                CHECK(different == 0);
            }
        }
    }
}

TEST_CASE("linear: weights at their bounds with activations at ±127 stay exact") {
    std::mt19937 random(5);
    for (int index = 0; index < type_count; ++index) {
        const TypeInfo& info = type_at(index);
        if (packed_kind(info.type) == nullptr) continue;
        INFO(std::string(info.name));
        for (const int pattern : {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0, 0x55, 0xaa}) {
            TensorBytes source(info.type, 16, 512);
            fill_blocks(source, random, [&] { return pattern; });
            Activations act(4, 512);
            for (size_t i = 0; i < act.q.size(); ++i) {
                const size_t row = i / 512;
                act.q[i] = row == 0 || (row == 2 && i % 2 == 0) || (row == 3 && i % 32 < 16) ? int8_t{127}
                                                                                             : int8_t{-127};
            }
            for (float& scale : act.scale) scale = 0.25f;
            act.count_sums();
            INFO(pattern);
            CHECK(count_different(source, act) == 0);
        }
    }
}

TEST_CASE("linear: scales that are zero, subnormal, infinite or NaN spread as the reference says") {
    std::mt19937 random(9);
    constexpr uint16_t halves[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff,
                                   0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x3c00};
    for (int index = 0; index < type_count; ++index) {
        const TypeInfo& info = type_at(index);
        if (packed_kind(info.type) == nullptr) continue;
        INFO(std::string(info.name));
        TensorBytes source(info.type, 48, 512);
        fill_random(source, random);
        for (size_t at = 0; at < source.data.size(); at += info.block_bytes) {
            if (random() % 4 != 0) continue;
            uint8_t* block = source.data.data() + at;
            put_half(block, half_fields(info.type).scale, halves[random() % 10]);
            put_half(block, half_fields(info.type).minimum, halves[random() % 10]);
            if (info.type == TensorType::MXFP4)
                block[0] = static_cast<uint8_t>(random() % 2 == 0 ? random() % 3 : 253 + random() % 3);
        }
        Activations act(5, 512);
        act.fill(random);
        constexpr float scales[] = {0.0f, 0x1p-149f, 0x1p-100f, 0x1p120f, INFINITY, NAN};
        for (size_t i = 0; i < act.scale.size(); ++i)
            if (random() % 8 == 0 && i >= act.scale.size() / 2) act.scale[i] = scales[random() % 6];
        CHECK(count_different(source, act) == 0);
    }
}

TEST_CASE("linear: up to 33 rows, gathered in any order, with a bias added last") {
    std::mt19937 random(13);
    for (const TensorType type : {TensorType::Q4_1, TensorType::Q8_0, TensorType::Q6_K, TensorType::F16}) {
        TensorBytes source(type, 40, 1280);
        fill_random(source, random);
        Packed packed(source);
        Activations act(33, 1280);
        act.fill(random);
        const std::vector<float> expected = reference_outputs(ReferenceMatrix(source), act);
        std::vector<float> bias(40);
        for (float& value : bias) value = static_cast<float>(random() % 1000) * 0.01f;
        for (const cpu::Kernels* tier : test::runnable_kernels()) {
            INFO(std::string(type_info(type).name) << ", " << tier->tier);
            int different = 0;
            for (int32_t count = 10; count <= 33; ++count) {
                std::vector<int32_t> rows(static_cast<size_t>(count));
                for (int32_t& row : rows) row = static_cast<int32_t>(random() % 33);
                std::vector<float> out(static_cast<size_t>(count) * 40, untouched);
                tier->linear(packed.weight.matrix, bias.data(), act.act(), rows.data(), count, 0, 3,
                             out.data(), 40);
                for (size_t i = 0; i < rows.size(); ++i)
                    for (size_t n = 0; n < 40; ++n)
                        different += same_f32(out[i * 40 + n],
                                              expected[static_cast<size_t>(rows[i]) * 40 + n] + bias[n])
                                         ? 0
                                         : 1;
            }
            CHECK(different == 0);
        }
    }
}

TEST_CASE("linear: stays near the sum in double of decoded weights") {
    std::mt19937 random(17);
    for (int index = 0; index < type_count; ++index) {
        const TypeInfo& info = type_at(index);
        TensorBytes source(info.type, 32, 2304);
        fill_random(source, random);
        Packed packed(source);
        Activations act(2, 2304);
        act.fill(random);
        const ReferenceMatrix matrix(source);
        for (const cpu::Kernels* tier : test::runnable_kernels()) {
            INFO(std::string(info.name) << ", " << tier->tier);
            std::vector<float> out(64);
            tier->linear(packed.weight.matrix, nullptr, act.act(), nullptr, 2, 0, 2, out.data(), 32);
            double worst = 0;
            for (size_t i = 0; i < out.size(); ++i) {
                double magnitude = 0;
                const double exact = matrix.dot_double(i % 32, act, i / 32, &magnitude);
                worst = std::fmax(worst, std::fabs(double{out[i]} - exact) / magnitude);
            }
            CHECK(worst < 4e-6);  // 2^-18: some 30 roundings of 2^-24 on the way
        }
    }
}

TEST_CASE("quantize: rule 4 to the letter, in every tier") {
    std::mt19937 random(23);
    constexpr int32_t columns = 2080;
    std::vector<float> x(columns);
    for (int round = 0; round < 300; ++round) {
        const float size = std::ldexp(1.0f, static_cast<int>(random() % 250) - 125);
        for (float& value : x) value = (static_cast<float>(random() % 2001) - 1000.0f) * 1e-3f * size;
        for (int i = 0; i < 8; ++i) {
            constexpr float specials[] = {INFINITY,  -INFINITY,        NAN,    0.0f, -0.0f,
                                          0x1p-100f, 0x1.fffffep-101f, 3.4e38f};
            if (random() % 3 == 0) x[random() % columns] = specials[i];
        }
        if (round % 5 == 0)
            for (size_t i = 64; i < 96; ++i)
                x[i] = i == 70 ? (round % 2 == 0 ? 0x1p-100f : 0x1.fffffep-101f) : 0.0f;
        for (const cpu::Kernels* tier : test::runnable_kernels()) {
            Activations act(1, columns);
            tier->quantize(x.data(), columns, act.q.data(), act.scale.data(), act.sum.data());
            int different = 0;
            for (size_t group = 0; group < columns / 32; ++group) {
                uint32_t largest_bits = 0;
                for (size_t i = group * 32; i < group * 32 + 32; ++i)
                    largest_bits = std::max(largest_bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
                const float largest = std::bit_cast<float>(largest_bits);
                const bool finite = largest_bits < 0x7f800000;
                const bool zero = !finite || largest < 0x1p-100f;
                different += same_f32(act.scale[group], !finite ? NAN
                                                        : zero  ? 0.0f
                                                                : largest / 127.0f)
                                 ? 0
                                 : 1;
                for (size_t half = 0; half < 2; ++half) {
                    int32_t sum = 0;
                    for (size_t i = group * 32 + half * 16; i < group * 32 + half * 16 + 16; ++i) {
                        const int expected =
                            zero ? 0 : static_cast<int>(std::nearbyintf(x[i] * (127.0f / largest)));
                        different += act.q[i] == expected && std::abs(expected) <= 127 ? 0 : 1;
                        sum += act.q[i];
                    }
                    different += act.sum[group * 2 + half] == sum ? 0 : 1;
                }
            }
            INFO(std::string(tier->tier));
            CHECK(different == 0);
        }
    }
}

TEST_CASE("quantize: no largest value makes a code beyond ±127") {
    std::mt19937 random(29);
    int beyond = 0;
    for (int round = 0; round < 2'000'000; ++round) {
        const float largest =
            std::bit_cast<float>(0x0d800000u + static_cast<uint32_t>(random()) % (0x7f800000u - 0x0d800000u));
        beyond += std::nearbyintf(largest * (127.0f / largest)) > 127.0f ? 1 : 0;
    }
    CHECK(beyond == 0);
}
