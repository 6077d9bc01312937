// Beam searches of a world: how they are made, and what must hold of them. What they find is what a plain search finds.
#include <algorithm>
#include <limits>

#include "simulator.h"

namespace treadle::test {
namespace {

using number_t = unsigned long long;

bool is_answer(FinishReason reason) {
    return reason == FinishReason::end || reason == FinishReason::stop_string ||
           reason == FinishReason::length;
}

}  // namespace

// Makes one of a request: it chooses by probability alone.
void World::make_search(Submission* asked) {
    static constexpr float penalties[] = {1, 1, 0, 0.6f, -1, 2};
    const int32_t most = driver_->params().max_sequences;
    if (most < 2 && !one_in(8)) return;
    asked->beam_width = one_in(24) ? most + 1 : between(2, std::max(std::min(most, one_in(4) ? 9 : 4), 2));
    asked->samples = between(1, asked->beam_width);
    asked->length_penalty = penalties[random_.below(6)];
    asked->sampling = {.temperature = 0, .seed = asked->sampling.seed};
    asked->prompt.resize(std::min(asked->prompt.size(), size_t{48}));
    if (!one_in(20)) asked->max_tokens = between(1, 2 * typical_tokens_);
    while (!one_in(8) && asked->beam_width > 2 && fit(*asked, {}).status != Status::OK) {
        asked->beam_width--;
        asked->samples = std::min(asked->samples, asked->beam_width);
        asked->prompt.resize((asked->prompt.size() + 1) / 2);
    }
}

const BeamOutcome& World::outcome_of(const Live& live) const {
    if (live.search.has_value()) return *live.search;
    const Submission& asked = live.asked;
    SoloParams alone;
    alone.limit = INT32_MAX;
    alone.generated_tail = asked.generated_tail;
    alone.ignore_end = asked.ignore_end;
    alone.stop_tokens = asked.stop_tokens;
    alone.stop_strings = asked.stop_strings;
    const SoloSequence prompt(driver_->model(), std::move(alone), asked.prompt, driver_->test_memory());
    const auto end_of = [&](const BeamHypothesis& one) {
        SoloSequence said = prompt;
        // Without stop strings the newest token alone decides.
        for (size_t i = asked.stop_strings.empty() ? one.tokens.size() - 1 : 0; i < one.tokens.size(); i++)
            said.append(one.tokens[i]);
        return said.reason();
    };
    const int32_t tokens = live.limit - static_cast<int32_t>(asked.prompt.size());
    live.search = search_beams(driver_->model(),
                               {asked.prompt, tokens, asked.beam_width, asked.length_penalty}, end_of);
    return *live.search;
}

// What its sequence of that number must tell; null: there are fewer.
const BeamHypothesis* World::hypothesis_of(const Live& live, int32_t sequence) const {
    const BeamOutcome& outcome = outcome_of(live);
    const auto rank = static_cast<size_t>(sequence);
    if (outcome.failed && static_cast<int32_t>(outcome.best.size()) < live.asked.samples)
        fail("search %llu finds something behind a NaN", static_cast<number_t>(live.number));
    return rank < outcome.best.size() ? &outcome.best[rank] : nullptr;
}

void World::check_search_token(const Live& live, LiveSequence& sequence, const PolledEvent& event) {
    const auto number = static_cast<number_t>(live.number);
    SoloSequence& solo = sequence.solo;
    if (!live.over()) fail("search %llu tells a token before its end", number);
    for (int32_t i = 0; i < event.sequence; i++)
        if (!live.sequences[static_cast<size_t>(i)].told_end)
            fail("search %llu tells of sequence %d before all of %d", number, event.sequence, i);
    const BeamHypothesis* hypothesis = hypothesis_of(live, event.sequence);
    const auto place = static_cast<size_t>(sequence.told_tokens);
    if (hypothesis == nullptr || place >= hypothesis->tokens.size())
        fail("search %llu: sequence %d has more than %zu tokens", number, event.sequence, place);
    if (event.position != static_cast<int32_t>(solo.tokens().size()) ||
        event.token != hypothesis->tokens[place] || event.logprob != hypothesis->logprobs[place])
        fail("search %llu: sequence %d, position %d: token %d, %.9g, alone %d, %.9g", number, event.sequence,
             event.position, event.token, static_cast<double>(event.logprob), hypothesis->tokens[place],
             static_cast<double>(hypothesis->logprobs[place]));
    solo.append(event.token);
    if (event.text != solo.text())
        fail("search %llu: text \"%s\", alone \"%s\"", number, event.text.c_str(), solo.text().c_str());
}

// It ends with what it must find, or with nothing, because the host or a failure ended it.
void World::check_search_reason(const Live& live, const LiveSequence& sequence, const PolledEvent& event) {
    const auto number = static_cast<number_t>(live.number);
    const auto told = static_cast<size_t>(sequence.told_tokens);
    float score = -std::numeric_limits<float>::infinity();
    bool allowed = told == 0;
    if (is_answer(event.reason)) {
        const BeamHypothesis* hypothesis = hypothesis_of(live, event.sequence);
        allowed = hypothesis == nullptr
                      ? told == 0 && event.reason == FinishReason::length
                      : told == hypothesis->tokens.size() && event.reason == hypothesis->reason;
        if (hypothesis != nullptr) score = hypothesis->score;
        coverage_->beams_told++;
    } else if (event.status == Status::NOT_A_NUMBER) {
        allowed &= outcome_of(live).failed;
        coverage_->beams_failed++;
    } else if (event.reason == FinishReason::error) {
        allowed &= broken_ != Status::OK && event.status == broken_;
    } else if (event.reason == FinishReason::deadline) {
        allowed &= driver_->clock().now_ns >= live.deadline_low_ns;
    } else {
        allowed &= event.reason == FinishReason::cancelled && live.cancel_asked;
    }
    if (!allowed || event.logprob != score || is_answer(event.reason) != is_answer(live.finish_reason) ||
        (event.reason == FinishReason::error) != (event.status != Status::OK))
        fail("search %llu: sequence %d ends after %zu tokens with reason %d, status %s, score %.9g", number,
             event.sequence, told, static_cast<int>(event.reason), status_name(event.status),
             static_cast<double>(event.logprob));
}

// Until its end all that it tells is its prompt.
std::vector<int32_t> World::tokens_of_search(const Live& live, int32_t sequence) const {
    std::vector<int32_t> tokens = live.asked.prompt;
    if (!live.over() || !is_answer(live.finish_reason)) return tokens;
    const BeamHypothesis* hypothesis = hypothesis_of(live, sequence);
    if (hypothesis != nullptr)
        tokens.insert(tokens.end(), hypothesis->tokens.begin(), hypothesis->tokens.end());
    return tokens;
}

// A search runs or waits as a whole. After a step that ended with a whole pass nothing else is counted than what lives.
void World::check_units() {
    if (step_budget_us_ != 0 || report_.passes != 1) return;
    int32_t low = 0;
    int32_t high = 0;
    bool searches = false;
    for (const auto& [number, live] : lives_) {
        if (live.released || live.over()) continue;
        const bool runs = live.state == SequenceState::prompt || live.state == SequenceState::generating;
        searches |= live.is_search();
        if (live.asked.samples > 1 && !live.is_search()) {
            high += live.asked.samples;
        } else if (runs) {
            low += live.asked.beam_width;
            high += live.asked.beam_width;
        }
    }
    coverage_->beams_counted += searches && low == high ? 1 : 0;
    if (report_.running < low || report_.running > high)
        fail("%d sequences run, must be %d to %d", report_.running, low, high);
}

}  // namespace treadle::test
