// What must hold of who goes first: priorities, deadlines, and the place of the most urgent.
#include <algorithm>

#include "simulator.h"

namespace treadle::test {
namespace {

using number_t = unsigned long long;

// Two requests that may find each other's blocks: one may wait for what the other computes.
bool begin_alike(const Submission& a, const Submission& b) {
    const size_t most = std::min({a.prompt.size(), b.prompt.size(), size_t{16}});  // answers may go on alike
    return a.scope == b.scope &&
           std::equal(a.prompt.begin(), a.prompt.begin() + static_cast<std::ptrdiff_t>(most),
                      b.prompt.begin());
}

}  // namespace

// A request ends in the step that begins after its deadline, and not for that reason before it.
void World::check_deadline(const Live& live, const RequestInfo& info) {
    const auto number = static_cast<number_t>(live.number);
    const bool over = info.state == SequenceState::finished;
    if (!over && step_start_ns_ >= live.deadline_high_ns)
        fail("request %llu lives on after its deadline and a step", number);
    if (over && !live.over() && info.finish_reason == FinishReason::deadline &&
        driver_->clock().now_ns < live.deadline_low_ns)
        fail("request %llu ends by its deadline %lld ns before it", number,
             static_cast<long long>(live.deadline_low_ns - driver_->clock().now_ns));
}

// While one request is more urgent than all others it has the next pass, whatever runs: it may take everybody's place and
// blocks. Unless another computes its beginning.
void World::check_admission(const Live* first) {
    const EngineParams& params = driver_->params();
    const bool waits =
        first != nullptr && first->number == first_ && (first->asked.samples == 1 || first->is_search()) &&
        first->state_before == SequenceState::waiting && first->state == SequenceState::waiting &&
        params.memory_policy == MemoryPolicy::preempt && params.max_batch_tokens > 1 &&
        std::none_of(lives_.begin(), lives_.end(), [&](const auto& each) {
            const Live& other = each.second;
            return &other != first && other.state_before != SequenceState::finished &&
                   !other.is_whole_pin() &&
                   (other.asked.priority <= first->asked.priority || begin_alike(other.asked, first->asked));
        });
    waiting_passes_ = waits ? waiting_passes_ + report_.passes : 0;
    coverage_->must_be_admitted += waits ? 1 : 0;
    if (waiting_passes_ > (params.itl_target_us > 0 ? 2 + passes_per_piece : 2))
        fail("request %llu is more urgent than all others and waits for %lld passes",
             static_cast<number_t>(first->number), static_cast<long long>(waiting_passes_));
}

// In a step that planned one pass and ran it whole: nobody of a class got the next token while somebody of a more urgent one,
// who could have gone on, did not.
void World::check_order() {
    if (report_.passes != 1 || step_budget_us_ != 0 || control_.begins != step_begins_ + 1) return;
    const Live* left_out = nullptr;  // the most urgent of them
    const Live* served = nullptr;    // the least urgent of them
    for (const auto& [number, live] : lives_) {
        if (live.released || !live.asked.is_plain() || live.state_before != SequenceState::generating)
            continue;
        if (live.got_token) {
            if (served == nullptr || live.asked.priority > served->asked.priority) served = &live;
        } else if (live.ran_before && live.state == SequenceState::generating && live.runs()) {
            if (left_out == nullptr || live.asked.priority < left_out->asked.priority) left_out = &live;
        }
    }
    if (served == nullptr || left_out == nullptr) return;
    coverage_->bulk_held_back +=
        left_out->asked.priority == Priority::bulk && served->asked.priority < Priority::bulk ? 1 : 0;
    if (left_out->asked.priority < served->asked.priority)
        fail("request %llu got a token, and request %llu, which is more urgent, none",
             static_cast<number_t>(served->number), static_cast<number_t>(left_out->number));
}

}  // namespace treadle::test
