// What the host of a world does between steps, and how its requests are made.
#include <algorithm>
#include <utility>

#include "simulator.h"

namespace treadle::test {
const World::Action World::actions[] = {
    {"submit", 40, &World::act_submit},
    {"submit a burst", 4, &World::act_submit_burst},
    {"submit a large one before a stream", 2, &World::act_submit_large},
    {"submit many behind a producer", 3, &World::act_submit_with_producer},
    {"submit one too long", 3, &World::act_submit_too_long},
    {"submit without memory", 3, &World::act_submit_without_memory},
    {"pin", 6, &World::act_pin},
    {"unpin", 3, &World::act_unpin},
    {"save", 6, &World::act_save},
    {"restore", 6, &World::act_restore},
    {"fork", 10, &World::act_fork},
    {"fork wrongly", 2, &World::act_fork_wrongly},
    {"set a priority", 8, &World::act_set_priority},
    {"cancel", 10, &World::act_cancel},
    {"cancel all", 1, &World::act_cancel_all},
    {"release", 6, &World::act_release},
    {"release a kept one", 12, &World::act_release_kept},
    {"poll some", 8, &World::act_poll_some},
    {"withhold polls", 2, &World::act_withhold_polls},
    {"trim", 3, &World::act_trim},
    {"jump the clock", 3, &World::act_jump_clock},
    {"change the budget", 8, &World::act_change_budget},
    {"ask for a stale id", 3, &World::act_ask_stale},
    {"compare tokens", 10, &World::act_compare_tokens},
    {"break the backend", 1, &World::act_break_backend},
};

size_t World::action_count() { return std::size(actions); }

void World::act() {
    uint32_t sum = 0;
    for (const uint32_t weight : weights_) sum += weight;
    uint32_t draw = random_.below(sum);
    const uint32_t* weight = weights_.data();
    for (const Action& action : actions) {
        if (draw < *weight) return (this->*action.run)();
        draw -= *weight++;
    }
}

World::Live* World::pick(bool (*wanted)(const Live&)) {
    std::vector<Live*> found;
    for (auto& [number, live] : lives_)
        if (!live.released && wanted(live)) found.push_back(&live);
    return found.empty() ? nullptr : found[random_.below(static_cast<uint32_t>(found.size()))];
}

void World::act_submit() {
    const bool full = static_cast<int32_t>(lives_.size()) >= driver_->params().max_requests;
    if (!full || one_in(8)) {
        submit(make_submission());
    } else {
        act_release_kept();
    }
}

void World::act_submit_burst() {
    const bool alike = one_in(2);  // one prefix many times at once
    const Submission first = make_submission();
    for (int32_t i = between(2, driver_->params().max_sequences + 3); i > 0; i--) {
        Submission asked = make_submission();
        if (alike) asked.prompt = first.prompt;
        submit(std::move(asked));
    }
}

// One that needs most of the cache, and then many that need little of it and could pass it for ever.
void World::act_submit_large() {
    Submission asked = make_submission();
    asked.prompt = make_prompt(longest_prompt_);
    asked.max_tokens = -1;
    asked.samples = asked.beam_width = 1;
    if (submit(std::move(asked))) stream_until_ = step_ + 80;
}

void World::submit_stream() {
    if (step_ >= stream_until_) return;
    for (int32_t i = 0; i < 3; i++) {
        if (static_cast<int32_t>(lives_.size()) >= driver_->params().max_requests) return;
        Submission asked = make_submission();
        asked.prompt.resize(std::min(asked.prompt.size(), size_t{3}));
        asked.max_tokens = between(1, 8);
        asked.samples = asked.beam_width = 1;
        asked.keep = false;
        submit(std::move(asked));
    }
}

void World::act_submit_too_long() {
    Submission asked = make_submission();
    const int32_t room = std::min(driver_->params().context_length, driver_->params().kv_blocks * 16);
    asked.prompt.assign(static_cast<size_t>(room + between(-1, 2)), 5);
    submit(std::move(asked));
}

// Many begin alike, and the first of them, which computes that beginning for all, is cancelled on the way.
void World::act_submit_with_producer() {
    Submission first = make_submission();
    first.prompt = make_prompt(longest_prompt_);
    first.scope = {};
    const std::vector<int32_t> prompt = first.prompt;
    if (!submit(std::move(first))) return;
    doomed_.push_back({step_ + between(0, 3), next_number_ - 1});
    for (int32_t i = between(1, 5); i > 0; i--) {
        Submission follower = make_submission();
        follower.prompt = prompt;
        follower.scope = {};
        submit(std::move(follower));
    }
}

void World::cancel_producers() {
    for (const DoomedProducer& doomed : std::exchange(doomed_, {})) {
        const auto found = lives_.find(doomed.number);
        if (found == lives_.end() || found->second.released || found->second.told_end) continue;
        if (step_ < doomed.step) {
            doomed_.push_back(doomed);
            continue;
        }
        const Live& live = found->second;
        coverage_->producers_cancelled += live.state == SequenceState::prompt && live.prompt_done > 0 ? 1 : 0;
        cancel(found->second);
    }
}

void World::act_cancel() {
    Live* live = pick([](const Live& each) { return !each.told_end; });
    if (live != nullptr) cancel(*live);
}

void World::cancel(Live& live) {
    if (live.is_pin()) return unpin(live);
    note("  cancelled: number, state", static_cast<int64_t>(live.number), static_cast<int64_t>(live.state));
    if (driver_->cancel(live.id) != Status::OK)
        fail("request %llu can't be cancelled", static_cast<unsigned long long>(live.number));
    RequestInfo info;
    if (driver_->info(live.id, &info) != Status::OK) fail("a cancelled request has no state");
    if (info.state != SequenceState::finished) {
        coverage_->cancelled_waiting += info.state == SequenceState::waiting ? 1 : 0;
        coverage_->cancelled_prompt += info.state == SequenceState::prompt ? 1 : 0;
        coverage_->cancelled_generating += info.state == SequenceState::generating ? 1 : 0;
        coverage_->cancelled_in_pass += control_.begins > control_.passes_done ? 1 : 0;
    }
    live.cancel_asked = true;
    host_acted_ = true;
}

void World::act_cancel_all() {
    for (auto& [number, live] : lives_) {
        if (live.released || live.told_end || live.is_pin()) continue;
        if (driver_->cancel(live.id) != Status::OK) fail("a live request can't be cancelled");
        live.cancel_asked = true;
    }
    host_acted_ = true;
}

void World::act_release() {
    Live* live = pick([](const Live&) { return true; });
    if (live == nullptr) return;
    if (live->is_pin()) return unpin(*live);
    note("  released: number, state", static_cast<int64_t>(live->number), static_cast<int64_t>(live->state));
    if (driver_->release(live->id) != Status::OK) fail("a live request can't be released");
    coverage_->released_live += live->over() ? 0 : 1;
    live->released = true;
    stale_ids_.push_back(live->id);
    host_acted_ = true;
}

void World::act_release_kept() {
    Live* live = pick([](const Live& each) { return each.told_end; });
    if (live == nullptr) return;
    check_tokens(*live, true);
    if (driver_->release(live->id) != Status::OK) fail("a kept request can't be released");
    live->released = true;
    stale_ids_.push_back(live->id);
}

void World::act_poll_some() { poll(static_cast<size_t>(between(1, 6))); }

void World::act_withhold_polls() { withhold_polls_until_ = step_ + between(5, 90); }

// At any time, in the middle of a pass too: the backend minds if a pass names what is gone.
void World::act_trim() {
    const int32_t trimmed_before = driver_->stats().gauges.blocks_trimmed;
    const uint64_t bytes = driver_->trim();
    const int32_t blocks = driver_->stats().gauges.blocks_trimmed - trimmed_before;
    note("  trimmed: blocks, in the middle of a pass", blocks,
         control_.begins > control_.passes_done ? 1 : 0);
    if (blocks < 0 || (bytes == 0) != (blocks == 0))
        fail("a trim of %d blocks gives back other bytes", blocks);
    if (!driver_->consistent()) fail("the blocks and their references disagree after a trim");
    coverage_->trimmed += blocks;
    coverage_->trims_in_pass += blocks > 0 && control_.begins > control_.passes_done ? 1 : 0;
}

void World::act_jump_clock() {
    driver_->clock().now_ns += int64_t{between(1, 1000)} * (one_in(4) ? 60'000'000'000 : 1'000'000);
}

void World::act_change_budget() {
    static constexpr int64_t budgets_us[] = {0, 0, 1, 1, 100, 500, 2000, 10'000'000};
    budget_us_ = budgets_us[random_.below(8)];
}

void World::act_ask_stale() {
    RequestInfo info;
    const uint64_t never = uint64_t{random_.below(1000) + 1} << 32 | random_.below(70);
    if (stale_ids_.empty() || one_in(4)) {
        for (const auto& [number, live] : lives_)
            if (live.id == never) return;
        if (driver_->info(never, &info) != Status::STALE_ID) fail("an id that never was is not stale");
        return;
    }
    const uint64_t id = stale_ids_[random_.below(static_cast<uint32_t>(stale_ids_.size()))];
    if (driver_->cancel(id) != Status::STALE_ID || driver_->release(id) != Status::STALE_ID ||
        driver_->info(id, &info) != Status::STALE_ID)
        fail("the id of a request that is gone is not stale");
}

// A request's tokens are those that its events told, and perhaps a few more.
void World::act_compare_tokens() {
    Live* live = pick([](const Live&) { return true; });
    if (live == nullptr) return;
    check_tokens(*live, false);
}

void World::act_break_backend() {
    if (!may_break_ || !one_in(3)) return;
    (one_in(2) ? control_.fail_next_begin : control_.fail_next_advance) = Status::INTERNAL;
}

}  // namespace treadle::test
