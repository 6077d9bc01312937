// The part of the candidates kernel that has no lanes: sorting the few that were collected. Called by every tier.

#include <algorithm>

#include "cpu/vector.h"

namespace treadle::cpu {

void sort_candidates(Candidate* list, int32_t count, int32_t kept) {
    const auto goes_before = [](const Candidate& a, const Candidate& b) {
        return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
    };
    if (kept < count) std::nth_element(list, list + kept, list + count, goes_before);
    std::sort(list, list + std::min(kept, count), goes_before);
}

}  // namespace treadle::cpu
