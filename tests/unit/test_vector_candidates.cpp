// What is kept of a row of logits (rule 7): each tier equals the rule written out literally, by bytes, with ties, infinities and
// hostile orders.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float_mode.h"
#include "base/math.h"
#include "cpu/vector.h"
#include "tiers.h"

using namespace treadle;
using namespace treadle::cpu;

namespace {

const float float_inf = std::numeric_limits<float>::infinity();

float literal_sum(const std::vector<float>& logits, float most, float factor) {
    float total = 0;
    for (size_t begin = 0; begin < logits.size(); begin += 4096) {
        float lanes[16] = {};
        for (size_t i = begin; i < std::min(begin + 4096, logits.size()); i++)
            lanes[i % 16] += math::exp2((logits[i] - most) * factor);
        for (int stride = 8; stride > 0; stride /= 2)
            for (int lane = 0; lane < stride; lane++) lanes[lane] += lanes[lane + stride];
        total += lanes[0];
    }
    return total;
}

RowResult literal_candidates(const std::vector<float>& logits, float inverse_temperature) {
    RowResult result{};
    std::vector<Candidate> all;
    for (size_t i = 0; i < logits.size(); i++) {
        if (std::isnan(logits[i])) return result;
        all.push_back({logits[i], static_cast<int32_t>(i)});
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
    if (std::isinf(all[0].logit)) return result;
    result.usable = 1;
    result.count = static_cast<int32_t>(std::min<size_t>(all.size(), 256));
    std::copy_n(all.begin(), result.count, result.best);
    result.max = all[0].logit;
    result.sum = literal_sum(logits, result.max, math::log2e);
    result.sum_scaled = literal_sum(logits, result.max, math::log2e * inverse_temperature);
    return result;
}

void check_candidates(const std::vector<float>& logits, float inverse_temperature) {
    const FloatMode mode;
    const RowResult want = literal_candidates(logits, inverse_temperature);
    for (const Kernels* kernels : test::runnable_kernels()) {
        RowResult got;
        std::memset(&got, 0xff, sizeof got);
        kernels->candidates(logits.data(), static_cast<int32_t>(logits.size()), inverse_temperature, &got);
        CHECK(std::memcmp(&got, &want, sizeof got) == 0);
    }
}

std::vector<float> random_logits(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 4.0f);
    std::vector<float> logits(count);
    for (float& logit : logits) logit = normal(random);
    return logits;
}

}  // namespace

TEST_CASE("candidates: every length") {
    for (size_t count = 1; count < 700; count += count < 40 ? 1 : 13)
        check_candidates(random_logits(count, 1), 1.25f);
    for (const size_t count : {4095, 4096, 4097, 16384, 16385, 49152, 50001}) {
        check_candidates(random_logits(count, 2), 1.0f);
        check_candidates(random_logits(count, 3), 0.5f);
    }
}

TEST_CASE("candidates: the sums are those of a softmax") {
    const std::vector<float> logits = random_logits(49152, 4);
    RowResult row;
    scalar::kernels.candidates(logits.data(), 49152, 0.7f, &row);
    double sum = 0, sum_scaled = 0;
    for (const float logit : logits) {
        sum += std::exp(static_cast<double>(logit) - row.max);
        sum_scaled += std::exp((static_cast<double>(logit) - row.max) * 0.7f);
    }
    CHECK(row.sum == doctest::Approx(sum).epsilon(1e-6));
    CHECK(row.sum_scaled == doctest::Approx(sum_scaled).epsilon(1e-6));
}

TEST_CASE("candidates: ties and orders") {
    for (const size_t count : {300, 1024, 20000, 49152}) {
        std::vector<float> logits(count, 0.5f);
        check_candidates(logits, 1.0f);
        for (size_t i = 0; i < count; i += 3) logits[i] = -0.0f;
        for (size_t i = 1; i < count; i += 3) logits[i] = 0.0f;
        check_candidates(logits, 1.0f);  // half of them 0.5, zeros of both signs
        for (size_t i = 2; i < count; i += 3) logits[i] = -0.0f;
        check_candidates(logits, 1.0f);
        for (size_t i = 0; i < count; i++) logits[i] = static_cast<float>(i);
        check_candidates(logits, 0.001f);
        std::reverse(logits.begin(), logits.end());
        check_candidates(logits, 0.001f);
        for (size_t i = 0; i < count; i++) logits[i] = static_cast<float>(i % 7);
        check_candidates(logits, 2.0f);
        for (size_t i = 0; i < count; i++) logits[i] = static_cast<float>(i / 200);  // ties across the 256th
        check_candidates(logits, 2.0f);
    }
    std::vector<float> steps = random_logits(30000, 5);
    for (float& logit : steps) logit = std::floor(logit * 2);
    check_candidates(steps, 1.0f);
}

TEST_CASE("candidates: infinities and numbers that are none") {
    for (const size_t count : {1, 17, 255, 256, 257, 5000}) {
        std::vector<float> logits(count, -float_inf);
        check_candidates(logits, 1.0f);  // the maximum is not finite
        logits[count / 2] = 3.0f;
        check_candidates(logits, 1.0f);
        check_candidates(logits, 1.7f);
        logits[count / 3] = float_inf;
        check_candidates(logits, 1.0f);
        for (const size_t at : {size_t{0}, count / 2, count - 1}) {
            logits = random_logits(count, 6);
            logits[at] = std::numeric_limits<float>::quiet_NaN();
            check_candidates(logits, 1.0f);
            logits[at] = -std::numeric_limits<float>::quiet_NaN();
            check_candidates(logits, 1.0f);
        }
    }
    std::vector<float> wide = random_logits(3000, 7);
    wide[5] = 3.4e38f;
    wide[6] = -3.4e38f;
    wide[7] = 1e-42f;
    check_candidates(wide, 1.0f);
}
