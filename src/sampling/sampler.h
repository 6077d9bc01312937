// From a row of logits to a token (numerics contract, rule 7). The engine's commit phase calls `sample` once
// per row that a pass computed logits for; the api layer calls `check_sampling` when a request is submitted.
//
// Invariant: the token is a pure function of (parameters, index of the sample, position, the row's logits),
// bit for bit on every machine. A second implementation gives the same tokens if it does the following, where
// every operation on floats and doubles is IEEE's, rounded once, to nearest:
//
//   1. Order. Candidates are sorted by (logit descending, id ascending); logits compare as floats, so -0
//      equals +0. Temperature 0 takes the first and ends here.
//   2. Weight. factor = log2(e) * inverse_temperature(parameters), in float. The weight of a candidate is
//      p = exp2((logit - max) * factor) in float, by base/math.h. The first one's weight is 1.
//   3. top_k (0 or at least the vocabulary: off) keeps the first top_k candidates.
//   4. top_p (1: off) keeps the shortest beginning whose weights, added in order in double, reach
//      double(top_p) * total; all that step 3 kept if none does. total is the row's sum_scaled where top_k is
//      off; otherwise the weights that step 3 kept, added in order in double.
//   5. min_p (0: off) keeps what stands before the first candidate with p < min_p. At least the first
//      candidate is always kept.
//   6. Mass. Where all filters are off: the row's sum_scaled. Otherwise the weights of the kept candidates,
//      added in order in double.
//   7. Draw. x = the first word of Philox4x32-10 for seed, index of the sample and position, laid out as
//      base/philox.h says; target = (double(x >> 8) * 2^-24) * mass.
//   8. Walk. The kept candidates in order; where all filters are off: the first 256 in order, then all other
//      ids ascending. Their weights are added up in double; the first candidate that brings the sum above the
//      target is the token; if none does, the last one with p > 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "ops/backend.h"

namespace treadle {

constexpr float temperature_max = 1e6f;  // far beyond where all tokens are equally likely

// The defaults sample from the whole distribution as the model gives it.
struct SamplingParams {
    float temperature = 1;  // 0: always the best token; up to temperature_max
    int32_t top_k = 0;      // keep so many best; 0: all
    float top_p = 1;        // keep the fewest best with this share of the probability, in (0, 1]; 1: all
    float min_p = 0;        // keep those with this share of the best one's probability, in [0, 1); 0: all
    uint64_t seed = 0;
    int32_t logprobs = 0;  // how many best tokens are reported at each position, 0 .. limits::logprobs_max
};

// INVALID_ARGUMENT (LIMIT for too many logprobs) names the field and its value.
[[nodiscard]] Status check_sampling(const SamplingParams& params, Error* error);

// What a backend multiplies the logits with: 1 where greedy; capped at 2^100, so that a tiny temperature is
// the limit it stands for (a draw among the best and its equals) and not an infinity.
float inverse_temperature(const SamplingParams& params);

struct TokenLogprob {
    int32_t token;
    float logprob;
};

// Log-probability under the raw logits: (logit - max) - log(sum), two float operations on base/math.h's float
// log. The parameters don't matter to it. -infinity for a token that the model excludes.
float log_probability(const RowResult& row, float logit);

// Writes the log-probabilities of the best tokens, best first: min(out.size(), row.count) of them, which it
// returns.
int32_t best_logprobs(const RowResult& row, std::span<TokenLogprob> out);

// Whether `sample` takes less time than a look at the clock; with others it may have to sort the vocabulary.
inline bool samples_at_once(const SamplingParams& params) { return params.temperature == 0; }

// Candidates of scratch that sample needs; an engine makes them once (8 bytes each).
constexpr size_t sampling_scratch_candidates(int32_t vocabulary) { return static_cast<size_t>(vocabulary); }

// Chooses the token that will stand at `position` of a sequence (counted from 0, prompt included), which is
// sample `sample_index` of its request. `row` and `logits` (vocabulary) are the backend's results for the
// position before, computed with this request's inverse_temperature. NOT_A_NUMBER where the row is not
// usable; INTERNAL where row and vocabulary contradict one another. Allocates nothing; touches scratch only
// where a filter reaches past the candidates of the row. The log-probability is 0 where params.logprobs is.
[[nodiscard]] Status sample(const SamplingParams& params, uint64_t sample_index, int32_t position,
                            const RowResult& row, const float* logits, int32_t vocabulary,
                            std::span<Candidate> scratch, TokenLogprob* out);

}  // namespace treadle
