// The vector kernels: each tier equals its order of operations written out literally, by bytes, at every length and for special
// values.

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/exact_fma.h"
#include "base/float16.h"
#include "base/float_mode.h"
#include "base/math.h"
#include "cpu/vector.h"
#include "kv_test_cache.h"
#include "tiers.h"

using namespace treadle;
using namespace treadle::cpu;

namespace {

const float float_inf = std::numeric_limits<float>::infinity();
const float float_nan = std::numeric_limits<float>::quiet_NaN();
const float specials[] = {0.0f,   -0.0f, 1e-45f,    -1e-39f,    1.17549435e-38f, 3e38f,
                          -3e38f, 1e19f, float_inf, -float_inf, float_nan};

bool same(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) { return same(x, y); });
}

// Normal values; with a special one now and then if asked.
std::vector<float> random_values(std::mt19937& random, size_t count, bool with_specials) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) {
        value = normal(random) * std::ldexp(1.0f, static_cast<int>(random() % 12) - 6);
        if (with_specials && random() % 50 == 0) value = specials[random() % std::size(specials)];
    }
    return values;
}

void literal_add_norm(std::vector<float>& residual, const float* delta, const std::vector<float>& gain,
                      float epsilon, std::vector<float>& out) {
    float lanes[256] = {};
    for (size_t i = 0; i < residual.size(); i++) {
        if (delta != nullptr) residual[i] = residual[i] + delta[i];
        lanes[i % 256] = exact_fma(residual[i], residual[i], lanes[i % 256]);
    }
    for (int stride = 128; stride > 0; stride /= 2)
        for (int lane = 0; lane < stride; lane++) lanes[lane] += lanes[lane + stride];
    const float mean = lanes[0] / static_cast<float>(residual.size());
    const float r = 1.0f / std::sqrt(mean + epsilon);
    for (size_t i = 0; i < residual.size(); i++) out[i] = (residual[i] * r) * gain[i];
}

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

// exp2 and exp of every tier equal base/math.h's for bit patterns first, first + step, ...
void check_lanes_of_math(uint32_t first, uint32_t step, uint64_t count) {
    const FloatMode mode;
    std::vector<float> x(1000), got(1000);
    size_t wrong = 0;
    for (uint64_t done = 0; done < count; done += x.size()) {
        for (size_t i = 0; i < x.size(); i++)
            x[i] = std::bit_cast<float>(static_cast<uint32_t>(first + step * (done + i)));
        for (const Kernels* tier : test::runnable_kernels()) {
            tier->exp2(x.data(), static_cast<int32_t>(x.size()), got.data());
            for (size_t i = 0; i < x.size(); i++) wrong += bits_of(got[i]) != bits_of(math::exp2(x[i]));
            tier->exp(x.data(), static_cast<int32_t>(x.size()), got.data());
            for (size_t i = 0; i < x.size(); i++) wrong += bits_of(got[i]) != bits_of(math::exp(x[i]));
        }
    }
    CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("vector: exp2 and exp in lanes are base/math.h's, a sample of all inputs") {
    check_lanes_of_math(0, 20011, 0x100000000u / 20011);
    for (const float edge :
         {-92.0f, -63.7695f, 88.7228f, 128.0f, 0.5f, -0.5f, 1.5f, 0.0f, -0.0f, float_inf, -float_inf})
        check_lanes_of_math(bits_of(edge) - 1000, 1, 2000);
}

TEST_CASE("vector: exp2 and exp in lanes are base/math.h's, all inputs" * doctest::skip()) {
    check_lanes_of_math(0, 1, 0x100000000u);
}

TEST_CASE("vector: add_norm") {
    const FloatMode mode;
    std::mt19937 random(1);
    for (int32_t columns = 1; columns < 1300; columns += columns < 300 ? 1 : 37) {
        for (int variant = 0; variant < 3; variant++) {
            const std::vector<float> residual = random_values(random, columns, variant == 2);
            const std::vector<float> delta_values = random_values(random, columns, false);
            const std::vector<float> gain = random_values(random, columns, false);
            const float* delta = variant == 1 ? nullptr : delta_values.data();
            std::vector<float> want_residual = residual, want(columns);
            literal_add_norm(want_residual, delta, gain, 1e-5f, want);
            for (const Kernels* tier : test::runnable_kernels()) {
                std::vector<float> got_residual = residual, got(columns + 1, -7.0f);
                got_residual.push_back(-7.0f);
                tier->add_norm(got_residual.data(), delta, gain.data(), 1e-5f, columns, got.data());
                CHECK(got_residual.back() == -7.0f);
                CHECK(got.back() == -7.0f);
                got.pop_back();
                got_residual.pop_back();
                CHECK(same(got_residual, want_residual));
                CHECK(same(got, want));
            }
        }
    }
    for (const float special : specials) {
        std::vector<float> residual(576, 1.0f), gain(576, 1.0f), want(576), got(576);
        residual[300] = special;
        std::vector<float> want_residual = residual;
        literal_add_norm(want_residual, nullptr, gain, 1e-6f, want);
        for (const Kernels* tier : test::runnable_kernels()) {
            tier->add_norm(residual.data(), nullptr, gain.data(), 1e-6f, 576, got.data());
            CHECK(same(got, want));
        }
    }
}

TEST_CASE("vector: gate") {
    const FloatMode mode;
    std::mt19937 random(2);
    for (const int32_t n : {1, 2, 15, 16, 17, 31, 32, 33, 100, 1536}) {
        for (int variant = 0; variant < 8; variant++) {
            const std::vector<float> gate_up = random_values(random, 2 * n, variant > 3);
            std::vector<float> want(n);
            for (int32_t i = 0; i < n; i++)
                want[i] = (gate_up[i] / (1.0f + math::exp(0.0f - gate_up[i]))) * gate_up[n + i];
            for (const Kernels* tier : test::runnable_kernels()) {
                std::vector<float> got(n + 1, -7.0f);
                tier->gate(GateKind::silu, gate_up.data(), n, got.data());
                CHECK(got.back() == -7.0f);
                got.pop_back();
                CHECK(same(got, want));
            }
        }
    }
    // Against the C library, and where exp(-x) overflows.
    const float x[] = {-2.5f, -100.0f, 0.0f, 30.0f, 1.0f, 1.0f, 1.0f, 2.0f};
    float out[4];
    scalar::kernels.gate(GateKind::silu, x, 4, out);
    CHECK(out[0] == doctest::Approx(-2.5 / (1 + std::exp(2.5))));
    CHECK(out[1] == 0.0f);
    CHECK(out[2] == 0.0f);
    CHECK(out[3] == doctest::Approx(60.0));
}

namespace {

struct RopeCase {
    AttentionShape shape;
    RopeShape rope;
};

// Rotates queries and keys; returns what the cache gets of position `slot`: keys and values as halves.
void literal_rope(const RopeCase& c, const std::vector<float>& cos_sin, std::vector<float>& qkv,
                  std::vector<uint16_t>& keys, std::vector<uint16_t>& values) {
    const int32_t heads = c.shape.heads, head_dim = c.shape.head_dim, pairs = c.rope.rotary_dims / 2;
    for (int32_t i = 0; i < heads * head_dim; i++) qkv[i] = qkv[i] * c.rope.query_scale;
    for (int32_t head = 0; head < heads + c.shape.kv_heads; head++) {
        float* x = qkv.data() + head * head_dim;
        for (int32_t pair = 0; pair < pairs; pair++) {
            float& x0 = c.rope.pair_order == PairOrder::adjacent ? x[2 * pair] : x[pair];
            float& x1 = c.rope.pair_order == PairOrder::adjacent ? x[2 * pair + 1] : x[pair + pairs];
            const float cosine = cos_sin[2 * pair], sine = cos_sin[2 * pair + 1];
            const float rotated0 = exact_fma(x0, cosine, -(x1 * sine));
            const float rotated1 = exact_fma(x1, cosine, x0 * sine);
            x0 = rotated0;
            x1 = rotated1;
        }
    }
    for (int32_t i = 0; i < c.shape.kv_heads * head_dim; i++) {
        keys.push_back(f16_from_f32_saturate(qkv[heads * head_dim + i]));
        values.push_back(f16_from_f32_saturate(qkv[(heads + c.shape.kv_heads) * head_dim + i]));
    }
}

bool same_half(uint16_t a, uint16_t b) { return a == b || ((a & 0x7fff) > 0x7c00 && (b & 0x7fff) > 0x7c00); }

void check_rope(const RopeCase& c, int32_t slot, bool with_specials, uint32_t seed) {
    const FloatMode mode;
    std::mt19937 random(seed);
    const int32_t kv_floats = c.shape.kv_heads * c.shape.head_dim;
    std::vector<float> qkv =
        random_values(random, c.shape.heads * c.shape.head_dim + 2 * kv_floats, with_specials);
    for (float& value : qkv)
        if (with_specials && random() % 20 == 0) value *= 40000.0f;
    std::vector<float> cos_sin;
    for (int32_t pair = 0; pair < c.rope.rotary_dims / 2; pair++) {
        const float angle = static_cast<float>(random() % 6283) * 1e-3f;
        cos_sin.push_back(std::cos(angle));
        cos_sin.push_back(std::sin(angle));
    }
    std::vector<float> want = qkv;
    std::vector<uint16_t> keys, values;
    literal_rope(c, cos_sin, want, keys, values);
    const test::KvTestCache unwritten(c.shape.kv_heads, c.shape.head_dim, 3);
    for (const Kernels* tier : test::runnable_kernels()) {
        std::vector<float> got = qkv;
        tier->rope(c.shape, c.rope, cos_sin.data(), got.data());
        CHECK(same(got, want));
        test::KvTestCache cache = unwritten;
        const float* rotated_keys = got.data() + c.shape.heads * c.shape.head_dim;
        tier->write_kv(cache.layer(), rotated_keys, rotated_keys + kv_floats, slot);
        size_t wrong = 0;
        for (int32_t i = 0; i < kv_floats; i++) {
            const int32_t head = i / c.shape.head_dim, d = i % c.shape.head_dim;
            uint16_t& key = cache.key(slot, head, d);
            uint16_t& value = cache.value(slot, head, d);
            wrong += !same_half(key, keys[i]) || !same_half(value, values[i]);
            key = value = 0x7e01;
        }
        CHECK(wrong == 0);
        CHECK(cache == unwritten);  // nothing beside the slot
    }
}

}  // namespace

TEST_CASE("vector: rope, and f16 keys and values written to the cache") {
    for (const PairOrder order : {PairOrder::adjacent, PairOrder::halves}) {
        check_rope({{9, 3, 64}, {order, 64, 0.18f}}, 0, false, 1);
        check_rope({{9, 3, 64}, {order, 64, 0.18f}}, 37, false, 2);
        check_rope({{4, 1, 256}, {order, 256, 0.09f}}, 47, false, 4);
        for (int32_t rotary_dims = 0; rotary_dims <= 80; rotary_dims += 2)
            check_rope({{2, 2, 80}, {order, rotary_dims, 0.16f}}, rotary_dims % 48, false, 5);
        for (uint32_t seed = 10; seed < 60; seed++)
            check_rope({{3, 1, 32}, {order, 24, 0.25f}}, static_cast<int32_t>(seed % 48), true, seed);
    }
}
