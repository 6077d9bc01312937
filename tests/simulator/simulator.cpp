// The life of a world: parameters from its seed, steps with what the host does in between, and the end, after which nothing may
// be left.
#include "simulator.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace treadle::test {

World::World(uint64_t seed, Coverage* coverage) : seed_(seed), random_(seed), coverage_(coverage) {
    choose_parameters();
}

void World::choose_parameters() {
    random_.next();  // seeds that are neighbours begin alike
    model_options_.seed = random_.next();
    model_options_.end_period = one_in(3) ? 12 : 60;
    model_options_.nan_period = one_in(8) ? 50 : 0;
    if (one_in(6)) model_options_.vocabulary = 300;  // more than a backend reports as candidates

    EngineParams params;
    params.max_sequences = between(1, 9);
    params.max_batch_tokens = one_in(3) ? between(1, 8) : between(1, 64);
    params.max_requests = one_in(4) ? between(2, 8) : between(8, 40);
    params.kv_blocks = one_in(3) ? between(2, 6) : between(2, 40);
    params.context_length = one_in(2) ? between(17, params.kv_blocks * 16) : between(17, 700);

    if (one_in(4)) params.memory_policy = MemoryPolicy::reserve;
    if (one_in(2)) params.watermark_blocks = one_in(2) ? 0 : between(0, params.kv_blocks);
    params.prefix_cache = !one_in(6);
    if (one_in(3)) params.prefix_cache_blocks = between(0, params.kv_blocks);
    // A pass takes 80 us at least; one token of each of nine sequences takes 320 us and more.
    if (one_in(3)) params.itl_target_us = one_in(2) ? between(1, 400) : between(400, 3000);
    if (one_in(3)) host_pause_us_ = between(1, 2000);

    const bool crowded = one_in(6);  // many for few places in a pass, for long
    if (crowded) {
        params.max_sequences = between(5, 9);
        params.max_batch_tokens = between(2, 5);
        params.kv_blocks = 40;
        params.memory_policy = MemoryPolicy::reserve;
    }

    control_.checking = one_in(8) ? FakeControl::Checking::some : FakeControl::Checking::all;
    control_.seed = random_.next();
    control_.jitter = one_in(2) ? 0.5 : 0;
    control_.jump_rate = one_in(4) ? 0.01 : 0;
    control_.jump_ns = 3'600'000'000'000;
    control_.pending_rate = one_in(3) ? 0.3 : 0;
    may_break_ = one_in(6);

    driver_ = std::make_unique<Driver>(model_options_, params, &control_);
    mixed_priorities_ = !crowded && !one_in(3);
    deadlines_ = one_in(2);
    salts_ = one_in(2);
    searches_ = !crowded && one_in(2);
    pins_ = !crowded && one_in(2);
    driver_->clock().read_cost_ns = one_in(3) ? 1000 : 0;
    longest_prompt_ = std::min(driver_->params().context_length, params.kv_blocks * 16) - 1;
    typical_tokens_ = crowded ? 24 : between(2, 24);
    life_steps_ = between(100, 500);
    actions_per_step_ = between(1, 4);
    for (std::vector<int32_t>& family : families_)
        for (int32_t i = 0; i < 720; i++) family.push_back(between(2, model_options_.vocabulary - 1));
    for (size_t i = 0; i < action_count(); i++) weights_.push_back(actions[i].weight * random_.below(4));
    weights_[0] += 20;  // submit
    act_change_budget();
}

void World::run() {
    coverage_->worlds++;
    while (step_ < life_steps_ && broken_ == Status::OK) {
        cancel_producers();
        submit_stream();
        for (int32_t i = between(0, actions_per_step_); i > 0; i--) act();
        step(budget_us_);
        if (step_ >= withhold_polls_until_) poll(one_in(4) ? static_cast<size_t>(between(1, 20)) : SIZE_MAX);
    }
    drain();
    tear_down();
    coverage_->passes += passes_;
    coverage_->tokens += tokens_produced_;
    coverage_->tiles += control_.tiles;
    coverage_->pendings += control_.pendings;
    coverage_->jumps += control_.jumps;
    coverage_->copies += control_.copies;
    coverage_->rows_without_write += control_.rows_without_write;
    coverage_->preemptions += preemptions_;
}

void World::step(int64_t budget_us) {
    step_++;
    coverage_->steps++;
    const int64_t allocations = driver_->allocator().calls();
    const int64_t jumps = control_.jumps;
    wakes_ = driver_->take_wakes();
    step_start_ns_ = driver_->clock().now_ns;
    step_budget_us_ = budget_us;
    step_begins_ = control_.begins;
    const Status status = driver_->step(budget_us, &report_);
    note("step: budget in us, passes", budget_us, report_.passes);
    if (status != Status::OK) {
        broken_ = status;
        coverage_->backend_failures++;
        if (status != Status::INTERNAL || control_.begins == 0) fail("step says %s", status_name(status));
    }
    passes_ += report_.passes;
    tokens_produced_ += report_.tokens_produced;
    tokens_computed_ += report_.tokens_computed;
    stats_before_ = std::exchange(stats_, driver_->all_stats());
    preemptions_ += report_.preemptions;
    deadline_passed_ = nearest_deadline_ns(false) <= driver_->clock().now_ns;
    check_step(budget_us, allocations, jumps);
    host_acted_ = false;
    coverage_->targeted += driver_->params().itl_target_us > 0 ? report_.passes : 0;
    driver_->clock().now_ns += host_pause_us_ * 1000;
}

void World::poll(size_t capacity) {
    polled_.clear();
    driver_->poll(capacity, &polled_);
    for (const PolledEvent& event : polled_) check_event(event);
    if (!polled_.empty()) host_acted_ = true;  // room may have come back
}

// Nothing new comes; everything must end. Each pass brings the first in rank on, or the one whose turn it is in a small batch;
// at worst each has to begin again when it becomes the first.
void World::drain() {
    note("drain");
    draining_ = true;
    withhold_polls_until_ = 0;
    driver_->clock().read_cost_ns = 0;
    for (auto& [number, live] : lives_)
        if (!live.released && live.asked.priority == Priority::paused)
            set_priority(live, static_cast<Priority>(between(0, 2)));
    const int32_t turn = turn_passes();
    for (const auto& [number, live] : lives_)
        drain_passes_left_ += int64_t{live.limit + 1} * turn *
                              std::max(live.asked.samples, 2 * live.asked.beam_width * live.asked.beam_width);
    poll(SIZE_MAX);
    int64_t steps_left = 1'000'000;
    const auto all_told = [this] {
        return std::all_of(lives_.begin(), lives_.end(), [](const auto& each) {
            const Live& live = each.second;
            return live.released || live.told_end || live.is_whole_pin() || (live.is_pin() && live.over());
        });
    };
    do {
        if (broken_ == Status::OK) step(one_in(3) ? 0 : 3000);
        poll(SIZE_MAX);
        if (broken_ != Status::OK) break;
        drain_passes_left_ -= report_.passes;
        if (drain_passes_left_ < 0) fail("the last requests take more passes than their tokens can need");
        if (--steps_left == 0) fail("the last requests never end");
    } while (!all_told() || report_.next_step_us == 0);
    if (!all_told()) fail("after a failure of the backend a request was not told its end");
}

void World::tear_down() {
    for (auto& [number, live] : lives_) {
        if (live.released) continue;
        check_tokens(live, true);
        if (live.is_pin()) {
            unpin(live);
        } else if (driver_->release(live.id) != Status::OK) {
            fail("a kept request can't be released");
        }
        live.released = true;
    }
    if (broken_ == Status::OK) step(0);  // pins go in it
    check_cost_model();
    check_pool_whole();
    check_all_trimmed();
    const MetricsSnapshot stats = driver_->stats();
    coverage_->recomputed += static_cast<int64_t>(stats.counters.recomputed_tokens);
    coverage_->cached += static_cast<int64_t>(stats.counters.prompt_tokens_cached);
    coverage_->evicted += static_cast<int64_t>(stats.gauges.blocks_evicted);
    driver_->destroy();
    if (driver_->allocator().live() != 0)
        fail("the engine leaks: %lld allocations", static_cast<long long>(driver_->allocator().live()));
}

void World::note(const char* what, int64_t a, int64_t b) {
    notes_[noted_++ % notes_.size()] = {step_, what, a, b};
}

std::string World::story() const {
    char line[400];
    const EngineParams& params = driver_->params();
    std::snprintf(
        line, sizeof line,
        "seed %llu, step %lld\n"
        "max_sequences %d, max_batch_tokens %d, max_requests %d, kv_blocks %d, context_length %d\n"
        "policy %s, watermark_blocks %d, prefix_cache %d, prefix_cache_blocks %d, itl_target_us %lld\n",
        static_cast<unsigned long long>(seed_), static_cast<long long>(step_), params.max_sequences,
        params.max_batch_tokens, params.max_requests, params.kv_blocks, params.context_length,
        params.memory_policy == MemoryPolicy::reserve ? "reserve" : "preempt", params.watermark_blocks,
        params.prefix_cache ? 1 : 0, params.prefix_cache_blocks,
        static_cast<long long>(params.itl_target_us));
    std::string text = line;
    const size_t shown = std::min(noted_, notes_.size());
    for (size_t i = noted_ - shown; i < noted_; i++) {
        const Note& each = notes_[i % notes_.size()];
        std::snprintf(line, sizeof line, "  %6lld  %s %lld %lld\n", static_cast<long long>(each.step),
                      each.what, static_cast<long long>(each.a), static_cast<long long>(each.b));
        text += line;
    }
    return text;
}

std::vector<Coverage::Line> Coverage::lines() const {
    return {{"worlds", worlds, true},
            {"steps", steps, true},
            {"passes", passes, true},
            {"passes under a latency target", targeted, true},
            {"tiles", tiles, true},
            {"tokens", tokens, true},
            {"events", events, true},
            {"requests submitted", submitted, true},
            {"refused as too long", refused_long, true},
            {"refused as the engine is full", refused_full, true},
            {"refused for lack of memory", refused_memory, true},
            {"ended by an end token", ended, true},
            {"ended by a stop string", stopped, true},
            {"ended by length", filled, true},
            {"ended by a cancel", cancelled, true},
            {"ended by a NaN", not_numbers, true},
            {"ended by their deadlines", overdue, true},
            {"of several samples", sampled, true},
            {"forks", forks, true},
            {"forks of requests that had ended", forks_of_ended, true},
            {"forks of forks", forks_of_forks, true},
            {"forks with parameters of their own", forks_with_params, true},
            {"forks at a position of the prompt", forks_in_prompt, true},
            {"forks refused as too long", forks_refused, true},
            {"forks refused for lack of memory", forks_without_memory, true},
            {"priorities set", priorities_set, true},
            {"paused while they ran", paused_running, true},
            {"resumed", resumed, true},
            {"begun as bulk", bulk_begun, true},
            {"bulk held back by others", bulk_held_back, true},
            {"with a cache of their own", lonely, true},
            {"producers cancelled on the way", producers_cancelled, true},
            {"waited as the first of all", must_be_admitted, true},
            {"cancelled while they waited", cancelled_waiting, true},
            {"cancelled in the prompt", cancelled_prompt, true},
            {"cancelled while they generated", cancelled_generating, true},
            {"cancelled under a pass", cancelled_in_pass, true},
            {"released while live", released_live, true},
            {"kept", kept, true},
            {"steps that cut a pass", cut_steps, true},
            {"steps with a full event room", room_full, true},
            {"pending answers", pendings, true},
            {"clock jumps", jumps, true},
            {"failures of the backend", backend_failures, true},
            {"block copies", copies, true},
            {"rows that write nothing", rows_without_write, true},
            {"preemptions", preemptions, true},
            {"tokens computed again", recomputed, true},
            {"prompt tokens found in the cache", cached, true},
            {"evicted blocks", evicted, true},
            {"trimmed blocks", trimmed, true},
            {"trims in the middle of a pass", trims_in_pass, true},
            {"beam searches", beams, true},
            {"beam searches refused", beams_refused, true},
            {"hypotheses told", beams_told, true},
            {"searches ended by a NaN", beams_failed, true},
            {"searches preempted or paused", beams_set_back, true},
            {"steps in which searches were counted", beams_counted, true},
            {"pins", pins, true},
            {"pins refused", pins_refused, true},
            {"pins that became whole", pins_whole, true},
            {"pins preempted or paused", pins_set_back, true},
            {"unpinned", unpinned, true},
            {"found what was pinned", pins_found, true},
            {"forks of pins", forks_of_pins, true},
            {"saved", saved, true},
            {"restored", restored, true},
            {"restored when they had ended", restored_over, true},
            {"restored before all was delivered", restored_text, true},
            {"restored in another engine", restored_elsewhere, true},
            {"sessions refused", sessions_refused, true},
            {"passes whose time was checked", timed, true},
            {"of them with pieces of prompts", timed_cut, true},
            {"most followers before one request", overtaken_most, false}};
}

}  // namespace treadle::test
