// Beam search over the fake model as sampling/beam.h tells it, the plain way: every hypothesis a list, every selection a sort of
// all there is; no cache, no batch, no early end. What any engine must find.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "fake_model.h"

namespace treadle::test {

struct BeamSearch {
    std::vector<int32_t> prompt;
    int32_t max_tokens = 1;
    int32_t width = 2;
    float length_penalty = 1;
};

struct BeamHypothesis {
    std::vector<int32_t> tokens;  // that the search chose
    std::vector<float> logprobs;
    float sum = 0;
    float score = -std::numeric_limits<float>::infinity();
    size_t parent = 0;  // its rank
    uint64_t prefix = 0;
    FinishReason reason = FinishReason::none;
};

struct BeamOutcome {
    std::vector<BeamHypothesis> best;  // that are over, best first
    bool failed = false;               // a row had a NaN: these are those that were over before
};

// `end_of` tells how its newest token ends a hypothesis; none: it goes on.
BeamOutcome search_beams(const FakeModel& model, const BeamSearch& search,
                         const std::function<FinishReason(const BeamHypothesis&)>& end_of);

}  // namespace treadle::test
