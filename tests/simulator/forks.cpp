// What the host of a world does with requests that live already: forks them, and changes their urgency.
#include <algorithm>

#include "base/hash.h"
#include "simulator.h"

namespace treadle::test {

void World::act_fork() {
    Live* parent = pick([](const Live&) { return true; });
    if (parent == nullptr) return;
    const int32_t sequence = between(0, parent->asked.samples - 1);
    const auto length = static_cast<int32_t>(tokens_of(*parent, sequence).size());
    int32_t position = one_in(3) ? length : between(1, length);
    if (one_in(3)) position = std::clamp((position + 8) / 16 * 16 + between(-1, 1), 1, length);
    const bool own = one_in(2);
    if (one_in(8)) {
        check_fork_without_memory(*parent, sequence, position);
    } else {
        fork(*parent, sequence, position, own);
    }
}

// A fork equals the fresh request with those tokens, of which the parent's own count as generated, and with draws of its own.
void World::fork(Live& parent, int32_t sequence, int32_t position, bool own) {
    const std::vector<int32_t> tokens = tokens_of(parent, sequence);
    const auto parent_prompt = static_cast<int32_t>(parent.asked.prompt.size()) - parent.asked.generated_tail;
    Submission asked = own ? make_submission() : parent.asked;
    asked.number = own ? next_number_ : parent.asked.number;
    int32_t max_tokens = one_in(2) ? 0 : between(1, 2 * typical_tokens_);
    if (one_in(12) || (max_tokens == 0 && asked.beam_width > 1 && own)) max_tokens = -1;

    const int64_t called_ns = driver_->clock().now_ns;
    uint64_t id = 0;
    const Status status =
        driver_->fork(parent.id, sequence, position, own ? &asked : nullptr, max_tokens, &id);
    note("  forked: number, position", static_cast<int64_t>(parent.number), position);
    note("      is: number", static_cast<int64_t>(next_number_));
    next_number_++;

    asked.prompt.assign(tokens.begin(), tokens.begin() + position);
    asked.generated_tail = std::max(position - parent_prompt, 0);
    asked.scope = parent.asked.scope;
    asked.pin = false;
    if (!own) {
        asked.samples = asked.beam_width = 1;
        asked.deadline_us = 0;
        if (asked.priority == Priority::paused) asked.priority = Priority::normal;
    }
    const uint64_t words[] = {parent.asked.first_sample + static_cast<uint64_t>(sequence),
                              static_cast<uint64_t>(position), parent.forks};
    asked.first_sample = hash64(words, sizeof words);
    asked.max_tokens = max_tokens == 0 ? -1 : max_tokens;
    const bool inherits = max_tokens == 0 && position < parent.wanted && !parent.is_pin();
    const Fit room = inherits ? fit(asked, parent.scope, parent.wanted) : fit(asked, parent.scope);
    coverage_->forks_refused += room.status != Status::OK ? 1 : 0;
    if (!accepted("fork", status, room.status)) return;
    coverage_->forks++;
    coverage_->forks_of_ended += parent.over() ? 1 : 0;
    coverage_->forks_of_forks += parent.fork ? 1 : 0;
    coverage_->forks_with_params += own ? 1 : 0;
    coverage_->forks_in_prompt += position < parent_prompt ? 1 : 0;
    parent.forks++;
    parent.lonely_scope = false;
    coverage_->forks_of_pins += parent.is_pin() ? 1 : 0;
    const CacheScope scope = parent.scope;
    begin(std::move(asked), id, room, scope, called_ns).fork = true;
}

// A fork that finds no memory leaves nothing behind, and the draws of the next one as they were.
void World::check_fork_without_memory(const Live& parent, int32_t sequence, int32_t position) {
    const Submission own = make_submission();
    const int64_t live_before = driver_->allocator().live();
    driver_->allocator().fail_from(between(0, 3));  // fewer than it needs
    uint64_t id = 0;
    const Status status = driver_->fork(parent.id, sequence, position, &own, 1, &id);
    driver_->allocator().fail_never();
    Submission asked = own;
    asked.prompt = tokens_of(parent, sequence);
    asked.prompt.resize(static_cast<size_t>(position));
    asked.max_tokens = 1;
    const Status refusal = fit(asked, parent.scope).status;
    if (status != Status::NOMEM && (status != refusal || refusal == Status::OK))
        fail("fork without memory says %s", status_name(status));
    if (driver_->allocator().live() > live_before) fail("a refused fork leaks");
    coverage_->forks_without_memory++;
}

void World::act_fork_wrongly() {
    uint64_t id = 0;
    if (!stale_ids_.empty() && driver_->fork(stale_ids_.back(), 0, 1, nullptr, 0, &id) != Status::STALE_ID)
        fail("a request that is gone can be forked");
    Live* parent = pick([](const Live&) { return true; });
    if (parent == nullptr) return;
    const auto length = static_cast<int32_t>(tokens_of(*parent, 0).size());
    if (driver_->fork(parent->id, 0, length + 1, nullptr, 0, &id) != Status::INVALID_ARGUMENT ||
        driver_->fork(parent->id, 0, 0, nullptr, 0, &id) != Status::INVALID_ARGUMENT ||
        driver_->fork(parent->id, parent->asked.samples, 1, nullptr, 0, &id) != Status::INVALID_ARGUMENT)
        fail("a fork at no position of a sequence is taken");
}

void World::act_set_priority() {
    if (!mixed_priorities_) return;
    Live* live =
        one_in(2)
            ? pick([](const Live& each) { return !each.over() && each.asked.priority == Priority::paused; })
            : nullptr;
    if (live == nullptr) live = pick([](const Live&) { return true; });
    if (live != nullptr) set_priority(*live, static_cast<Priority>(between(0, 3)));
}

void World::set_priority(Live& live, Priority priority) {
    note("  priority: number, is", static_cast<int64_t>(live.number), static_cast<int64_t>(priority));
    if (driver_->set_priority(live.id, priority) != Status::OK) fail("a request's priority can't be set");
    host_acted_ = true;
    if (live.over()) return;
    coverage_->priorities_set++;
    const bool was_paused = live.asked.priority == Priority::paused;
    coverage_->resumed += was_paused && priority != Priority::paused ? 1 : 0;
    if (priority == Priority::paused && !was_paused) {
        coverage_->paused_running += live.runs() ? 1 : 0;
        was_paused_ = true;
    }
    live.asked.priority = priority;
    live.passes_without_token = live.overtaken = 0;
}

}  // namespace treadle::test
