// The eight steps of sampler.h. Most draws end among the 256 candidates that the backend found; the row is
// sorted further only where a filter asks for more, and only as far as it asks.
#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/limits.h"
#include "base/math.h"
#include "base/philox.h"

namespace treadle {
namespace {

bool better(const Candidate& left, const Candidate& right) {
    return left.logit > right.logit || (left.logit == right.logit && left.token < right.token);
}

// The row's candidates in order, of which a beginning is sorted:
//
//     row.best   [ sorted 256 ]                               while nobody asks for more
//     scratch    [ sorted ........ | the rest, all worse ]    afterwards; sorted grows fourfold or more
//
// The order is strict, so how far it was sorted at once changes nothing.
class OrderedRow {
public:
    OrderedRow(const RowResult& row, const float* logits, int32_t vocabulary, std::span<Candidate> scratch)
        : best_(row.best), sorted_(row.count), logits_(logits), vocabulary_(vocabulary),
          scratch_(scratch.data()) {}

    // Sorts at least the first `count` candidates; count <= vocabulary.
    void sort_first(int32_t count) {
        if (count <= sorted_) return;
        int32_t begin = sorted_;
        if (best_ != scratch_) {
            copy_row();
            begin = 0;
        }
        const int32_t grown = sorted_ > vocabulary_ / 4 ? vocabulary_ : 4 * sorted_;
        const int32_t end = std::max(count, grown);
        if (end < vocabulary_)
            std::nth_element(scratch_ + begin, scratch_ + end, scratch_ + vocabulary_, better);
        std::sort(scratch_ + begin, scratch_ + end, better);
        sorted_ = end;
    }

    const Candidate& at(int32_t index) {
        sort_first(index + 1);
        return best_[index];
    }

private:
    // A NaN that a backend overlooked must not upset the sort, which trusts the order to be one.
    void copy_row() {
        for (int32_t token = 0; token < vocabulary_; token++) {
            const float logit = logits_[token];
            scratch_[token] = {std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit, token};
        }
        best_ = scratch_;
    }

    const Candidate* best_;  // row.best or scratch
    int32_t sorted_;
    const float* logits_;  // (vocabulary)
    int32_t vocabulary_;
    Candidate* scratch_;  // (vocabulary)
};

struct Weight {
    float max;
    float factor;  // log2(e) / temperature
    float operator()(float logit) const { return math::exp2((logit - max) * factor); }
};

double sum_of_first(OrderedRow& order, int32_t count, const Weight& weight) {
    double sum = 0;
    for (int32_t i = 0; i < count; i++) sum += static_cast<double>(weight(order.at(i).logit));
    return sum;
}

int32_t count_after_top_p(OrderedRow& order, int32_t count, const Weight& weight, double share) {
    double sum = 0;
    for (int32_t i = 0; i < count; i++) {
        sum += static_cast<double>(weight(order.at(i).logit));
        if (sum >= share) return i + 1;
    }
    return count;
}

int32_t count_after_min_p(OrderedRow& order, int32_t count, const Weight& weight, float min_p) {
    for (int32_t i = 1; i < count; i++) {
        if (weight(order.at(i).logit) < min_p) return i;
    }
    return count;
}

// Step 8: adds up weights until they exceed the target.
class Walk {
public:
    Walk(const Weight& weight, double target) : weight_(weight), target_(target) {}

    // True when this candidate is the token.
    bool visit(const Candidate& candidate) {
        const float p = weight_(candidate.logit);
        if (p > 0) last_ = candidate;
        sum_ += static_cast<double>(p);
        return sum_ > target_;
    }

    Candidate last() const { return last_; }

private:
    Weight weight_;
    double target_;
    double sum_ = 0;
    Candidate last_{0, -1};
};

Candidate draw_unfiltered(Walk walk, const RowResult& row, const float* logits, int32_t vocabulary) {
    for (int32_t i = 0; i < row.count; i++) {
        if (walk.visit(row.best[i])) return row.best[i];
    }
    const Candidate worst_listed = row.best[row.count - 1];
    for (int32_t token = 0; token < vocabulary; token++) {
        const Candidate candidate{logits[token], token};
        if (better(worst_listed, candidate) && walk.visit(candidate)) return candidate;
    }
    return walk.last();
}

Candidate draw_ordered(Walk walk, OrderedRow& order, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        if (walk.visit(order.at(i))) return order.at(i);
    }
    return walk.last();
}

Candidate draw(const SamplingParams& params, double u, const RowResult& row, const float* logits,
               int32_t vocabulary, std::span<Candidate> scratch) {
    const Weight weight{row.max, math::log2e * inverse_temperature(params)};
    const bool limit_count = params.top_k > 0 && params.top_k < vocabulary;
    const bool limit_share = params.top_p < 1;
    const bool limit_ratio = params.min_p > 0;
    if (!limit_count && !limit_share && !limit_ratio) {
        return draw_unfiltered(Walk(weight, u * static_cast<double>(row.sum_scaled)), row, logits,
                               vocabulary);
    }
    OrderedRow order(row, logits, vocabulary, scratch);
    int32_t count = limit_count ? params.top_k : vocabulary;
    if (limit_count) order.sort_first(count);
    if (limit_share) {
        const double total =
            limit_count ? sum_of_first(order, count, weight) : static_cast<double>(row.sum_scaled);
        count = count_after_top_p(order, count, weight, static_cast<double>(params.top_p) * total);
    }
    if (limit_ratio) count = count_after_min_p(order, count, weight, params.min_p);
    return draw_ordered(Walk(weight, u * sum_of_first(order, count, weight)), order, count);
}

}  // namespace

Status check_sampling(const SamplingParams& params, Error* error) {
    const auto number = [](float value) { return static_cast<double>(value); };
    if (!(params.temperature >= 0 && params.temperature <= temperature_max))
        return fail(error, Status::INVALID_ARGUMENT,
                    "temperature is %.9g, it must be in 0 .. 1e6 (0: greedy)", number(params.temperature));
    if (params.top_k < 0)
        return fail(error, Status::INVALID_ARGUMENT, "top_k is %d, it must not be negative (0: off)",
                    params.top_k);
    if (!(params.top_p > 0 && params.top_p <= 1))
        return fail(error, Status::INVALID_ARGUMENT,
                    "top_p is %.9g, it must be above 0 and at most 1 (1: off)", number(params.top_p));
    if (!(params.min_p >= 0 && params.min_p < 1))
        return fail(error, Status::INVALID_ARGUMENT,
                    "min_p is %.9g, it must be at least 0 and below 1 (0: off)", number(params.min_p));
    if (params.logprobs < 0)
        return fail(error, Status::INVALID_ARGUMENT, "logprobs is %d, it must not be negative",
                    params.logprobs);
    if (params.logprobs > limits::logprobs_max)
        return fail(error, Status::LIMIT, "logprobs is %d, the limit is %d", params.logprobs,
                    limits::logprobs_max);
    return Status::OK;
}

float inverse_temperature(const SamplingParams& params) {
    if (params.temperature == 0) return 1;
    return std::min(1 / params.temperature, 0x1p100f);
}

float log_probability(const RowResult& row, float logit) { return (logit - row.max) - math::log(row.sum); }

int32_t best_logprobs(const RowResult& row, std::span<TokenLogprob> out) {
    const int32_t count = static_cast<int32_t>(std::min(out.size(), static_cast<size_t>(row.count)));
    for (int32_t i = 0; i < count; i++) out[i] = {row.best[i].token, log_probability(row, row.best[i].logit)};
    return count;
}

Status sample(const SamplingParams& params, uint64_t sample_index, int32_t position, const RowResult& row,
              const float* logits, int32_t vocabulary, std::span<Candidate> scratch, TokenLogprob* out) {
    if (row.usable == 0) return Status::NOT_A_NUMBER;
    if (vocabulary < 1 || row.count != std::min(vocabulary, limits::candidates_kept) ||
        scratch.size() < sampling_scratch_candidates(vocabulary))
        return Status::INTERNAL;
    Candidate chosen = row.best[0];
    if (params.temperature > 0) {
        const double u = philox_uniform(params.seed, sample_index, static_cast<uint32_t>(position));
        chosen = draw(params, u, row, logits, vocabulary, scratch);
    }
    if (chosen.token < 0 || chosen.token >= vocabulary) return Status::INTERNAL;
    *out = {chosen.token, params.logprobs > 0 ? log_probability(row, chosen.logit) : 0};
    return Status::OK;
}

}  // namespace treadle
