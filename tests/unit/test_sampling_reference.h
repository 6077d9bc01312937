// The sampler said a second time, plainly: everything sorted, every weight in a vector, one loop per step of
// sampler.h. Unit tests and the fuzzer compare the library's sampler with it, token for token.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/limits.h"
#include "base/math.h"
#include "ops/backend.h"
#include "sampling/sampler.h"

namespace sampling_reference {

using treadle::Candidate;
using treadle::RowResult;
using treadle::SamplingParams;

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), first word.
inline uint32_t philox_word(uint64_t seed, uint64_t sample_index, int32_t position) {
    uint32_t counter[4] = {static_cast<uint32_t>(sample_index), static_cast<uint32_t>(position),
                           static_cast<uint32_t>(sample_index >> 32), 0};
    uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        const uint64_t a = 0xD2511F53ull * counter[0];
        const uint64_t b = 0xCD9E8D57ull * counter[2];
        const uint32_t next[4] = {
            static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
            static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
        std::copy(next, next + 4, counter);
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return counter[0];
}

inline float lane_sum(const std::vector<float>& logits, float max, float factor) {
    float total = 0;
    for (size_t slice = 0; slice < logits.size(); slice += 4096) {
        float lanes[16] = {};
        for (size_t i = slice; i < std::min(slice + 4096, logits.size()); i++)
            lanes[i % 16] += treadle::math::exp2((logits[i] - max) * factor);
        for (int stride = 8; stride > 0; stride /= 2)
            for (int lane = 0; lane < stride; lane++) lanes[lane] += lanes[lane + stride];
        total += lanes[0];
    }
    return total;
}

inline std::vector<Candidate> sorted(const std::vector<float>& logits) {
    std::vector<Candidate> all;
    for (size_t i = 0; i < logits.size(); i++) all.push_back({logits[i], static_cast<int32_t>(i)});
    std::stable_sort(all.begin(), all.end(),
                     [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
    return all;
}

// What a backend reports of the row.
inline RowResult row_result(const std::vector<float>& logits, float inverse_temperature) {
    RowResult row{};
    float max = -std::numeric_limits<float>::infinity();
    bool number = true;
    for (const float logit : logits) {
        number = number && !std::isnan(logit);
        max = std::max(max, logit);
    }
    if (!number || !std::isfinite(max)) return row;
    row.usable = 1;
    row.max = max;
    row.sum = lane_sum(logits, max, treadle::math::log2e);
    row.sum_scaled = lane_sum(logits, max, treadle::math::log2e * inverse_temperature);
    const std::vector<Candidate> all = sorted(logits);
    row.count = std::min<int32_t>(treadle::limits::candidates_kept, static_cast<int32_t>(all.size()));
    std::copy(all.begin(), all.begin() + row.count, row.best);
    return row;
}

struct Choice {
    int32_t token = -1;
    size_t kept = 0;     // candidates that the filters left
    size_t visited = 0;  // candidates that the walk looked at
};

inline Choice choose(const SamplingParams& params, uint64_t sample_index, int32_t position,
                     const std::vector<float>& logits) {
    std::vector<Candidate> order = sorted(logits);
    if (params.temperature == 0) return {order[0].token, 1, 1};
    const size_t vocabulary = order.size();
    const float inverse = std::min(1.0f / params.temperature, 0x1p100f);
    const float factor = treadle::math::log2e * inverse;
    const RowResult row = row_result(logits, inverse);
    const auto weight = [&](const Candidate& c) { return treadle::math::exp2((c.logit - row.max) * factor); };
    const auto sum = [&] {
        double total = 0;
        for (const Candidate& c : order) total += double(weight(c));
        return total;
    };

    double total = double(row.sum_scaled);
    bool filtered = false;
    if (params.top_k > 0 && size_t(params.top_k) < vocabulary) {
        order.resize(size_t(params.top_k));
        total = sum();
        filtered = true;
    }
    if (params.top_p < 1) {
        const double reach = double(params.top_p) * total;
        double running = 0;
        size_t keep = 0;
        while (keep < order.size()) {
            running += double(weight(order[keep++]));
            if (running >= reach) break;
        }
        order.resize(keep);
        filtered = true;
    }
    if (params.min_p > 0) {
        size_t keep = 1;
        while (keep < order.size() && weight(order[keep]) >= params.min_p) keep++;
        order.resize(keep);
        filtered = true;
    }
    const double mass = filtered ? sum() : double(row.sum_scaled);
    if (!filtered && order.size() > 256)
        std::sort(order.begin() + 256, order.end(),
                  [](const Candidate& a, const Candidate& b) { return a.token < b.token; });

    const double target = (double(philox_word(params.seed, sample_index, position) >> 8) / 16777216.0) * mass;
    Choice choice{-1, order.size(), 0};
    double running = 0;
    for (const Candidate& c : order) {
        choice.visited++;
        running += double(weight(c));
        if (weight(c) > 0) choice.token = c.token;
        if (running > target) break;
    }
    return choice;
}

}  // namespace sampling_reference
