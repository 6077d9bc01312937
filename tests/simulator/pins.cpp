// The pins of a world, and what must hold of them: they cost what they fill, nobody's need takes them, and who begins like them
// finds them.
#include <algorithm>
#include <utility>

#include "simulator.h"

namespace treadle::test {
namespace {

using number_t = unsigned long long;

constexpr int32_t pins_most = 4;

}  // namespace

// Of the beginnings that prompts have, one that is too large for the pool now and then.
void World::act_pin() {
    const auto pins = std::count_if(lives_.begin(), lives_.end(), [](const auto& each) {
        return each.second.is_pin() && !each.second.released;
    });
    if (!pins_ || pins >= pins_most) return;
    Submission asked;
    asked.pin = true;
    asked.prompt = make_prompt(one_in(12) ? 700 : one_in(4) ? longest_prompt_ : longest_prompt_ / 2 + 1);
    choose_order(&asked);
    asked.deadline_us = 0;
    asked.scope.is_private = false;
    asked.scope.salt %= 3;
    asked.number = next_number_;
    const CacheScope scope = scope_of(asked);
    Fit room = fit(asked, scope, static_cast<int32_t>(asked.prompt.size()) + 1);
    // Between these two: which samples of a request have ended, only their events tell.
    const bool may = room.status == Status::OK || room.status == Status::POOL_TOO_SMALL;
    const Status low = may && room.status == Status::OK ? refusal_of_pin(asked, scope, false) : room.status;
    const Status high = may && room.status == Status::OK ? refusal_of_pin(asked, scope, true) : room.status;
    const int64_t live_before = driver_->allocator().live();
    const int64_t called_ns = driver_->clock().now_ns;
    uint64_t id = 0;
    const Status status = driver_->pin(asked, &id);
    note("  pinned: number, tokens", static_cast<int64_t>(next_number_),
         static_cast<int64_t>(asked.prompt.size()));
    next_number_++;
    if (!accepted("pin", status, status == low ? low : high)) {
        coverage_->pins_refused += status == Status::POOL_TOO_SMALL ? 1 : 0;
        if (driver_->allocator().live() > live_before) fail("a refused pin leaks");
        check_pins();
        return;
    }
    coverage_->pins++;
    room.limit = static_cast<int32_t>(asked.prompt.size());
    begin(std::move(asked), id, room, scope, called_ns);
    check_pins();
}

// With all or most of what is pinned, and then something of its own.
void World::begin_like_a_pin(Submission* asked) {
    const Live* pin = pick([](const Live& each) { return each.is_pin(); });
    if (pin == nullptr) return;
    const std::vector<int32_t>& prefix = pin->asked.prompt;
    const auto size = static_cast<int32_t>(prefix.size());
    const std::vector<int32_t> rest = std::exchange(asked->prompt, {});
    const int32_t taken = one_in(2) ? size : between(1, size);
    asked->prompt.assign(prefix.begin(), prefix.begin() + taken);
    const int32_t most = std::max(longest_prompt_ - taken, 0);
    asked->prompt.insert(asked->prompt.end(), rest.begin(),
                         rest.begin() + std::min(most, static_cast<int32_t>(rest.size())));
    asked->scope = pin->asked.scope;
}

// A pin must leave a block to compute with, and to everybody who lives what it may still need.
Status World::refusal_of_pin(const Submission& asked, const CacheScope& scope, bool all_live) {
    const int32_t total = driver_->params().kv_blocks;
    const int32_t pinned = pinned_blocks(&asked, scope, false);
    if (pinned >= total) return Status::POOL_TOO_SMALL;
    for (const auto& [number, live] : lives_) {
        if (live.is_pin() || live.released || live.cancel_asked || live.over()) continue;
        if (live.asked.samples > 1 && !live.is_search() && !all_live) continue;
        for (int32_t i = 0; i < (live.is_search() ? 1 : live.asked.samples); i++) {
            const std::vector<int32_t> tokens = tokens_of(live, i);
            const auto prompt = static_cast<int32_t>(live.asked.prompt.size());
            const int32_t blocks =
                live.is_search()
                    ? prompt / 16 + live.asked.beam_width * ((live.limit + 14) / 16 - prompt / 16 + 1)
                    : (live.limit + 14) / 16;
            int32_t shared = shared_with_pins(tokens, live.scope);
            if (live.scope == scope) {
                const auto most = static_cast<std::ptrdiff_t>(std::min(tokens.size(), asked.prompt.size()));
                const auto common =
                    std::mismatch(tokens.begin(), tokens.begin() + most, asked.prompt.begin()).first;
                shared = std::max(shared, static_cast<int32_t>(common - tokens.begin()) / 16);
            }
            if (pinned + blocks - shared > total) return Status::POOL_TOO_SMALL;
        }
    }
    return Status::OK;
}

void World::act_unpin() {
    Live* live = pick([](const Live& each) { return each.is_pin(); });
    if (live != nullptr) unpin(*live);
    live = pick([](const Live& each) { return !each.is_pin(); });
    if (live != nullptr && driver_->unpin(live->id) != Status::INVALID_ARGUMENT)
        fail("what is no pin can be unpinned");
}

// All three ways do the same.
void World::unpin(Live& live) {
    note("  unpinned: number, state", static_cast<int64_t>(live.number), static_cast<int64_t>(live.state));
    const Status status = one_in(3)   ? driver_->cancel(live.id)
                          : one_in(2) ? driver_->release(live.id)
                                      : driver_->unpin(live.id);
    if (status != Status::OK) fail("a pin can't be let go");
    coverage_->unpinned++;
    live.released = true;
    stale_ids_.push_back(live.id);
    host_acted_ = true;
    check_pins();
}

// One that is whole stays so.
void World::check_pin(const Live& live, const RequestInfo& info) {
    const auto number = static_cast<number_t>(live.number);
    const bool whole = info.state == SequenceState::pinned;
    if (whole != (info.prompt_tokens_done == info.prompt_tokens) && info.state != SequenceState::finished &&
        info.state != SequenceState::waiting)
        fail("pin %llu has %d of %d tokens and state %d", number, info.prompt_tokens_done, info.prompt_tokens,
             static_cast<int>(info.state));
    if (live.is_whole_pin() && !whole) fail("pin %llu was whole, and is not any more", number);
    if (info.state == SequenceState::finished || info.state == SequenceState::generating)
        fail("pin %llu has state %d", number, static_cast<int>(info.state));
    coverage_->pins_whole += whole && !live.is_whole_pin() ? 1 : 0;
    coverage_->pins_set_back += live.runs() && info.state == SequenceState::waiting ? 1 : 0;
}

void World::check_pins() {
    const int32_t told = driver_->stats().gauges.blocks_pinned;
    const int32_t fill = pinned_blocks(nullptr, {}, false);
    if (broken_ == Status::OK && told != fill)
        fail("%d blocks are said to be pinned, pins fill %d", told, fill);
}

// A request that begins to run now finds what a pin has: whole blocks of it at least.
void World::check_found(Live& live, const RequestInfo& info) {
    const bool runs = info.state == SequenceState::prompt || info.state == SequenceState::generating ||
                      info.state == SequenceState::pinned;
    if (live.admitted || !runs || live.over_as != FinishReason::none) return;
    live.admitted = true;
    if (live.asked.samples > 1 && !live.is_search()) return;
    const auto prompt = static_cast<int32_t>(live.asked.prompt.size());
    int32_t most = 0;
    for (const auto& [number, pin] : lives_) {
        if (!pin.is_pin() || pin.released || pin.state_before != SequenceState::pinned ||
            !pin.is_whole_pin() || !(pin.scope == live.scope))
            continue;
        int32_t common = 0;
        const auto size = static_cast<int32_t>(pin.asked.prompt.size());
        while (common < std::min(size, prompt) && pin.asked.prompt[static_cast<size_t>(common)] ==
                                                      live.asked.prompt[static_cast<size_t>(common)])
            common++;
        most = std::max(most, common / 16 * 16);
    }
    const int32_t expected = std::min(most, prompt - live.asked.generated_tail);
    if (info.cached_tokens < expected)
        fail("request %llu found %d tokens, and %d are pinned", static_cast<number_t>(live.number),
             info.cached_tokens, expected);
    coverage_->pins_found += expected > 0 ? 1 : 0;
}

}  // namespace treadle::test
