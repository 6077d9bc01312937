// What must hold after every step and for every event.
#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "simulator.h"

namespace treadle::test {
namespace {

using number_t = unsigned long long;

// Followers that may be admitted before a request that waits for blocks; the scheduler allows 32, and what is admitted in the
// same plan comes on top.
constexpr int64_t followers_max = 32 + 9;

// Steps in which the engine says that there is work and nothing moves: preparing a pass and choosing its tokens may be cut, too.
constexpr int64_t idle_steps_max = 64;

}  // namespace

void World::fail(const char* format, ...) const {
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    throw SimulationFailure(text);
}

int64_t World::activity() const {
    return control_.begins + control_.tiles + control_.pendings + passes_ + tokens_produced_;
}

void World::check_step(int64_t budget_us, int64_t allocations_before, int64_t jumps_before) {
    if (control_.violations > 0)
        fail("%lld violations of the cache, the first: %s", static_cast<long long>(control_.violations),
             control_.first_violation.c_str());
    if (driver_->allocator().calls() != allocations_before)
        fail("the step allocated %lld times",
             static_cast<long long>(driver_->allocator().calls() - allocations_before));
    if (broken_ != Status::OK) {
        check_broken();
        return;
    }
    told_at_once_ = 0;
    check_counters();
    check_pace(budget_us, jumps_before);
    check_requests();
    if (report_.running == 0) check_pool_whole();
    check_produced();
    check_pins();
    check_units();
    check_first();
    check_order();
    check_time();
    check_sleep();
}

void World::check_counters() {
    const MetricsSnapshot& stats = stats_.figures;
    const EngineParams& params = driver_->params();
    if (stats.gauges.blocks_free < 0 || stats.gauges.blocks_held < 0 || stats.gauges.blocks_cached < 0 ||
        stats.gauges.blocks_trimmed < 0 ||
        stats.gauges.blocks_free + stats.gauges.blocks_held + stats.gauges.blocks_cached +
                stats.gauges.blocks_trimmed !=
            params.kv_blocks ||
        report_.free_blocks != stats.gauges.blocks_free + stats.gauges.blocks_cached)
        fail("%d blocks free, %d held, %d cached, %d trimmed, %d reported of %d", stats.gauges.blocks_free,
             stats.gauges.blocks_held, stats.gauges.blocks_cached, stats.gauges.blocks_trimmed,
             report_.free_blocks, params.kv_blocks);
    if (stats.gauges.blocks_cached > (params.prefix_cache ? params.prefix_cache_blocks : 0))
        fail("%d blocks cached of at most %d", stats.gauges.blocks_cached, params.prefix_cache_blocks);
    if (!driver_->consistent()) fail("the blocks, their references and the running sequences disagree");
    if (stats.gauges.requests_running > params.max_sequences ||
        stats.gauges.requests_running != report_.running ||
        stats.gauges.requests_waiting != report_.waiting || stats.gauges.requests_paused != report_.paused ||
        report_.waiting_poll > report_.running)
        fail("%d sequences run of at most %d", stats.gauges.requests_running, params.max_sequences);
    if (stats.counters.generated_tokens != static_cast<uint64_t>(tokens_produced_) ||
        stats.counters.passes != static_cast<uint64_t>(passes_) ||
        stats.counters.steps != static_cast<uint64_t>(step_) ||
        stats.counters.preemptions != static_cast<uint64_t>(preemptions_) ||
        stats.counters.requests_submitted != static_cast<uint64_t>(submitted_))
        fail("the counters differ from the sums of the reports");
    if (stats.counters.requests_finished() > stats.counters.requests_submitted ||
        stats.counters.requests_cancelled() + stats.counters.requests_failed() >
            stats.counters.requests_finished())
        fail("more requests ended than began");
    if (params.memory_policy == MemoryPolicy::reserve && preemptions_ > 0)
        fail("%lld preemptions where all memory is reserved", static_cast<long long>(preemptions_));
    if (preemptions_ == 0 && !was_paused_ && stats.counters.recomputed_tokens > 0)
        fail("%llu tokens computed again, and nobody was preempted",
             static_cast<number_t>(stats.counters.recomputed_tokens));
    if (stats.counters.recomputed_tokens + stats.counters.prompt_tokens_computed >
        2 * static_cast<uint64_t>(tokens_computed_))
        fail("more tokens of prompts than were computed");
}

// Each token that is told was computed, and those of a search at its end before.
void World::check_produced() {
    if (report_.tokens_computed > int64_t{report_.passes} * driver_->params().max_batch_tokens ||
        report_.tokens_computed < report_.passes ||
        report_.tokens_produced - told_at_once_ > report_.tokens_computed)
        fail("%d passes computed %d tokens and produced %d", report_.passes, report_.tokens_computed,
             report_.tokens_produced);
}

// A budget is kept up to one tile, and a step that promised work does some.
void World::check_pace(int64_t budget_us, int64_t jumps_before) {
    const int64_t slack_ns = control_.worst_tile_ns + 64 * driver_->clock().read_cost_ns + 2000;
    if (budget_us > 0 && control_.jumps == jumps_before &&
        report_.time_us * 1000 > budget_us * 1000 + slack_ns)
        fail("a budget of %lld us took %lld us", static_cast<long long>(budget_us),
             static_cast<long long>(report_.time_us));
    if (budget_us == 0 && report_.passes > 1) fail("a step without a budget ran %d passes", report_.passes);
    if (wakes_ > 1) fail("the engine woke the host %d times between two steps", wakes_);
    if (slept_ && wakes_ == 0 && report_.passes > 0 && !deadline_passed_)
        fail("the engine had work for a sleeping host and didn't wake it");
    const bool moved = activity() != last_activity_;
    last_activity_ = activity();
    idle_steps_ = moved || report_.next_step_us != 0 ? 0 : idle_steps_ + 1;
    if (idle_steps_ > idle_steps_max)
        fail("%lld steps with work and no progress", static_cast<long long>(idle_steps_));
    // One plan in vain is allowed: who was paused under a pass, or has no room for events, shows only then.
    const bool vain = budget_us == 0 && work_promised_ && !host_acted_ && report_.passes == 0;
    vain_steps_ = vain ? vain_steps_ + 1 : 0;
    if (vain_steps_ > 1 && !deadline_passed_) fail("the engine promised work twice and computed no pass");
    work_promised_ = report_.next_step_us == 0;
    slept_ = report_.next_step_us != 0;
    coverage_->cut_steps += budget_us > 0 && control_.begins > control_.passes_done ? 1 : 0;
}

int64_t World::nearest_deadline_ns(bool high) const {
    int64_t nearest = INT64_MAX;
    for (const auto& [number, live] : lives_)
        if (!live.released && !live.over())
            nearest = std::min(nearest, high ? live.deadline_high_ns : live.deadline_low_ns);
    return nearest;
}

// A host without work may sleep until the nearest deadline, and no longer.
void World::check_next_step() {
    const int64_t told_us = report_.next_step_us;
    if (told_us == 0) return;
    const int64_t low_ns = nearest_deadline_ns(false);
    const int64_t high_ns = nearest_deadline_ns(true);
    const int64_t now_ns = driver_->clock().now_ns;
    const bool right = low_ns == INT64_MAX
                           ? told_us == -1
                           : told_us >= 1 && told_us * 1000 >= low_ns - now_ns &&
                                 (told_us - 1) * 1000 <= std::max<int64_t>(high_ns - step_start_ns_, 0);
    if (!right)
        fail("next_step_us is %lld, the nearest deadline is in %lld ns", static_cast<long long>(told_us),
             static_cast<long long>(low_ns - now_ns));
}

// The engine sleeps only where no request could go on.
void World::check_sleep() {
    check_next_step();
    if (report_.next_step_us == 0) return;
    const Live* waits = nullptr;
    for (const auto& [number, live] : lives_) {
        if (live.released || live.over() || live.paused || live.is_whole_pin()) continue;
        if (live.waited_for_poll)
            return;  // it goes on when the host polls, and may hold what others wait for
        waits = &live;
    }
    if (waits != nullptr && report_.waiting_poll == 0)
        fail("the engine sleeps, but request %llu could go on", static_cast<number_t>(waits->number));
}

void World::check_requests() {
    for (auto& [number, live] : lives_) {
        if (live.released) continue;
        RequestInfo info;
        if (driver_->info(live.id, &info) != Status::OK)
            fail("request %llu is gone before its end was told", static_cast<number_t>(number));
        check_request(live, info);
        if (live.started || info.prompt_tokens_done == 0) continue;
        live.started = true;
        coverage_->bulk_begun += live.asked.priority == Priority::bulk ? 1 : 0;
        for (auto& [earlier, other] : lives_) {
            if (earlier >= number) break;
            if (!other.released && !other.started && other.state == SequenceState::waiting && !other.paused &&
                other.asked.priority <= live.asked.priority)
                other.overtaken++;
        }
    }
    for (auto it = lives_.begin(); it != lives_.end();) {
        // A released one's place is free when the pass that named it has ended.
        const bool gone = it->second.released && (report_.passes > 0 || report_.next_step_us != 0);
        it = gone ? lives_.erase(it) : std::next(it);
    }
}

void World::check_request(Live& live, const RequestInfo& info) {
    const auto number = static_cast<number_t>(live.number);
    const auto prompt = static_cast<int32_t>(live.asked.prompt.size()) - live.asked.generated_tail;
    if (info.prompt_tokens != prompt || info.sequences != live.asked.samples)
        fail("request %llu has %d prompt tokens and %d sequences", number, info.prompt_tokens,
             info.sequences);
    if (info.prompt_tokens_done < live.prompt_done || info.prompt_tokens_done > prompt ||
        info.cached_tokens > info.prompt_tokens)
        fail("request %llu has %d of %d prompt tokens done, had %d", number, info.prompt_tokens_done, prompt,
             live.prompt_done);
    if (info.generated_tokens < live.generated ||
        info.generated_tokens > (live.limit - prompt) * live.asked.samples)
        fail("request %llu has %d generated tokens, had %d", number, info.generated_tokens, live.generated);
    const bool over = info.state == SequenceState::finished;
    if (live.is_pin()) check_pin(live, info);
    check_found(live, info);
    if (live.cancel_asked && !over) fail("request %llu lives on after its cancel and a step", number);
    if (over != (info.finish_reason != FinishReason::none))
        fail("request %llu has state and reason apart", number);
    const bool whole_pin = info.state == SequenceState::pinned;
    if (info.paused != (!over && !whole_pin && live.asked.priority == Priority::paused))
        fail("request %llu is paused, or not", number);
    if ((info.queue_place >= 0) != (info.state == SequenceState::waiting && !info.paused))
        fail("request %llu is in place %d of the queue", number, info.queue_place);
    if (live.lonely_scope && live.asked.samples == 1 && info.cached_tokens > 0)
        fail("request %llu found %d tokens of others", number, info.cached_tokens);
    coverage_->room_full += info.waits_for_poll ? 1 : 0;
    check_deadline(live, info);
    check_waiting(live, info);
    check_prompt(live, info);
    if (live.is_search() && over && !live.over()) told_at_once_ += info.generated_tokens - live.generated;
    coverage_->beams_set_back +=
        live.is_search() && live.runs() && info.state == SequenceState::waiting ? 1 : 0;
    live.finish_reason = info.finish_reason;
    live.state_before = live.state;
    live.ran_before = live.runs();
    live.got_token = info.generated_tokens > live.generated;
    live.prompt_done = info.prompt_tokens_done;
    live.generated = info.generated_tokens;
    live.state = info.state;
    live.paused = info.paused;
    live.waited_for_poll = info.waits_for_poll;
}

// A request that generates gets its turn where nobody can take its blocks, and one that waits is passed by a bounded number of
// followers that are no more urgent.
void World::check_waiting(Live& live, const RequestInfo& info) {
    const auto number = static_cast<number_t>(live.number);
    const EngineParams& params = driver_->params();
    const bool outranked = std::any_of(lives_.begin(), lives_.end(), [&](const auto& each) {
        return !each.second.over() && each.second.asked.priority < live.asked.priority;
    });
    const bool waits = params.memory_policy == MemoryPolicy::reserve && live.asked.is_plain() &&
                       live.asked.priority <= Priority::normal && !outranked &&
                       live.state == SequenceState::generating && info.state == SequenceState::generating &&
                       !live.waited_for_poll && !info.waits_for_poll &&
                       info.generated_tokens == live.generated;
    live.passes_without_token = waits ? live.passes_without_token + report_.passes : 0;
    const int64_t bound = params.max_batch_tokens > params.max_sequences ? 2 : params.max_sequences + 2;
    if (live.passes_without_token > bound)
        fail("request %llu generates and got no token in %lld passes", number,
             static_cast<long long>(live.passes_without_token));
    coverage_->overtaken_most = std::max(coverage_->overtaken_most, live.overtaken);
    if (live.overtaken > followers_max + params.max_sequences && info.state == SequenceState::waiting &&
        live.asked.priority <= Priority::normal)
        fail("request %llu waits and %lld later ones began", number, static_cast<long long>(live.overtaken));
}

// Decodes leave a prompt something of every pass: of the prompts that are under way the first gets on. Asked only where all are
// alike and nothing is computed twice.
void World::check_prompt(Live& live, const RequestInfo& info) {
    const EngineParams& params = driver_->params();
    const bool alike =
        !mixed_priorities_ && params.memory_policy == MemoryPolicy::reserve && params.max_batch_tokens > 1;
    const bool stays = live.state == SequenceState::prompt && info.state == SequenceState::prompt &&
                       live.prompt_done == info.prompt_tokens_done && live.asked.is_plain() &&
                       live.asked.generated_tail == 0;  // what it computes of that counts as no prompt
    const bool first =
        alike && stays && std::none_of(lives_.begin(), lives_.end(), [&](const auto& each) {
            const Live& other = each.second;
            return &other != &live &&
                   (!other.asked.is_plain() || other.released ||
                    (other.number < live.number &&
                     (other.state_before == SequenceState::prompt || other.state == SequenceState::prompt)));
        });
    live.passes_without_prompt = first ? live.passes_without_prompt + report_.passes : 0;
    if (live.passes_without_prompt > turn_passes() + 2)
        fail("request %llu computes its prompt as the first and got nothing in %lld passes",
             static_cast<number_t>(live.number), static_cast<long long>(live.passes_without_prompt));
}

// The first in rank of those that could go on.
const World::Live* World::first_in_rank() const {
    const Live* first = nullptr;
    for (const auto& [number, live] : lives_)
        if (live.may_run() && !live.waited_for_poll &&
            (first == nullptr || live.asked.priority < first->asked.priority))
            first = &live;
    return first;
}

// Passes in which everybody who runs gets a turn, and whoever computes a prompt a token.
int32_t World::turn_passes() const {
    const EngineParams& params = driver_->params();
    const int32_t turn = params.max_batch_tokens > params.max_sequences ? 1 : 3 * params.max_sequences + 4;
    return params.itl_target_us > 0 ? turn * passes_per_piece : turn;
}

// However small the cache: while one request stays the first in rank and runs, it gets on.
void World::check_first() {
    const Live* first = first_in_rank();
    const uint64_t number = first == nullptr ? 0 : first->number;
    check_admission(first);
    const int64_t progress = first == nullptr ? 0 : int64_t{first->generated} + first->prompt_done;
    const bool waits = first != nullptr && first->state != SequenceState::waiting && number == first_ &&
                       progress == first_progress_;
    passes_without_progress_ = waits ? passes_without_progress_ + report_.passes : 0;
    first_ = number;
    first_progress_ = progress;
    // What it lost in the meantime is computed again, at a token of a pass at least; with batches of one token when no other
    // generates.
    const EngineParams& params = driver_->params();
    const int64_t tokens = first == nullptr ? 0 : int64_t{first->limit} * first->asked.beam_width;
    const int64_t turn = params.max_batch_tokens > 1
                             ? turn_passes()
                             : int64_t{params.max_sequences} * params.context_length * turn_passes();
    if (passes_without_progress_ > (tokens + longest_prompt_) * turn + 4)
        fail("request %llu is the first in rank and got nothing in %lld passes",
             static_cast<number_t>(number), static_cast<long long>(passes_without_progress_));
}

// After a failure of the backend every request is over.
void World::check_broken() {
    for (auto& [number, live] : lives_) {
        RequestInfo info;
        if (live.released) continue;
        if (driver_->info(live.id, &info) != Status::OK || info.state != SequenceState::finished)
            fail("request %llu lives on after the backend failed", static_cast<number_t>(number));
        live.state = info.state;
        live.finish_reason = info.finish_reason;
    }
    check_pool_whole();
    check_all_trimmed();
}

// With no request alive, nothing of the pool needs to stay.
void World::check_all_trimmed() {
    driver_->trim();
    const int32_t left = driver_->params().kv_blocks - driver_->stats().gauges.blocks_trimmed;
    if (left != 0) fail("nothing lives, and a trim leaves %d blocks", left);
}

// Where nothing runs, blocks are held by pins only, and those of them that are alike by all together.
void World::check_pool_whole() {
    const MetricsSnapshot stats = driver_->stats();
    const int32_t pinned = pinned_blocks(nullptr, {}, true);
    int32_t largest = 0;
    for (const auto& [number, live] : lives_)
        if (live.is_whole_pin() && !live.released)
            largest = std::max(largest, blocks_of(static_cast<int32_t>(live.asked.prompt.size())));
    if (stats.gauges.blocks_held < largest || stats.gauges.blocks_held > pinned ||
        stats.gauges.blocks_free + stats.gauges.blocks_cached + stats.gauges.blocks_trimmed +
                stats.gauges.blocks_held !=
            driver_->params().kv_blocks)
        fail("nothing runs, and %d of %d blocks are free, %d cached, %d trimmed, %d held, %d pinned",
             stats.gauges.blocks_free, driver_->params().kv_blocks, stats.gauges.blocks_cached,
             stats.gauges.blocks_trimmed, stats.gauges.blocks_held, pinned);
}

}  // namespace treadle::test
