// The plain beam search.
#include "fake_beam_search.h"

#include <algorithm>
#include <tuple>

#include "base/math.h"

namespace treadle::test {
namespace {

using EndOf = std::function<FinishReason(const BeamHypothesis&)>;

// Appends to *out the ways in which a hypothesis goes on, likeliest first; of those that go on and of those that end, no more
// than the search is wide. False: its row has a NaN.
bool grow(const FakeModel& model, const BeamSearch& search, const EndOf& end_of, const BeamHypothesis& from,
          size_t parent, std::vector<BeamHypothesis>* out) {
    std::vector<float> logits(static_cast<size_t>(model.vocabulary_size()));
    model.logits(from.prefix, logits.data());
    RowResult row;
    model.result(logits.data(), 1, &row);
    if (row.usable == 0) return false;
    int32_t going_on = 0;
    int32_t ending = 0;
    for (int32_t i = 0; i < row.count && going_on < search.width; i++) {
        const int32_t token = row.best[i].token;
        const float logprob = row.best[i].logit - row.max - math::log(row.sum);
        BeamHypothesis one = from;
        one.tokens.push_back(token);
        one.logprobs.push_back(logprob);
        one.sum = from.sum + logprob;
        one.score = static_cast<float>(
            static_cast<double>(one.sum) /
            math::pow(static_cast<double>(one.tokens.size()), static_cast<double>(search.length_penalty)));
        one.parent = parent;
        one.prefix = FakeModel::extend(from.prefix, token);
        one.reason = end_of(one);
        int32_t& count = one.reason == FinishReason::none ? going_on : ending;
        if (count++ < search.width) out->push_back(std::move(one));
    }
    return true;
}

bool chosen_before(const BeamHypothesis& a, const BeamHypothesis& b) {
    return std::make_tuple(-a.score, a.parent, a.tokens.back()) <
           std::make_tuple(-b.score, b.parent, b.tokens.back());
}

}  // namespace

BeamOutcome search_beams(const FakeModel& model, const BeamSearch& search, const EndOf& end_of) {
    const auto width = static_cast<size_t>(search.width);
    BeamOutcome outcome;
    std::vector<BeamHypothesis>& over = outcome.best;
    std::vector<BeamHypothesis> live(1);
    live[0].prefix = model.empty_prefix();
    for (const int32_t token : search.prompt) live[0].prefix = FakeModel::extend(live[0].prefix, token);
    for (int32_t depth = 1; depth <= search.max_tokens && !live.empty() && over.size() < width; depth++) {
        std::vector<BeamHypothesis> all;
        for (size_t parent = 0; parent < live.size(); parent++)
            outcome.failed |= !grow(model, search, end_of, live[parent], parent, &all);
        if (outcome.failed) break;
        std::stable_sort(all.begin(), all.end(), chosen_before);
        live.clear();
        for (BeamHypothesis& one : all)
            if (live.size() < width && over.size() < width)
                (one.reason == FinishReason::none ? live : over).push_back(std::move(one));
    }
    if (over.size() < width && !outcome.failed)
        for (BeamHypothesis& one : live) {
            one.reason = FinishReason::length;
            over.push_back(std::move(one));
        }
    std::stable_sort(over.begin(), over.end(),
                     [](const BeamHypothesis& a, const BeamHypothesis& b) { return a.score > b.score; });
    return outcome;
}

}  // namespace treadle::test
