// The arithmetic of beam search: which hypotheses go on. The engine notes the candidates of each row when it is sampled, and
// selects when the rows of all hypotheses of one length exist.
//
// The score is that of Wu et al., "Google's Neural Machine Translation System", 2016 (arXiv 1609.08144, section 7), in its simple
// form: log P(Y) / |Y|^alpha, without the offset of 5. alpha is the length penalty.
//
// Invariant: a selection is a pure function of the parents' sums, in their order, and of their rows, bit for bit on every
// machine. A second implementation makes the same choices if it does the following; every operation is IEEE's, rounded once, to
// nearest:
//
//   1. Candidates of a row, by (logit descending, id ascending), as log_probability gives them; those of -infinity are none.
//      They are taken from the front until `width` are taken that go on; of those that end, the first `width` are taken. No more
//      than the 256 best of a row are looked at.
//   2. Sum: the parent's sum + the log-probability, in float. The sum of the prompt is 0.
//   3. Score: float(double(sum) / pow(double(n), double(length_penalty))), pow by base/math.h; n counts the tokens that the
//      search has chosen, this one among them.
//   4. Order: by (score descending, rank of the parent, token id). The rank of a hypothesis is its place among the children.
//   5. In this order, candidates that go on become children and those that end are kept, until there are `width` children or as
//      many have ended as are still wanted.
//   6. The search ends when `width` have ended, when no candidate goes on, or when its hypotheses are full; those that are alive
//      then are kept too, in order. The best are those with the best scores, of equals those that were kept first. To end as
//      soon as nothing can change the best any more (best_score_ahead) makes no difference to them.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "sampling/sampler.h"

namespace treadle {

// What a token does to the hypothesis that it is appended to.
enum class BeamEnd : uint8_t { none, by_token, by_text };

struct BeamCandidate {
    int32_t token;
    float logprob;
    BeamEnd end;
};

struct BeamParent {
    float sum;  // of its log-probabilities
    std::span<const BeamCandidate> candidates;
};

// A parent's hypothesis and one token more.
struct BeamChoice {
    float score;
    float sum;
    int32_t parent;  // its rank
    int32_t token;
    float logprob;
    BeamEnd end;
    bool ends() const { return end != BeamEnd::none; }
};

// What a row can bring, and a selection look at.
constexpr size_t beam_candidates_max(int32_t width) { return 2 * static_cast<size_t>(width); }
constexpr size_t beam_choices_max(int32_t width) {
    return static_cast<size_t>(width) * beam_candidates_max(width);
}

// Step 1: writes at most beam_candidates_max(width) candidates and returns their number. `end_by` tells of a token how it
// ends its sequence.
template <class EndBy>
int32_t beam_candidates(const RowResult& row, int32_t width, EndBy end_by, std::span<BeamCandidate> out) {
    int32_t count = 0;
    int32_t ended = 0;
    for (int32_t i = 0; i < row.count && count - ended < width; i++) {
        const int32_t token = row.best[i].token;
        const float logprob = log_probability(row, row.best[i].logit);
        if (!(logprob >= -std::numeric_limits<float>::max())) break;  // and all after it
        const BeamEnd end = end_by(token);
        if (end != BeamEnd::none && ended == width) continue;
        ended += end != BeamEnd::none ? 1 : 0;
        out[static_cast<size_t>(count++)] = {token, logprob, end};
    }
    return count;
}

// Step 3.
float beam_score(float sum, int32_t tokens, float length_penalty);

// No hypothesis that goes on from one with this sum and so many tokens to at most `tokens_max` will have a better score: a sum
// only falls, and is divided by no more than the greatest length of a positive penalty. A bound, not a sharp one.
float best_score_ahead(float sum, int32_t tokens, int32_t tokens_max, float length_penalty);

// Steps 2 to 5: `parents` by rank, at most `width`; `ends_wanted` more hypotheses may end, at least one; children have `tokens`
// tokens. The choices stand at the beginning of `scratch` (beam_choices_max), those that end among the children, in order.
std::span<const BeamChoice> select_beams(std::span<const BeamParent> parents, int32_t width,
                                         int32_t ends_wanted, int32_t tokens, float length_penalty,
                                         std::span<BeamChoice> scratch);

}  // namespace treadle
