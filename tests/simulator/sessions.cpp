// The sessions of a world: sequences that are saved in any state, and go on later, in the same engine or in another one, as if
// nothing had happened; or whose bytes are damaged.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "simulator.h"

namespace treadle::test {
namespace {

using number_t = unsigned long long;

constexpr size_t saved_most = 6;

// What the tokens of a session's answer say, and what an end lets go besides, if it had ended.
std::string text_of(const FakeModel& model, const Submission& asked, FinishReason over, Memory* memory) {
    SoloParams alone;
    alone.generated_tail = asked.generated_tail;
    alone.stop_strings = asked.stop_strings;
    alone.stop_tokens = asked.stop_tokens;
    alone.ignore_end = asked.ignore_end;
    SoloSequence solo(model, std::move(alone), asked.prompt, memory);
    return over == FinishReason::none ? solo.tail_text() : solo.tail_text() + solo.held_text();
}

}  // namespace

void World::act_save() {
    Live* live = pick([](const Live&) { return true; });
    if (live == nullptr) return;
    const int32_t sequence = between(0, live->asked.samples - 1);
    const std::vector<int32_t> tokens = tokens_of(*live, sequence);
    const auto length = static_cast<int32_t>(tokens.size());
    std::optional<int32_t> position;
    if (one_in(2)) position = between(1, length);
    Saved saved;
    const Status status = driver_->save(live->id, sequence, position, &saved.bytes);
    if (live->is_pin() || (live->is_search() && !live->over())) {
        if (status != Status::INVALID_ARGUMENT)
            fail("save of what has no answer says %s", status_name(status));
        return;
    }
    if (status != Status::OK) fail("save says %s", status_name(status));
    note("  saved: number, position", static_cast<int64_t>(live->number), position.value_or(-1));

    const int32_t saved_length = position.value_or(length);
    const auto prompt = static_cast<int32_t>(live->asked.prompt.size()) - live->asked.generated_tail;
    Submission& asked = saved.asked;
    asked = live->asked;
    asked.samples = asked.beam_width = 1;
    asked.first_sample += static_cast<uint64_t>(sequence);
    asked.prompt.assign(tokens.begin(), tokens.begin() + saved_length);
    asked.generated_tail = std::max(saved_length - prompt, 0);
    saved.wanted = live->wanted;
    saved.forks = live->forks;
    saved.delivered = live->sequences[static_cast<size_t>(sequence)].told_text;

    SessionState state(driver_->test_memory());
    if (decode_session(saved.bytes, &state, nullptr) != Status::OK) fail("what was saved can't be read");
    saved.over = static_cast<FinishReason>(state.finish_reason);
    if (position.has_value() && saved.over != FinishReason::none)
        fail("the beginning of request %llu is saved as an end", static_cast<number_t>(live->number));
    const FinishReason ended =
        live->over() && live->finish_reason != FinishReason::error ? live->finish_reason : FinishReason::none;
    if (!position.has_value() && live->asked.samples == 1 && saved.over != ended)
        fail("request %llu, which ended with %d, is saved with %d", static_cast<number_t>(live->number),
             static_cast<int>(ended), static_cast<int>(saved.over));
    const std::string said = text_of(driver_->model(), asked, FinishReason::none, driver_->test_memory());
    if (saved.over == FinishReason::none && saved.delivered.size() > said.size())
        saved.delivered.resize(said.size());
    check_saved(*live, sequence, saved);
    if (saved.over == FinishReason::none && saved_length >= saved.wanted) saved.over = FinishReason::length;
    coverage_->saved++;
    if (saved_.size() < saved_most) {
        saved_.push_back(std::move(saved));
    } else {
        saved_[random_.below(saved_most)] = std::move(saved);
    }
}

void World::check_saved(const Live& live, int32_t sequence, const Saved& saved) {
    SessionState state(driver_->test_memory());
    if (decode_session(saved.bytes, &state, nullptr) != Status::OK) fail("what was saved can't be read");
    const Submission& asked = saved.asked;
    const auto prompt = static_cast<int32_t>(asked.prompt.size()) - asked.generated_tail;
    const bool same_sampling =
        state.sampling.temperature == asked.sampling.temperature &&
        state.sampling.top_k == asked.sampling.top_k && state.sampling.top_p == asked.sampling.top_p &&
        state.sampling.min_p == asked.sampling.min_p && state.sampling.seed == asked.sampling.seed &&
        state.sampling.logprobs == asked.sampling.logprobs;
    const bool same_stops = std::equal(state.stop_tokens.begin(), state.stop_tokens.end(),
                                       asked.stop_tokens.begin(), asked.stop_tokens.end()) &&
                            std::equal(state.stop_strings.begin(), state.stop_strings.end(),
                                       asked.stop_strings.begin(), asked.stop_strings.end(),
                                       [](const auto& a, const auto& b) { return std::string_view(a) == b; });
    if (!std::equal(state.tokens.begin(), state.tokens.end(), asked.prompt.begin(), asked.prompt.end()) ||
        state.prompt_tokens != prompt || state.sample_index != asked.first_sample ||
        state.forks != saved.forks || !same_sampling || !same_stops || state.ignore_end != asked.ignore_end ||
        state.max_tokens != (saved.wanted == INT32_MAX ? -1 : saved.wanted - prompt) ||
        state.model_fingerprint != driver_->fingerprint())
        fail("the session of request %llu is another one", static_cast<number_t>(live.number));
    if (state.delivered_bytes != saved.delivered.size())
        fail("sequence %d of request %llu is saved with %llu bytes delivered, told are %zu", sequence,
             static_cast<number_t>(live.number), static_cast<number_t>(state.delivered_bytes),
             saved.delivered.size());
}

void World::act_restore() {
    if (saved_.empty()) return;
    const Saved saved = saved_[random_.below(static_cast<uint32_t>(saved_.size()))];
    switch (random_.below(8)) {
        case 0: restore_elsewhere(saved); break;
        case 1: restore_damaged(saved); break;
        case 2: restore_without_memory(saved); break;
        default: restore(saved); break;
    }
}

void World::restore(const Saved& saved) {
    Submission asked = saved.asked;
    asked.deadline_us = 0;
    asked.priority = Priority::normal;
    asked.scope = {};
    choose_order(&asked);
    asked.keep = one_in(5);
    asked.number = next_number_;
    if (one_in(3)) asked.sampling.logprobs = between(0, 5);
    const RestoreParams wanted = {asked.priority,    asked.keep,   asked.scope,
                                  asked.deadline_us, asked.number, asked.sampling.logprobs};
    const CacheScope scope = scope_of(asked);
    const auto length = static_cast<int32_t>(asked.prompt.size());
    const Fit room = saved.over != FinishReason::none ? Fit{Status::OK, length, saved.wanted}
                                                      : fit(asked, scope, saved.wanted);
    const int64_t called_ns = driver_->clock().now_ns;
    uint64_t id = 0;
    const Status status = driver_->restore(saved.bytes, wanted, &id);
    note("  restored: number, tokens", static_cast<int64_t>(next_number_), length);
    next_number_++;
    if (!accepted("restore", status, room.status)) return;
    coverage_->restored++;
    Live& live = begin(std::move(asked), id, room, scope, called_ns);
    live.lonely_scope = live.asked.scope.is_private || live.asked.scope.salt >= 1000;
    begin_restored(saved, &live);
}

// What the host hadn't got comes first.
void World::begin_restored(const Saved& saved, Live* live) {
    live->forks = saved.forks;
    live->over_as = saved.over;
    LiveSequence& sequence = live->sequences.front();
    sequence.told_text = saved.delivered;
    const std::string text = text_of(driver_->model(), live->asked, saved.over, driver_->test_memory());
    if (text.compare(0, saved.delivered.size(), saved.delivered) != 0)
        fail("a session had delivered other text than its tokens have");
    sequence.prelude = text.substr(saved.delivered.size());
    coverage_->restored_text += sequence.prelude.empty() ? 0 : 1;
    if (saved.over == FinishReason::none) return;
    coverage_->restored_over++;
    live->state = SequenceState::finished;
    live->finish_reason = saved.over;
}

// Another engine of the model tells the rest, from the first byte that was not delivered; one of another model refuses.
void World::restore_elsewhere(const Saved& saved) {
    const auto length = static_cast<int32_t>(saved.asked.prompt.size());
    EngineParams params;
    params.context_length = std::min(length + between(1, 40), model_options_.context);
    params.kv_blocks = (params.context_length + 15) / 16 + between(0, 3);
    params.max_sequences = between(1, 4);
    params.max_batch_tokens = between(2, 70);
    FakeModelOptions options = model_options_;
    if (one_in(6)) options.seed++;
    FakeControl control;
    Driver other(options, params, &control);
    uint64_t id = 0;
    const Status status = other.restore(saved.bytes, {}, &id);
    if (options.seed != model_options_.seed) {
        if (status != Status::WRONG_MODEL) fail("another model's engine says %s", status_name(status));
        coverage_->sessions_refused++;
        return;
    }
    if (status != Status::OK) fail("another engine can't restore: %s", status_name(status));

    const FakeModel& model = driver_->model();
    std::string expected =
        text_of(model, saved.asked, saved.over, driver_->test_memory()).substr(saved.delivered.size());
    SoloParams alone;
    alone.sampling = saved.asked.sampling;
    alone.sample_index = saved.asked.first_sample;
    alone.generated_tail = saved.asked.generated_tail;
    alone.limit = std::min(params.context_length, saved.wanted);
    alone.ignore_end = saved.asked.ignore_end;
    alone.stop_tokens = saved.asked.stop_tokens;
    alone.stop_strings = saved.asked.stop_strings;
    SoloSequence solo(model, std::move(alone), saved.asked.prompt, driver_->test_memory());
    while (saved.over == FinishReason::none && !solo.over()) {
        solo.advance();
        expected += solo.text();
    }
    if (saved.over == FinishReason::none) expected += solo.held_text();
    const FinishReason reason = saved.over == FinishReason::none ? solo.reason() : saved.over;

    std::vector<PolledEvent> events;
    StepReport report;
    for (int32_t i = 0; i < 10'000 && (events.empty() || events.back().kind != EventKind::finished); i++) {
        if (other.step(one_in(2) ? 0 : 200, &report) != Status::OK) fail("another engine's step fails");
        other.poll(SIZE_MAX, &events);
    }
    std::string text;
    std::vector<int32_t> tokens = saved.asked.prompt;
    for (const PolledEvent& event : events) {
        text += event.text;
        if (event.kind == EventKind::token) tokens.push_back(event.token);
    }
    if (control.violations > 0) fail("violations in another engine: %s", control.first_violation.c_str());
    if (text != expected || tokens != solo.tokens() || events.back().reason != reason)
        fail("restored elsewhere it says \"%s\" and ends with %d, must say \"%s\" and end with %d",
             text.c_str(), static_cast<int>(events.back().reason), expected.c_str(),
             static_cast<int>(reason));
    coverage_->restored_elsewhere++;
}

// Bytes that are not those of a session, and sessions that nobody can have saved, are a status and change nothing.
void World::restore_damaged(const Saved& saved) {
    std::vector<std::byte> bytes = saved.bytes;
    Status expected = Status::OK;  // any but this
    const auto place = random_.below(static_cast<uint32_t>(bytes.size()));
    if (one_in(3)) {
        bytes[place] ^= std::byte{static_cast<unsigned char>(1u << random_.below(8))};
    } else if (one_in(3)) {
        bytes.resize(place);
    } else if (one_in(3)) {
        bytes.push_back(std::byte{0});
    } else {
        SessionState state(driver_->test_memory());
        if (decode_session(bytes, &state, nullptr) != Status::OK) fail("what was saved can't be read");
        if (one_in(3)) {
            state.model_fingerprint ^= 1;
            expected = Status::WRONG_MODEL;
        } else if (one_in(2)) {
            state.tokens.back() = model_options_.vocabulary;
            expected = Status::TOKEN_OUT_OF_RANGE;
        } else {
            state.delivered_bytes =
                text_of(driver_->model(), saved.asked, saved.over, driver_->test_memory()).size() + 1;
        }
        bytes.resize(session_bytes(state));
        if (encode_session(state, bytes, nullptr) != Status::OK) return;
    }
    const int64_t live_before = driver_->allocator().live();
    const uint64_t submitted_before = driver_->stats().counters.requests_submitted;
    uint64_t id = 0;
    const Status status = driver_->restore(bytes, {}, &id);
    if (status == Status::OK || (expected != Status::OK && status != expected))
        fail("a damaged session says %s", status_name(status));
    if (driver_->allocator().live() > live_before) fail("a refused session leaks");
    if (driver_->stats().counters.requests_submitted != submitted_before) fail("a refused session counts");
    coverage_->sessions_refused++;
}

void World::restore_without_memory(const Saved& saved) {
    const int64_t live_before = driver_->allocator().live();
    driver_->allocator().fail_from(between(0, 4));  // fewer than it needs
    uint64_t id = 0;
    const Status status = driver_->restore(saved.bytes, {}, &id);
    driver_->allocator().fail_never();
    Submission asked = saved.asked;
    asked.scope = {};
    const Status refusal = fit(asked, scope_of(asked), saved.wanted).status;
    if (status != Status::NOMEM && (status != refusal || refusal == Status::OK))
        fail("restore without memory says %s", status_name(status));
    if (driver_->allocator().live() > live_before) fail("a restore without memory leaks");
    coverage_->sessions_refused++;
}

}  // namespace treadle::test
