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
    check_counters();
    check_pace(budget_us, jumps_before);
    check_requests();
    check_prompts();
    check_sleep();
}

void World::check_counters() {
    const EngineStats stats = driver_->stats();
    const EngineParams& params = driver_->params();
    const int32_t available = stats.kv_blocks_free - stats.kv_blocks_reserved;
    if (stats.kv_blocks_free < 0 || stats.kv_blocks_free > params.kv_blocks || stats.kv_blocks_reserved < 0 ||
        available < 0 || report_.free_blocks != available)
        fail("%d blocks free, %d reserved, %d reported of %d", stats.kv_blocks_free, stats.kv_blocks_reserved,
             report_.free_blocks, params.kv_blocks);
    if (stats.requests_running > params.max_sequences || stats.requests_running != report_.running ||
        stats.requests_waiting != report_.waiting || report_.waiting_poll > report_.running)
        fail("%d requests run of at most %d", stats.requests_running, params.max_sequences);
    if (stats.generated_tokens != static_cast<uint64_t>(tokens_produced_) ||
        stats.passes != static_cast<uint64_t>(passes_) || stats.steps != static_cast<uint64_t>(step_) ||
        stats.requests_submitted != static_cast<uint64_t>(submitted_))
        fail("the counters differ from the sums of the reports");
    if (stats.requests_finished > stats.requests_submitted ||
        stats.requests_cancelled + stats.requests_failed > stats.requests_finished)
        fail("more requests ended than began");
    if (report_.tokens_computed > int64_t{report_.passes} * params.max_batch_tokens ||
        report_.tokens_computed < report_.passes || report_.tokens_produced > report_.tokens_computed)
        fail("%d passes computed %d tokens and produced %d", report_.passes, report_.tokens_computed,
             report_.tokens_produced);
    if (stats.requests_running == 0 && stats.requests_waiting == 0) check_pool_whole();
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
    if (slept_ && wakes_ == 0 && report_.passes > 0)
        fail("the engine had work for a sleeping host and didn't wake it");
    const bool moved = activity() != last_activity_;
    last_activity_ = activity();
    idle_steps_ = moved || report_.next_step_us != 0 ? 0 : idle_steps_ + 1;
    if (idle_steps_ > idle_steps_max)
        fail("%lld steps with work and no progress", static_cast<long long>(idle_steps_));
    if (budget_us == 0 && work_promised_ && !host_acted_ && report_.passes == 0)
        fail("the engine promised work and computed no pass");
    work_promised_ = report_.next_step_us == 0;
    slept_ = report_.next_step_us == -1;
    coverage_->cut_steps += budget_us > 0 && control_.begins > control_.passes_done ? 1 : 0;
    if (report_.next_step_us != 0 && report_.next_step_us != -1)
        fail("next_step_us is %lld", static_cast<long long>(report_.next_step_us));
}

// The engine sleeps only where no request could go on.
void World::check_sleep() {
    if (report_.next_step_us != -1) return;
    const Live* waits = nullptr;
    for (const auto& [number, live] : lives_) {
        if (live.released || live.state == RequestState::finished) continue;
        if (live.waited_for_poll)
            return;  // it goes on when the host polls, and may hold what others wait for
        waits = &live;
    }
    if (waits != nullptr)
        fail("the engine sleeps, but request %llu could go on", static_cast<number_t>(waits->asked.number));
}

void World::check_requests() {
    prompt_waits_ = prompt_moved_ = false;
    for (auto& [number, live] : lives_) {
        if (live.released) continue;
        RequestInfo info;
        if (driver_->info(live.id, &info) != Status::OK)
            fail("request %llu is gone before its end was told", static_cast<number_t>(number));
        check_request(live, info);
        const bool starts =
            !live.started && info.state != RequestState::waiting && info.prompt_tokens_done > 0;
        if (starts) {
            live.started = true;
            for (auto& [earlier, other] : lives_) {
                if (earlier >= number) break;
                if (!other.released && !other.started && other.state == RequestState::waiting)
                    other.overtaken++;
            }
        }
    }
    for (auto it = lives_.begin(); it != lives_.end();) {
        // A released one's place is free when the pass that named it has ended.
        const bool gone = it->second.released && (report_.passes > 0 || report_.next_step_us == -1);
        it = gone ? lives_.erase(it) : std::next(it);
    }
}

void World::check_request(Live& live, const RequestInfo& info) {
    const auto number = static_cast<number_t>(live.asked.number);
    const auto prompt = static_cast<int32_t>(live.asked.prompt.size());
    if (info.prompt_tokens != prompt || info.prompt_tokens_done < 0 || info.prompt_tokens_done > prompt)
        fail("request %llu has %d of %d prompt tokens done", number, info.prompt_tokens_done,
             info.prompt_tokens);
    if (info.generated_tokens < live.generated || prompt + info.generated_tokens > live.limit)
        fail("request %llu has %d generated tokens, had %d", number, info.generated_tokens, live.generated);
    const bool over = info.state == RequestState::finished;
    if (live.cancel_asked && !over) fail("request %llu lives on after its cancel and a step", number);
    if (over != (info.finish_reason != FinishReason::none))
        fail("request %llu has state and reason apart", number);
    if ((info.queue_place >= 0) != (info.state == RequestState::waiting))
        fail("request %llu is in place %d of the queue", number, info.queue_place);
    coverage_->room_full += info.waits_for_poll ? 1 : 0;
    check_waiting(live, info);
    prompt_waits_ |= live.state == RequestState::prompt && info.state == RequestState::prompt &&
                     !live.waited_for_poll && !info.waits_for_poll;
    prompt_moved_ |= info.prompt_tokens_done != live.prompt_done;
    live.prompt_done = info.prompt_tokens_done;
    live.generated = info.generated_tokens;
    live.state = info.state;
    live.waited_for_poll = info.waits_for_poll;
}

// A request that generates gets its turn, and one that waits is passed by a bounded number of followers.
void World::check_waiting(Live& live, const RequestInfo& info) {
    const auto number = static_cast<number_t>(live.asked.number);
    const EngineParams& params = driver_->params();
    const bool waits = live.state == RequestState::generating && info.state == RequestState::generating &&
                       !live.waited_for_poll && !info.waits_for_poll &&
                       info.generated_tokens == live.generated;
    live.passes_without_token = waits ? live.passes_without_token + report_.passes : 0;
    const int64_t bound = params.max_batch_tokens > params.max_sequences ? 2 : 3 * params.max_sequences + 4;
    if (live.passes_without_token > bound)
        fail("request %llu generates and got no token in %lld passes", number,
             static_cast<long long>(live.passes_without_token));
    coverage_->overtaken_most = std::max(coverage_->overtaken_most, live.overtaken);
    if (live.overtaken > followers_max && info.state == RequestState::waiting)
        fail("request %llu waits and %lld later ones began", number, static_cast<long long>(live.overtaken));
}

// However many generate, prompts under way get something of the passes, and so does the head of the queue if it fits.
void World::check_prompts() {
    const EngineParams& params = driver_->params();
    const auto head = std::find_if(lives_.begin(), lives_.end(), [](const auto& each) {
        return !each.second.released && each.second.state == RequestState::waiting;
    });
    const bool fits = head != lives_.end() && report_.running < params.max_sequences &&
                      report_.free_blocks >= head->second.limit / limits::kv_block_tokens + 2;
    const uint64_t fitting = fits ? head->first : 0;
    prompt_waits_ |= fits && fitting == fitting_head_;
    fitting_head_ = fitting;
    const bool starve = prompt_waits_ && !prompt_moved_ && params.max_batch_tokens > 1;
    passes_without_prompt_ = starve ? passes_without_prompt_ + report_.passes : 0;
    if (passes_without_prompt_ > 2)
        fail("%lld passes computed no token of a prompt", static_cast<long long>(passes_without_prompt_));
}

// After a failure of the backend every request is over.
void World::check_broken() {
    for (auto& [number, live] : lives_) {
        RequestInfo info;
        if (live.released) continue;
        if (driver_->info(live.id, &info) != Status::OK || info.state != RequestState::finished)
            fail("request %llu lives on after the backend failed", static_cast<number_t>(number));
    }
    check_pool_whole();
}

void World::check_pool_whole() {
    const EngineStats stats = driver_->stats();
    if (stats.kv_blocks_free != driver_->params().kv_blocks || stats.kv_blocks_reserved != 0)
        fail("nothing runs, and %d of %d blocks are free, %d reserved", stats.kv_blocks_free,
             driver_->params().kv_blocks, stats.kv_blocks_reserved);
}

void World::check_event(const PolledEvent& event) {
    coverage_->events++;
    const auto number = static_cast<number_t>(event.number);
    const auto found = lives_.find(event.number);
    if (found == lives_.end() || found->second.released || found->second.id != event.request)
        fail("an event of request %llu, which is gone", number);
    Live& live = found->second;
    if (live.told_end) fail("an event of request %llu after its end", number);
    const auto length = static_cast<int32_t>(live.solo->tokens().size());
    switch (event.kind) {
        case EventKind::progress:
            if (live.told_tokens > 0 || event.position <= live.told_progress ||
                event.position > static_cast<int32_t>(live.asked.prompt.size()))
                fail("request %llu: progress %d after %d", number, event.position, live.told_progress);
            live.told_progress = event.position;
            break;
        case EventKind::token: check_token(live, event); break;
        case EventKind::text:
            if (live.end_text.has_value() || event.text.empty() || event.position != length)
                fail("request %llu: text \"%s\" out of place", number, event.text.c_str());
            live.end_text = event.text;
            break;
        case EventKind::finished: check_finish(live, event); break;
    }
}

void World::check_token(Live& live, const PolledEvent& event) {
    const auto number = static_cast<number_t>(live.asked.number);
    SoloSequence& solo = *live.solo;
    if (live.end_text.has_value()) fail("request %llu: a token after the last text", number);
    if (solo.over()) fail("request %llu: token %d after its end", number, event.position);
    if (event.position != static_cast<int32_t>(solo.tokens().size()))
        fail("request %llu: token at %d, not %zu", number, event.position, solo.tokens().size());
    solo.advance();
    if (solo.reason() == FinishReason::error) fail("request %llu: token %d of a NaN", number, event.position);
    if (event.token != solo.newest().token)
        fail("request %llu: token %d is %d, alone it is %d", number, event.position, event.token,
             solo.newest().token);
    if (event.text != solo.text())
        fail("request %llu: text \"%s\", alone \"%s\"", number, event.text.c_str(), solo.text().c_str());
    live.told_tokens++;
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

void World::check_finish(Live& live, const PolledEvent& event) {
    const auto number = static_cast<number_t>(live.asked.number);
    SoloSequence& solo = *live.solo;
    const FinishReason reason = event.reason;
    if (event.position != static_cast<int32_t>(solo.tokens().size()))
        fail("request %llu ends at %d, not %zu", number, event.position, solo.tokens().size());
    if (solo.held_text() != live.end_text.value_or(""))
        fail("request %llu: last text \"%s\"", number, live.end_text.value_or("").c_str());
    const bool nan = event.status == Status::NOT_A_NUMBER;
    if (solo.over()) {
        if (reason != solo.reason())
            fail("request %llu ends with reason %d, alone with %d", number, static_cast<int>(reason),
                 static_cast<int>(solo.reason()));
    } else if (reason == FinishReason::error && nan) {
        solo.advance();
        if (solo.reason() != FinishReason::error)
            fail("request %llu ends with a NaN, alone it has none", number);
    } else if (reason == FinishReason::error ? broken_ == Status::OK || event.status != broken_
                                             : reason != FinishReason::cancelled || !live.cancel_asked) {
        fail("request %llu ends with reason %d, status %s", number, static_cast<int>(reason),
             status_name(event.status));
    }
    if ((reason == FinishReason::error) != (event.status != Status::OK))
        fail("request %llu ends with reason %d, status %s", number, static_cast<int>(reason),
             status_name(event.status));
    coverage_->ended += reason == FinishReason::end ? 1 : 0;
    coverage_->stopped += reason == FinishReason::stop_string ? 1 : 0;
    coverage_->filled += reason == FinishReason::length ? 1 : 0;
    coverage_->cancelled += reason == FinishReason::cancelled ? 1 : 0;
    coverage_->not_numbers += nan ? 1 : 0;
    live.told_end = true;
    if (live.asked.keep) return;
    RequestInfo info;
    if (driver_->info(live.id, &info) != Status::STALE_ID)
        fail("request %llu is there after its end was told", number);
    live.released = true;
    stale_ids_.push_back(live.id);
}

}  // namespace treadle::test
