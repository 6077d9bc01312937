// What must hold of every event, and of the tokens that a request tells when it is asked: they are those of a run alone.
#include <algorithm>

#include "simulator.h"

namespace treadle::test {
namespace {

using number_t = unsigned long long;

}  // namespace

void World::check_event(const PolledEvent& event) {
    coverage_->events++;
    // By its id: what the host gave a request to tell it by, its forks have too.
    const auto found = std::find_if(lives_.begin(), lives_.end(), [&](const auto& each) {
        return !each.second.released && each.second.id == event.request;
    });
    if (found == lives_.end())
        fail("an event of request %llu, which is gone", static_cast<number_t>(event.request));
    Live& live = found->second;
    const auto number = static_cast<number_t>(live.number);
    if (event.number != live.asked.number)
        fail("an event of request %llu has user data %llu", number, static_cast<number_t>(event.number));
    if (event.sequence < 0 || event.sequence >= live.asked.samples)
        fail("an event of sequence %d of request %llu", event.sequence, number);
    LiveSequence& sequence = live.sequences[static_cast<size_t>(event.sequence)];
    if (live.is_pin()) fail("an event of pin %llu", number);
    if (sequence.told_end) fail("an event of request %llu after its end", number);
    const auto length = static_cast<int32_t>(sequence.solo.tokens().size());
    switch (event.kind) {
        case EventKind::progress:
            if (sequence.told_tokens > 0 || event.position < sequence.told_progress ||
                event.position > static_cast<int32_t>(live.asked.prompt.size()))
                fail("request %llu: progress %d after %d", number, event.position, sequence.told_progress);
            sequence.told_progress = event.position;
            break;
        case EventKind::token: check_token(live, sequence, event); break;
        case EventKind::text:
            if (!sequence.prelude.empty()) {
                if (event.text.empty() || event.position != length ||
                    sequence.prelude.compare(0, event.text.size(), event.text) != 0)
                    fail("request %llu: text \"%s\", to be told are \"%s\"", number, event.text.c_str(),
                         sequence.prelude.c_str());
                sequence.prelude.erase(0, event.text.size());
                sequence.told_text += event.text;
                break;
            }
            if (live.over_as != FinishReason::none || sequence.end_text.has_value() || event.text.empty() ||
                event.position != length)
                fail("request %llu: text \"%s\" out of place", number, event.text.c_str());
            sequence.end_text = event.text;
            sequence.told_text += event.text;
            break;
        case EventKind::finished: check_finish(live, sequence, event); break;
    }
}

void World::check_token(const Live& live, LiveSequence& sequence, const PolledEvent& event) {
    const auto number = static_cast<number_t>(live.number);
    SoloSequence& solo = sequence.solo;
    if (!sequence.prelude.empty()) fail("request %llu: a token before the text behind it", number);
    if (sequence.end_text.has_value()) fail("request %llu: a token after the last text", number);
    if (solo.over()) fail("request %llu: token %d after its end", number, event.position);
    if (live.is_search()) {
        check_search_token(live, sequence, event);
        sequence.told_tokens++;
        sequence.told_text += event.text;
        return;
    }
    if (event.position != static_cast<int32_t>(solo.tokens().size()))
        fail("request %llu: token at %d, not %zu", number, event.position, solo.tokens().size());
    solo.advance();
    if (solo.reason() == FinishReason::error) fail("request %llu: token %d of a NaN", number, event.position);
    if (event.token != solo.newest().token)
        fail("request %llu: token %d is %d, alone it is %d", number, event.position, event.token,
             solo.newest().token);
    if (event.text != solo.text())
        fail("request %llu: text \"%s\", alone \"%s\"", number, event.text.c_str(), solo.text().c_str());
    sequence.told_tokens++;
    sequence.told_text += event.text;
    if (event.best.size() != static_cast<size_t>(live.asked.sampling.logprobs))
        fail("request %llu: %zu log-probabilities", number, event.best.size());
    if (event.best.empty()) return;
    TokenLogprob best[limits::logprobs_max];
    best_logprobs(solo.row(), {best, event.best.size()});
    for (size_t i = 0; i < event.best.size(); i++)
        if (event.best[i].token != best[i].token || event.best[i].logprob != best[i].logprob)
            fail("request %llu: log-probability %zu differs", number, i);
    if (event.logprob != solo.newest().logprob)
        fail("request %llu: the token's log-probability differs", number);
}

// A sequence ends as it ends alone, or because the host or a failure ended it.
void World::check_reason(const Live& live, LiveSequence& sequence, const PolledEvent& event) {
    const auto number = static_cast<number_t>(live.number);
    SoloSequence& solo = sequence.solo;
    const FinishReason reason = event.reason;
    bool allowed = false;
    if (live.over_as != FinishReason::none) {
        allowed = reason == live.over_as;
    } else if (solo.over()) {
        allowed = reason == solo.reason();
    } else if (reason == FinishReason::error && event.status == Status::NOT_A_NUMBER) {
        solo.advance();
        allowed = solo.reason() == FinishReason::error;
    } else if (reason == FinishReason::error) {
        allowed = broken_ != Status::OK && event.status == broken_;
    } else if (reason == FinishReason::deadline) {
        allowed = driver_->clock().now_ns >= live.deadline_low_ns;
    } else {
        allowed = reason == FinishReason::cancelled && live.cancel_asked;
    }
    if (!allowed || (reason == FinishReason::error) != (event.status != Status::OK))
        fail("request %llu ends with reason %d, status %s, alone with %d", number, static_cast<int>(reason),
             status_name(event.status), static_cast<int>(solo.reason()));
    coverage_->ended += reason == FinishReason::end ? 1 : 0;
    coverage_->stopped += reason == FinishReason::stop_string ? 1 : 0;
    coverage_->filled += reason == FinishReason::length ? 1 : 0;
    coverage_->cancelled += reason == FinishReason::cancelled ? 1 : 0;
    coverage_->overdue += reason == FinishReason::deadline ? 1 : 0;
    coverage_->not_numbers += event.status == Status::NOT_A_NUMBER ? 1 : 0;
}

void World::check_finish(Live& live, LiveSequence& sequence, const PolledEvent& event) {
    const auto number = static_cast<number_t>(live.number);
    if (event.position != static_cast<int32_t>(sequence.solo.tokens().size()))
        fail("request %llu ends at %d, not %zu", number, event.position, sequence.solo.tokens().size());
    if (!sequence.prelude.empty()) fail("request %llu ends before all of its text is told", number);
    if (live.over_as == FinishReason::none && sequence.solo.held_text() != sequence.end_text.value_or(""))
        fail("request %llu: last text \"%s\"", number, sequence.end_text.value_or("").c_str());
    if (live.is_search()) {
        check_search_reason(live, sequence, event);
    } else {
        check_reason(live, sequence, event);
    }
    sequence.told_end = true;
    live.told_end = std::all_of(live.sequences.begin(), live.sequences.end(),
                                [](const LiveSequence& each) { return each.told_end; });
    if (event.last != live.told_end) fail("request %llu: the last of its ends is another one", number);
    if (!live.told_end || live.asked.keep) return;
    RequestInfo info;
    if (driver_->info(live.id, &info) != Status::STALE_ID)
        fail("request %llu is there after its end was told", number);
    live.released = true;
    stale_ids_.push_back(live.id);
}

// `whole`: its end was told, so its events told all of its tokens; else there may be a few more.
void World::check_tokens(const Live& live, bool whole) {
    for (int32_t i = 0; i < live.asked.samples; i++) {
        const size_t told = live.sequences[static_cast<size_t>(i)].solo.tokens().size();
        if (tokens_of(live, i).size() > told && whole)
            fail("request %llu has more tokens than its events told", static_cast<number_t>(live.number));
    }
}

// What the engine says are a sequence's tokens: those that events told, and then those that it would say alone.
std::vector<int32_t> World::tokens_of(const Live& live, int32_t sequence) {
    const std::vector<int32_t> tokens = driver_->tokens(live.id, sequence);
    const SoloSequence& told = live.sequences[static_cast<size_t>(sequence)].solo;
    const auto begins_with = [&](const SoloSequence& solo) {
        return solo.tokens().size() <= tokens.size() &&
               std::equal(solo.tokens().begin(), solo.tokens().end(), tokens.begin());
    };
    bool equal = begins_with(told);
    if (live.is_search()) {
        equal = equal && (broken_ != Status::OK || tokens == tokens_of_search(live, sequence));
    } else if (equal && told.tokens().size() < tokens.size()) {
        SoloSequence ahead = told;
        while (ahead.tokens().size() < tokens.size() && !ahead.over()) ahead.advance();
        equal = begins_with(ahead) && ahead.tokens().size() == tokens.size();
    }
    if (!equal) fail("the tokens of request %llu are not its own", static_cast<number_t>(live.number));
    return tokens;
}

}  // namespace treadle::test
