// Scores, and the order of choices.
#include "sampling/beam.h"

#include <algorithm>

#include "base/math.h"

namespace treadle {
namespace {

bool better(const BeamChoice& left, const BeamChoice& right) {
    if (left.score != right.score) return left.score > right.score;
    if (left.parent != right.parent) return left.parent < right.parent;
    return left.token < right.token;
}

double divisor_of(int32_t tokens, float length_penalty) {
    return math::pow(static_cast<double>(tokens), static_cast<double>(length_penalty));
}

float score_of(float sum, double divisor) { return static_cast<float>(static_cast<double>(sum) / divisor); }

}  // namespace

float beam_score(float sum, int32_t tokens, float length_penalty) {
    return score_of(sum, divisor_of(tokens, length_penalty));
}

float best_score_ahead(float sum, int32_t tokens, int32_t tokens_max, float length_penalty) {
    constexpr double slack = 1 - 1e-6;  // for what pow and the roundings lack to be monotonic
    const int32_t kindest = length_penalty > 0 ? tokens_max : tokens;
    return static_cast<float>(static_cast<double>(sum) * slack / divisor_of(kindest, length_penalty));
}

std::span<const BeamChoice> select_beams(std::span<const BeamParent> parents, int32_t width,
                                         int32_t ends_wanted, int32_t tokens, float length_penalty,
                                         std::span<BeamChoice> scratch) {
    const double divisor = divisor_of(tokens, length_penalty);
    size_t count = 0;
    for (size_t rank = 0; rank < parents.size(); rank++)
        for (const BeamCandidate& candidate : parents[rank].candidates) {
            const float sum = parents[rank].sum + candidate.logprob;
            scratch[count++] = {.score = score_of(sum, divisor),
                                .sum = sum,
                                .parent = static_cast<int32_t>(rank),
                                .token = candidate.token,
                                .logprob = candidate.logprob,
                                .end = candidate.end};
        }
    const size_t most = std::min(count, static_cast<size_t>(width) + static_cast<size_t>(ends_wanted));
    std::partial_sort(scratch.begin(), scratch.begin() + static_cast<std::ptrdiff_t>(most),
                      scratch.begin() + static_cast<std::ptrdiff_t>(count), better);
    int32_t children = 0;
    int32_t ended = 0;
    size_t chosen = 0;
    for (; chosen < most && children < width && ended < ends_wanted; chosen++)
        (scratch[chosen].ends() ? ended : children)++;
    return scratch.first(chosen);
}

}  // namespace treadle
