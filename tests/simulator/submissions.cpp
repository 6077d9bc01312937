// The requests of a world: how they are made, what becomes of a submission, and what a request would say alone.
#include <algorithm>
#include <utility>

#include "simulator.h"

namespace treadle::test {

// A piece of a family, cut anywhere and most often near a block's border, then perhaps something of its own.
std::vector<int32_t> World::make_prompt(int32_t tokens_max) {
    const auto& family = families_[random_.below(static_cast<uint32_t>(families_.size()))];
    int32_t length = between(1, std::min(tokens_max, one_in(4) ? tokens_max : 3 * typical_tokens_));
    if (one_in(2)) length = (length + 15) / 16 * 16 + between(-1, 1);
    length = std::clamp(length, 1, tokens_max);
    std::vector<int32_t> prompt(family.begin(), family.begin() + length);
    if (one_in(2))
        for (int32_t i = between(0, length - 1); i < length; i++)
            prompt[static_cast<size_t>(i)] = between(0, model_options_.vocabulary - 1);
    return prompt;
}

void World::make_stops(Submission* asked) {
    if (one_in(6)) asked->stop_tokens = {between(2, 20), between(2, model_options_.vocabulary - 1)};
    if (!one_in(4)) return;
    static const char* const texts[] = {"ab", "q", "zz", "\u00e9", "\u00e9a", "cde", "xx", "\ufffd"};
    for (int i = between(1, 3); i > 0; i--) asked->stop_strings.emplace_back(texts[random_.below(8)]);
}

// How urgent it is, how long it may take, and whom it shares blocks with.
void World::choose_order(Submission* asked) {
    if (mixed_priorities_) {
        static constexpr Priority any[] = {Priority::interactive, Priority::normal, Priority::normal,
                                           Priority::bulk, Priority::bulk};
        asked->priority = one_in(24) ? Priority::paused : any[random_.below(5)];
    }
    if (deadlines_ && one_in(4)) {
        asked->deadline_us = one_in(12) ? INT64_MAX : between(1, one_in(2) ? 3000 : 300'000);
    }
    if (!salts_) return;
    if (one_in(8)) {
        asked->scope.is_private = true;
    } else if (one_in(3)) {
        asked->scope.salt = one_in(4) ? 1000 + next_number_ : random_.below(3);
    }
}

Submission World::make_submission() {
    Submission asked;
    asked.prompt = make_prompt(longest_prompt_);
    asked.max_tokens = one_in(12) ? -1 : between(1, one_in(6) ? 10 * typical_tokens_ : 2 * typical_tokens_);
    SamplingParams& sampling = asked.sampling;
    static constexpr float temperatures[] = {0, 0.3f, 0.7f, 1, 1, 2.5f};
    sampling.temperature = temperatures[random_.below(6)];
    if (one_in(3)) sampling.top_k = between(1, 50);
    if (one_in(3)) sampling.top_p = static_cast<float>(between(1, 20)) / 20;
    if (one_in(4)) sampling.min_p = static_cast<float>(between(0, 9)) / 10;
    if (one_in(4)) sampling.logprobs = between(1, 5);
    sampling.seed = random_.below(4);  // few, so that equal requests meet
    asked.first_sample = random_.below(3);
    asked.ignore_end = one_in(3);
    asked.keep = one_in(5);
    if (one_in(6)) asked.samples = between(2, 4);
    choose_order(&asked);
    make_stops(&asked);
    if (pins_ && one_in(3)) begin_like_a_pin(&asked);
    if (searches_ && one_in(4)) make_search(&asked);
    return asked;
}

// True if the engine took it; checks that it answers as it must.
bool World::submit(Submission asked) {
    asked.number = next_number_;
    const CacheScope scope = scope_of(asked);
    next_number_++;
    const Fit room = fit(asked, scope);
    const Status expected = room.status;
    const int64_t called_ns = driver_->clock().now_ns;
    uint64_t id = 0;
    const Status status = driver_->submit(asked, &id);
    note("  submitted: number, tokens", static_cast<int64_t>(asked.number),
         static_cast<int64_t>(asked.prompt.size()));
    (asked.beam_width > 1 ? coverage_->beams_refused : coverage_->refused_long) +=
        expected != Status::OK ? 1 : 0;
    if (!accepted("submit", status, expected)) return false;
    Live& live = begin(std::move(asked), id, room, scope, called_ns);
    live.lonely_scope = live.asked.scope.is_private || live.asked.scope.salt >= 1000;
    coverage_->lonely += live.lonely_scope ? 1 : 0;
    return true;
}

// Whether a call that makes a request did, and that it didn't only for a reason that there was.
bool World::accepted(const char* call, Status status, Status expected) {
    // A kept or unpolled request takes a place until it is given up, a released one perhaps until its pass has ended.
    if (status == Status::FULL && static_cast<int32_t>(lives_.size()) >= driver_->params().max_requests) {
        coverage_->refused_full++;
        return false;
    }
    if (expected == Status::OK && broken_ != Status::OK) expected = Status::UNUSABLE;
    if (expected != Status::OK) {
        if (status != expected)
            fail("%s says %s, must say %s", call, status_name(status), status_name(expected));
        return false;
    }
    if (status != Status::OK) fail("%s says %s", call, status_name(status));
    return true;
}

// The engine took it, after a look at the clock that was not before `called_ns`.
World::Live& World::begin(Submission asked, uint64_t id, const Fit& room, const CacheScope& scope,
                          int64_t called_ns) {
    const uint64_t number = next_number_ - 1;
    Live& live = lives_[number];
    live.number = number;
    live.id = id;
    live.limit = room.limit;
    live.wanted = room.wanted;
    live.scope = scope;
    live.asked = std::move(asked);
    const int64_t after = live.asked.deadline_us;
    if (after > 0 && after < INT64_MAX) {
        live.deadline_low_ns = called_ns + after * 1000;
        live.deadline_high_ns = driver_->clock().now_ns + after * 1000;
    }
    begin_alone(&live);
    submitted_ += live.is_pin() ? 0 : 1;
    coverage_->submitted++;
    coverage_->beams += live.is_search() ? 1 : 0;
    coverage_->kept += live.asked.keep ? 1 : 0;
    coverage_->sampled += live.asked.samples > 1 && !live.is_search() ? 1 : 0;
    host_acted_ = true;
    return live;
}

// What each of its sequences would say if it were the only one in the world.
void World::begin_alone(Live* live) {
    const Submission& asked = live->asked;
    live->generated = asked.samples * asked.generated_tail;
    for (int32_t i = 0; i < asked.samples; i++) {
        SoloParams alone;
        alone.sampling = asked.sampling;
        alone.sample_index = asked.first_sample + static_cast<uint64_t>(i);
        alone.generated_tail = asked.generated_tail;
        alone.limit = live->limit;
        alone.ignore_end = asked.ignore_end;
        alone.stop_tokens = asked.stop_tokens;
        alone.stop_strings = asked.stop_strings;
        LiveSequence& one = live->sequences.emplace_back(
            SoloSequence(driver_->model(), std::move(alone), asked.prompt, driver_->test_memory()));
        one.told_text = one.solo.tail_text();
    }
}

// Wherever the allocation fails, nothing has changed afterwards.
void World::act_submit_without_memory() {
    Submission asked = make_submission();
    if (broken_ != Status::OK || static_cast<int32_t>(lives_.size()) >= driver_->params().max_requests)
        return;
    const CacheScope scope = scope_of(asked);
    const int64_t live_before = driver_->allocator().live();
    const uint64_t submitted_before = driver_->stats().counters.requests_submitted;
    const int64_t live_after_sweep = driver_->allocator().live();
    driver_->allocator().fail_from(between(0, 8 + 8 * asked.samples));
    control_.no_kv_memory = one_in(2);
    uint64_t id = 0;
    asked.number = next_number_++;
    const Status refusal = fit(asked, scope).status;
    const Status status = driver_->submit(asked, &id);
    driver_->allocator().fail_never();
    control_.no_kv_memory = false;
    if (status == Status::OK) {  // it needed fewer allocations; the host changes its mind
        note("  submitted and released: number", static_cast<int64_t>(asked.number));
        if (driver_->release(id) != Status::OK) fail("a new request can't be released");
        Live& live = lives_[asked.number];
        live.number = asked.number;
        live.id = id;
        live.asked = std::move(asked);
        live.released = true;
        submitted_++;
        host_acted_ = true;
        return;
    }
    if (status != Status::NOMEM && (status != refusal || refusal == Status::OK))
        fail("submit without memory says %s", status_name(status));
    coverage_->refused_memory++;
    if (driver_->allocator().live() > std::max(live_before, live_after_sweep)) fail("a refused submit leaks");
    if (driver_->stats().counters.requests_submitted != submitted_before) fail("a refused submit counts");
}

}  // namespace treadle::test
