// What write_kv makes of keys and values in each format: each tier against the literal definition, by bytes; and how close the
// formats come to what they were given.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/float_mode.h"
#include "cpu/kv_layout.h"
#include "kv_literal.h"
#include "kv_test_cache.h"
#include "tiers.h"

using namespace treadle;
using namespace treadle::cpu;
using namespace treadle::test;

namespace {

constexpr KvType key_types[] = {KvType::f16, KvType::q8_0, KvType::tbq4, KvType::tbq4x};
constexpr KvType value_types[] = {KvType::f16, KvType::q8_0, KvType::tbq4};

bool fits(KvType type, int32_t head_dim) {
    Error error;
    return check_kv_format("", {type, head_dim}, true, &error) == Status::OK;
}

std::vector<float> random_vectors(uint32_t seed, size_t count, bool with_specials) {
    const float specials[] = {0.0f,
                              -0.0f,
                              1e-45f,
                              1e-39f,
                              1e-30f,
                              70000.0f,
                              -1e6f,
                              1e20f,
                              3e38f,
                              std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()};
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    const float scale = std::ldexp(1.0f, static_cast<int>(seed % 40) - 20);
    for (float& value : values) {
        value = normal(random) * scale;
        if (with_specials && random() % 64 == 0) value = specials[random() % std::size(specials)];
    }
    return values;
}

std::span<const uint16_t> kept_of(const KvTestCache& cache, int32_t head, const KvFormat& keys) {
    const auto kept = static_cast<size_t>(keys.kept());
    return std::span(cache.kept_dims()).subspan(static_cast<size_t>(head) * kept, kept);
}

void check_write(int32_t head_dim, KvType keys, KvType values, uint32_t seed, bool with_specials) {
    INFO(std::string(kv_type_name(keys))
         << "/" << std::string(kv_type_name(values)) << ", head_dim " << head_dim << ", seed " << seed);
    const FloatMode mode;
    constexpr int32_t kv_heads = 3;
    const std::vector<float> x =
        random_vectors(seed, static_cast<size_t>(2 * kv_heads * head_dim), with_specials);
    const float* value = x.data() + kv_heads * head_dim;
    const auto slot = static_cast<int32_t>(seed * 7 % 48);
    const KvTestCache unwritten(kv_heads, head_dim, 3, keys, values);
    KvTestCache of_scalar = unwritten;
    scalar::kernels.write_kv(of_scalar.layer(), x.data(), value, slot);
    for (int32_t head = 0; head < kv_heads; head++) {
        const KvFormat key_format{keys, head_dim};
        CHECK(stored_key(of_scalar.layer(), slot, head) ==
              literal_quantize(key_format, x.data() + head * head_dim, kept_of(of_scalar, head, key_format)));
        CHECK(stored_value(of_scalar.layer(), slot, head) ==
              literal_quantize({values, head_dim}, value + head * head_dim, {}));
    }
    for (const Kernels* tier : runnable_kernels()) {
        KvTestCache cache = unwritten;
        tier->write_kv(cache.layer(), x.data(), value, slot);
        for (int32_t head = 0; head < kv_heads; head++) {
            CHECK(stored_key(cache.layer(), slot, head) == stored_key(of_scalar.layer(), slot, head));
            CHECK(stored_value(cache.layer(), slot, head) == stored_value(of_scalar.layer(), slot, head));
        }
        if (!with_specials) CHECK(cache == of_scalar);  // the bits of NaNs may differ
    }
}

// Mean squared error of a format on vectors of unit normals.
double error_of(const KvFormat& format, std::span<const uint16_t> kept_dims) {
    const FloatMode mode;
    const auto n = static_cast<size_t>(format.head_dim);
    double squares = 0;
    constexpr int count = 200;
    for (uint32_t seed = 0; seed < count; seed++) {
        const std::vector<float> x = random_vectors(20 + 40 * seed, n, false);
        const StoredVector stored = literal_quantize(format, x.data(), kept_dims);
        std::vector<double> back(n);
        const auto group = static_cast<size_t>(format.group());
        for (size_t i = 0; i < n; i++)
            back[i] = static_cast<double>(stored.codes[i]) *
                      static_cast<double>(format.group() == 0 ? 1.0f : stored.scales[i / group]);
        if (format.rotated()) {  // the transform is its own inverse, up to n and the order of signs
            for (size_t g = 0; g < n; g += group) {
                std::vector<double> y(back.begin() + static_cast<long>(g),
                                      back.begin() + static_cast<long>(g + group));
                for (size_t stride = group / 2; stride > 0; stride /= 2)
                    for (size_t i = 0; i < group; i++)
                        if ((i & stride) == 0) {
                            const double a = y[i], b = y[i + stride];
                            y[i] = a + b;
                            y[i + stride] = a - b;
                        }
                for (size_t i = 0; i < group; i++)
                    back[g + i] = y[i] / std::sqrt(static_cast<double>(group)) * (tbq_signs[i] != 0 ? -1 : 1);
            }
        }
        for (size_t i = 0; i < kept_dims.size(); i++)
            back[kept_dims[i]] +=
                static_cast<double>(stored.kept[i]) * static_cast<double>(stored.kept_scale);
        for (size_t i = 0; i < n; i++)
            squares += (back[i] - static_cast<double>(x[i])) * (back[i] - static_cast<double>(x[i]));
    }
    return squares / (count * static_cast<double>(n));
}

}  // namespace

TEST_CASE("kv formats: every tier writes what the definition says, by bytes, and nothing beside the slot") {
    for (const int32_t head_dim : {16, 32, 48, 64, 80, 96, 128, 256}) {
        for (const KvType keys : key_types)
            for (const KvType values : value_types) {
                if (!fits(keys, head_dim) || !fits(values, head_dim)) continue;
                for (uint32_t seed = 1; seed <= 12; seed++)
                    check_write(head_dim, keys, values, seed, seed > 6);
            }
    }
}

TEST_CASE("kv formats: slots of a block don't touch each other") {
    const FloatMode mode;
    for (const KvType keys : key_types)
        for (const KvType values : value_types) {
            constexpr int32_t kv_heads = 2, head_dim = 64;
            KvTestCache all(kv_heads, head_dim, 2, keys, values);
            std::vector<std::vector<float>> x;
            for (uint32_t slot = 0; slot < 32; slot++) {
                x.push_back(random_vectors(slot * 40 + 20, 2 * kv_heads * head_dim, false));
                kernels_of(best_tier())
                    .write_kv(all.layer(), x[slot].data(), x[slot].data() + kv_heads * head_dim,
                              static_cast<int32_t>(slot));
            }
            for (int32_t slot = 0; slot < 32; slot++) {
                KvTestCache one(kv_heads, head_dim, 2, keys, values);
                const auto index = static_cast<size_t>(slot);
                scalar::kernels.write_kv(one.layer(), x[index].data(), x[index].data() + kv_heads * head_dim,
                                         slot);
                for (int32_t head = 0; head < kv_heads; head++) {
                    CHECK(stored_key(all.layer(), slot, head) == stored_key(one.layer(), slot, head));
                    CHECK(stored_value(all.layer(), slot, head) == stored_value(one.layer(), slot, head));
                }
            }
        }
}

TEST_CASE("kv formats: what they take, and how close they come") {
    const auto bytes_per_128 = [](KvType type, int32_t head_dim) {
        return KvFormat{type, head_dim}.bytes() * 128 / head_dim;
    };
    CHECK(bytes_per_128(KvType::f16, 128) == 256);
    CHECK(bytes_per_128(KvType::q8_0, 128) == 136);
    CHECK(bytes_per_128(KvType::tbq4, 128) == 66);
    CHECK(bytes_per_128(KvType::tbq4, 64) == 68);
    CHECK(bytes_per_128(KvType::tbq4, 256) == 66);
    CHECK(bytes_per_128(KvType::tbq4x, 128) == 84);
    CHECK(bytes_per_128(KvType::tbq4x, 64) == 88);
    CHECK(bytes_per_128(KvType::tbq4x, 256) == 83);
    for (const KvType type : key_types)
        for (const int32_t head_dim : {64, 128, 256})
            CHECK(kv_layout({type, head_dim}, 4).block_bytes ==
                  static_cast<size_t>(4 * 16 * KvFormat{type, head_dim}.bytes()));

    CHECK(error_of({KvType::q8_0, 128}, {}) < 5e-5);
    CHECK(error_of({KvType::tbq4, 64}, {}) == doctest::Approx(0.0095).epsilon(0.05));
    CHECK(error_of({KvType::tbq4, 128}, {}) == doctest::Approx(0.0095).epsilon(0.05));
    CHECK(error_of({KvType::tbq4, 256}, {}) == doctest::Approx(0.0095).epsilon(0.05));
    const uint16_t kept[] = {1, 5, 9, 20, 33, 37, 41, 52};
    CHECK(error_of({KvType::tbq4x, 64}, kept) == doctest::Approx(0.0095 * 56 / 64).epsilon(0.05));
}

TEST_CASE("kv formats: heads that a type doesn't fit are refused by name") {
    const auto refusal = [](KvType type, int32_t head_dim, bool is_key) {
        Error error;
        const Status status = check_kv_format("value_type", {type, head_dim}, is_key, &error);
        return status == Status::OK ? std::string() : std::string(error.message);
    };
    CHECK(refusal(KvType::q8_0, 96, false).empty());
    CHECK(refusal(KvType::tbq4, 256, false).empty());
    CHECK(refusal(KvType::tbq4x, 64, true).empty());
    CHECK(refusal(KvType::q8_0, 80, false) == "head_dim is 80, value_type q8_0 needs a multiple of 32");
    CHECK(refusal(KvType::tbq4, 96, false) == "head_dim is 96, value_type tbq4 needs 64, 128 or 256");
    CHECK(refusal(KvType::tbq4x, 32, true) == "head_dim is 32, value_type tbq4x needs 64, 128 or 256");
    CHECK(refusal(KvType::tbq4x, 64, false) == "value_type is tbq4x, which is for keys only");
    CHECK(refusal(static_cast<KvType>(9), 64, false) == "value_type is 9, which is no type of a KV cache");
}
