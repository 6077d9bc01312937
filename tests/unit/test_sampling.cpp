// The sampler against the plain one of test_sampling_reference.h over random and extreme rows; that every
// path of the walk is taken; frequencies against probabilities; log-probabilities; and each wrong parameter.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "sampling/sampler.h"
#include "test_sampling_reference.h"

using namespace treadle;
namespace reference = sampling_reference;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

struct Sampler {
    explicit Sampler(std::vector<float> values) : logits(std::move(values)), scratch(logits.size()) {}

    int32_t vocabulary() const { return static_cast<int32_t>(logits.size()); }

    // The row's results are those of the last parameters seen, as only the temperature enters them.
    TokenLogprob operator()(const SamplingParams& params, uint64_t sample_index, int32_t position) {
        const float inverse = inverse_temperature(params);
        if (!made || inverse != made_for) row = reference::row_result(logits, inverse);
        made = true;
        made_for = inverse;
        for (Candidate& candidate : scratch) candidate = {nan_value, -7};
        TokenLogprob out{-1, 0};
        REQUIRE(sample(params, sample_index, position, row, logits.data(), vocabulary(), scratch, &out) ==
                Status::OK);
        return out;
    }

    std::vector<float> logits;
    std::vector<Candidate> scratch;
    RowResult row{};
    bool made = false;
    float made_for = 0;
};

std::vector<float> random_row(std::mt19937& random, size_t vocabulary, int shape) {
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> row(vocabulary);
    for (float& logit : row) {
        logit = normal(random);
        if (shape == 1) logit = std::rint(logit);  // ties everywhere
        if (shape == 2) logit = 0.001f * logit;    // nearly flat
        if (shape == 3 && random() % 3 != 0) logit = -infinity;
        if (shape == 4) logit *= 100;  // one wins
        if (shape == 5) logit = random() % 2 != 0 ? 0.0f : -0.0f;
        if (shape == 6) logit *= 1e37f;  // differences overflow
    }
    if (shape == 3) row[random() % vocabulary] = 1;  // a maximum there must be
    return row;
}

SamplingParams random_params(std::mt19937& random) {
    const float temperatures[] = {0, 1e-45f, 1e-30f, 0.01f, 0.2f, 0.7f, 1, 1, 1.5f, 10, 1000, 1e6f};
    const int32_t top_ks[] = {0, 0, 1, 2, 40, 255, 256, 257, 700, 5000, std::numeric_limits<int32_t>::max()};
    const float top_ps[] = {1, 1, 1, 1e-45f, 1e-6f, 0.1f, 0.5f, 0.9f, 0.99f, 0.9999999f};
    const float min_ps[] = {0, 0, 0, 1e-45f, 1e-6f, 0.01f, 0.1f, 0.5f, 0.9999999f};
    SamplingParams params;
    params.temperature = temperatures[random() % std::size(temperatures)];
    params.top_k = top_ks[random() % std::size(top_ks)];
    params.top_p = top_ps[random() % std::size(top_ps)];
    params.min_p = min_ps[random() % std::size(min_ps)];
    params.seed = (static_cast<uint64_t>(random()) << 32) | random();
    return params;
}

// Chi-square against probabilities (normalised), cells with fewer than 8 expected draws put together.
double chi_square(const std::map<int32_t, int>& counts, const std::vector<double>& probabilities, int draws,
                  int* cells) {
    double chi = 0;
    double rest_expected = 0;
    double rest_seen = 0;
    *cells = 0;
    for (size_t token = 0; token < probabilities.size(); token++) {
        const auto found = counts.find(static_cast<int32_t>(token));
        const double seen = found == counts.end() ? 0 : found->second;
        const double expected = probabilities[token] * draws;
        if (expected == 0) CHECK(seen == 0);
        if (expected < 8) {
            rest_expected += expected;
            rest_seen += seen;
            continue;
        }
        chi += (seen - expected) * (seen - expected) / expected;
        ++*cells;
    }
    if (rest_expected > 1) {
        chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        ++*cells;
    }
    return chi;
}

void check_frequencies(const std::vector<float>& logits, SamplingParams params,
                       const std::vector<double>& probabilities) {
    Sampler sampler(logits);
    std::map<int32_t, int> counts;
    const int draws = 20000;
    for (int i = 0; i < draws; i++) counts[sampler(params, static_cast<uint64_t>(i % 5), i / 5).token]++;
    int cells = 0;
    const double chi = chi_square(counts, probabilities, draws, &cells);
    const double freedom = cells - 1;
    CHECK(chi < freedom + 4 * std::sqrt(2 * freedom) +
                    8);  // the draws are fixed: this passes everywhere or nowhere
    CHECK(chi > freedom - 5 * std::sqrt(2 * freedom) - 1);
}

}  // namespace

TEST_CASE("sampling: the same token as the plain sampler, over vocabularies, shapes and parameters") {
    std::mt19937 random(11);
    for (const size_t vocabulary : {1, 2, 3, 17, 255, 256, 257, 300, 1025, 4097, 9000}) {
        for (int shape = 0; shape < 7; shape++) {
            const std::vector<float> logits = random_row(random, vocabulary, shape);
            Sampler sampler(logits);
            const int tries = vocabulary > 2000 ? 8 : 40;
            for (int i = 0; i < tries; i++) {
                const SamplingParams params = random_params(random);
                REQUIRE(check_sampling(params, nullptr) == Status::OK);
                const uint64_t sample_index = random() % 3 == 0 ? uint64_t{random()} << 20 : random() % 3;
                const int32_t position = static_cast<int32_t>(random() % 100000);
                const reference::Choice expected = reference::choose(params, sample_index, position, logits);
                CAPTURE(vocabulary);
                CAPTURE(shape);
                CAPTURE(params.temperature);
                CAPTURE(params.top_k);
                CAPTURE(params.top_p);
                CAPTURE(params.min_p);
                REQUIRE(sampler(params, sample_index, position).token == expected.token);
            }
        }
    }
}

TEST_CASE("sampling: each path of the walk is taken and gives the plain sampler's token") {
    std::mt19937 random(12);
    const std::vector<float> flat = random_row(random, 3000, 2);
    const std::vector<float> peaked = random_row(random, 3000, 0);
    struct Path {
        const char* name;
        const std::vector<float>* logits;
        SamplingParams params;
        size_t kept_min, kept_max;
        bool beyond;  // some draws end past the 256th candidate
    };
    SamplingParams plain, cold, few, many, share, wide_share, ratio, wide_ratio, all;
    cold.temperature = 0.3f;
    few.top_k = 40;
    many.top_k = 1500;
    share.top_p = 0.5f;
    wide_share.top_p = 0.9f;
    ratio.min_p = 0.1f;
    wide_ratio.min_p = 0.001f;
    all.top_k = 2000;
    all.top_p = 0.95f;
    all.min_p = 0.5f;
    const Path paths[] = {
        {"temperature within 256", &peaked, cold, 3000, 3000, false},
        {"temperature beyond 256", &flat, plain, 3000, 3000, true},
        {"top_k within 256", &flat, few, 40, 40, false},
        {"top_k beyond 256", &flat, many, 1500, 1500, true},
        {"top_p within 256", &peaked, share, 2, 255, false},
        {"top_p beyond 256", &flat, wide_share, 2000, 2999, true},
        {"min_p within 256", &peaked, ratio, 2, 255, false},
        {"min_p beyond 256", &flat, wide_ratio, 3000, 3000, true},
        {"all three beyond 256", &flat, all, 1800, 1999, true},
    };
    for (const Path& path : paths) {
        Sampler sampler(*path.logits);
        size_t visited_most = 0;
        for (int32_t position = 0; position < 60; position++) {
            const reference::Choice expected = reference::choose(path.params, 0, position, *path.logits);
            CAPTURE(path.name);
            REQUIRE(sampler(path.params, 0, position).token == expected.token);
            CHECK(expected.kept >= path.kept_min);
            CHECK(expected.kept <= path.kept_max);
            visited_most = std::max(visited_most, expected.visited);
        }
        CAPTURE(path.name);
        CHECK((visited_most > 256) == path.beyond);
    }
}

TEST_CASE("sampling: greedy, top_k 1 and a tiny top_p take the best, the lowest id among equals") {
    std::vector<float> logits(1000, -1.0f);
    logits[700] = 2;
    logits[300] = 2;
    logits[301] = 2;
    Sampler sampler(logits);
    SamplingParams greedy, one, share;
    greedy.temperature = 0;
    one.top_k = 1;
    one.temperature = 1e30f;
    share.top_p = std::numeric_limits<float>::denorm_min();
    for (int32_t position = 0; position < 50; position++) {
        CHECK(sampler(greedy, 0, position).token == 300);
        CHECK(sampler(one, 0, position).token == 300);
        CHECK(sampler(share, 0, position).token == 300);
    }
}

TEST_CASE("sampling: a tiny temperature draws among the best and its equals, a huge one among all") {
    std::vector<float> logits(600, 0.0f);
    logits[5] = 1;
    logits[599] = 1;
    Sampler sampler(logits);
    for (const float temperature : {1e-45f, 1e-38f, 1e-30f, 1e-3f}) {
        SamplingParams params;
        params.temperature = temperature;
        std::map<int32_t, int> counts;
        for (int32_t position = 0; position < 200; position++) counts[sampler(params, 0, position).token]++;
        CHECK(counts.size() == 2);
        CHECK(counts[5] > 60);
        CHECK(counts[599] > 60);
    }
    SamplingParams hot;
    hot.temperature = std::numeric_limits<float>::max();
    check_frequencies(logits, hot, std::vector<double>(600, 1.0 / 600));
}

TEST_CASE("sampling: excluded tokens are never drawn, even when rounding leaves the walk short") {
    std::vector<float> logits(500, -infinity);
    logits[123] = -4;
    logits[456] = -5;
    Sampler sampler(logits);
    SamplingParams params;
    for (int32_t position = 0; position < 300; position++) {
        const int32_t token = sampler(params, 0, position).token;
        CHECK((token == 123 || token == 456));
    }
    sampler.row.sum_scaled =
        1000;  // a walk that cannot reach its target ends at the last token with a weight
    TokenLogprob out{-1, 0};
    std::map<int32_t, int> counts;
    for (int32_t position = 0; position < 100; position++) {
        REQUIRE(sample(params, 0, position, sampler.row, logits.data(), 500, sampler.scratch, &out) ==
                Status::OK);
        counts[out.token]++;
    }
    CHECK(counts[456] > 90);
    CHECK(counts.size() <= 2);
}

TEST_CASE("sampling: frequencies match the distribution") {
    std::mt19937 random(13);
    const std::vector<float> logits = random_row(random, 700, 0);
    std::vector<double> weights(700);
    const auto normalised = [&](double temperature) {
        double sum = 0;
        for (size_t i = 0; i < weights.size(); i++)
            sum += weights[i] = std::exp(double(logits[i]) / temperature);
        for (double& weight : weights) weight /= sum;
    };
    SamplingParams params;
    params.seed = 99;
    normalised(1);
    check_frequencies(logits, params, weights);
    params.temperature = 3;
    normalised(3);
    check_frequencies(logits, params, weights);

    params.top_k = 300;
    std::vector<Candidate> order = reference::sorted(logits);
    double kept = 0;
    for (size_t i = 0; i < order.size(); i++) {
        double& weight = weights[static_cast<size_t>(order[i].token)];
        if (i >= 300) weight = 0;
        kept += weight;
    }
    for (double& weight : weights) weight /= kept;
    check_frequencies(logits, params, weights);
}

TEST_CASE("sampling: seed, index of the sample and position each change the draw") {
    std::mt19937 random(14);
    const std::vector<float> logits = random_row(random, 400, 2);
    Sampler sampler(logits);
    SamplingParams params, high;
    high.seed = 1ull << 32;
    CHECK(reference::philox_word(0, 0, 0) ==
          0x6627e8d5);  // the first known answer of the Philox paper's own code
    int same_seed = 0, same_index = 0, same_position = 0;
    for (int32_t position = 0; position < 400; position++) {
        const int32_t token = sampler(params, 0, position).token;
        CHECK(token == sampler(params, 0, position).token);
        same_seed += token == sampler(high, 0, position).token;
        same_index += token == sampler(params, 1, position).token;
        same_position += token == sampler(params, 0, position + 1000).token;
    }
    CHECK(same_seed < 12);
    CHECK(same_index < 12);
    CHECK(same_position < 12);
}

TEST_CASE("sampling: log-probabilities are those of the raw logits") {
    std::mt19937 random(15);
    std::vector<float> logits = random_row(random, 5000, 0);
    logits[9] = -infinity;
    Sampler sampler(logits);
    SamplingParams params;
    params.temperature = 0.5f;
    params.top_k = 30;
    CHECK(sampler(params, 0, 0).logprob == 0);  // nobody asked
    params.logprobs = 20;
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double(logit));
    for (int32_t position = 0; position < 50; position++) {
        const TokenLogprob drawn = sampler(params, 0, position);
        const double exact = double(logits[size_t(drawn.token)]) - std::log(sum);
        CHECK(drawn.logprob == doctest::Approx(exact).epsilon(1e-5));
        CHECK(drawn.logprob == log_probability(sampler.row, logits[size_t(drawn.token)]));
    }
    std::vector<TokenLogprob> best(20);
    CHECK(best_logprobs(sampler.row, best) == 20);
    const std::vector<Candidate> order = reference::sorted(logits);
    for (size_t i = 0; i < best.size(); i++) {
        CHECK(best[i].token == order[i].token);
        CHECK(best[i].logprob == log_probability(sampler.row, order[i].logit));
        if (i > 0) CHECK(best[i].logprob <= best[i - 1].logprob);
    }
    CHECK(log_probability(sampler.row, -infinity) == -infinity);
    CHECK(best_logprobs(sampler.row, {}) == 0);

    Sampler alone(std::vector<float>{-3.5f});
    CHECK(alone(params, 0, 0).token == 0);
    CHECK(alone(params, 0, 0).logprob == 0);
    CHECK(best_logprobs(alone.row, best) == 1);
}

TEST_CASE("sampling: rows that are no numbers, and results that contradict the vocabulary") {
    SamplingParams params;
    std::vector<Candidate> scratch(4);
    TokenLogprob out{-1, 0};
    for (const std::vector<float>& logits :
         {std::vector<float>{1, nan_value, 2, 3}, std::vector<float>{1, infinity, 2, 3},
          std::vector<float>(4, -infinity)}) {
        const RowResult row = reference::row_result(logits, 1);
        CHECK(sample(params, 0, 0, row, logits.data(), 4, scratch, &out) == Status::NOT_A_NUMBER);
    }
    const std::vector<float> logits = {1, 2, 3, 4};
    RowResult row = reference::row_result(logits, 1);
    CHECK(sample(params, 0, 0, row, logits.data(), 3, scratch, &out) == Status::INTERNAL);
    CHECK(sample(params, 0, 0, row, logits.data(), 0, scratch, &out) == Status::INTERNAL);
    CHECK(sample(params, 0, 0, row, logits.data(), 4, std::span<Candidate>(scratch).first(3), &out) ==
          Status::INTERNAL);
    for (Candidate& candidate : row.best) candidate.token = 4;
    CHECK(sample(params, 0, 0, row, logits.data(), 4, scratch, &out) == Status::INTERNAL);
    CHECK(out.token == -1);

    // A backend that overlooks NaN gets some token of the vocabulary, and no crash.
    std::mt19937 random(16);
    std::vector<float> holes = random_row(random, 3000, 2);
    const RowResult overlooked = reference::row_result(holes, 1);
    for (float& logit : holes) logit = random() % 2 == 0 ? nan_value : logit;
    scratch.resize(holes.size());
    params.top_p = 0.99f;
    for (int32_t position = 0; position < 20; position++) {
        params.top_k = position % 2 == 0 ? 0 : 2000;
        CHECK(sample(params, 0, position, overlooked, holes.data(), 3000, scratch, &out) == Status::OK);
        CHECK((out.token >= 0 && out.token < 3000));
    }
}

TEST_CASE("sampling: each wrong parameter is refused by name and value") {
    const auto refused = [](void (*change)(SamplingParams&), Status status, const char* words) {
        SamplingParams params;
        change(params);
        Error error;
        CAPTURE(words);
        CHECK(check_sampling(params, &error) == status);
        CHECK(check_sampling(params, nullptr) == status);
        CHECK(std::string(error.message).find(words) != std::string::npos);
    };
    const Status wrong = Status::INVALID_ARGUMENT;
    refused([](SamplingParams& p) { p.temperature = -1; }, wrong, "temperature is -1");
    refused([](SamplingParams& p) { p.temperature = nan_value; }, wrong, "temperature is nan");
    refused([](SamplingParams& p) { p.temperature = infinity; }, wrong, "temperature is inf");
    refused([](SamplingParams& p) { p.temperature = 1000001; }, wrong, "temperature is 1000001, it must be");
    refused([](SamplingParams& p) { p.temperature = -infinity; }, wrong, "temperature is -inf");
    refused([](SamplingParams& p) { p.temperature = -1e-45f; }, wrong, "temperature is -1.4");
    refused([](SamplingParams& p) { p.top_k = -1; }, wrong, "top_k is -1");
    refused([](SamplingParams& p) { p.top_k = std::numeric_limits<int32_t>::min(); }, wrong,
            "top_k is -2147483648");
    refused([](SamplingParams& p) { p.top_p = 0; }, wrong, "top_p is 0");
    refused([](SamplingParams& p) { p.top_p = 1.5f; }, wrong, "top_p is 1.5");
    refused([](SamplingParams& p) { p.top_p = nan_value; }, wrong, "top_p is nan");
    refused([](SamplingParams& p) { p.min_p = -0.5f; }, wrong, "min_p is -0.5");
    refused([](SamplingParams& p) { p.min_p = 1; }, wrong, "min_p is 1");
    refused([](SamplingParams& p) { p.min_p = nan_value; }, wrong, "min_p is nan");
    refused([](SamplingParams& p) { p.logprobs = -1; }, wrong, "logprobs is -1");
    refused([](SamplingParams& p) { p.logprobs = 21; }, Status::LIMIT, "logprobs is 21, the limit is 20");

    SamplingParams edge;
    CHECK(check_sampling(edge, nullptr) == Status::OK);
    edge.temperature = 1e6f;
    edge.top_k = std::numeric_limits<int32_t>::max();
    edge.top_p = std::numeric_limits<float>::denorm_min();
    edge.min_p = 0.99999994f;
    edge.logprobs = 20;
    edge.seed = UINT64_MAX;
    CHECK(check_sampling(edge, nullptr) == Status::OK);
    edge.temperature = -0.0f;
    CHECK(check_sampling(edge, nullptr) == Status::OK);
    CHECK(inverse_temperature(edge) == 1);
}
