// The engine's figures: what happened since it was made (counters, histograms) and what is now (gauges). The engine owns one
// Metrics and calls it under its lock, at the event that a function is named after; stats and the metrics text read it there.
//
// Invariant: fixed size (about 100 KB, nearly all of it histograms), nothing allocates, each call is a few additions. Times are
// in microseconds by the engine's clock; one that jumped back counts as 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/histogram.h"
#include "request/request.h"

namespace treadle {

constexpr size_t finish_reasons_max = 8;

// The name of a reason in metrics and traces; "other" for one that has none.
std::string_view finish_reason_name(FinishReason reason);

struct Counters {
    uint64_t requests_submitted = 0;
    std::array<uint64_t, finish_reasons_max> requests_finished_by{};  // by FinishReason
    uint64_t prompt_tokens_computed = 0;  // for the first time; recomputed ones are apart
    uint64_t prompt_tokens_cached = 0;    // found in the prefix cache
    uint64_t prefix_tokens_queried = 0;   // asked of the prefix cache
    uint64_t generated_tokens = 0;
    uint64_t preemptions = 0;
    uint64_t preempted_tokens = 0;  // positions that victims held
    uint64_t recomputed_tokens =
        0;  // positions computed again; what was found again in the cache isn't among them
    uint64_t copied_blocks = 0;  // copy-on-write, and partial hits of a prefix
    uint64_t steps = 0;
    uint64_t passes = 0;
    int64_t worst_tile_us = 0;

    uint64_t finished_by(FinishReason reason) const {
        const auto i = static_cast<size_t>(reason);
        return i < finish_reasons_max ? requests_finished_by[i] : 0;
    }
    uint64_t requests_finished() const {  // for whatever reason
        uint64_t sum = 0;
        for (const uint64_t count : requests_finished_by) sum += count;
        return sum;
    }
    uint64_t requests_cancelled() const { return finished_by(FinishReason::cancelled); }
    uint64_t requests_failed() const { return finished_by(FinishReason::error); }
};

// Sizes as they are now, counted by their owners.
struct Gauges {
    int32_t requests_running = 0;
    int32_t requests_waiting = 0;
    int32_t requests_waiting_poll = 0;
    int32_t requests_paused = 0;
    int32_t blocks_total = 0;
    int32_t blocks_free = 0;
    int32_t blocks_held = 0;
    int32_t blocks_cached = 0;
    int32_t blocks_trimmed = 0;   // their memory was given back
    int32_t blocks_pinned = 0;    // by pins, computed or not
    uint64_t blocks_evicted = 0;  // cached ones that made room, so far
};

struct Distribution {
    uint64_t count = 0;
    double mean = 0;
    int64_t p50 = 0;
    int64_t p90 = 0;
    int64_t p99 = 0;
    int64_t max = 0;
};

struct MetricsSnapshot {
    Counters counters;
    Gauges gauges;
    Distribution ttft_us;   // submit to first token
    Distribution itl_us;    // between two tokens of a sequence
    Distribution queue_us;  // submit to first admission
    Distribution e2e_us;    // submit to finish
    Distribution step_us;
    Distribution batch_rows;    // sequences per pass
    Distribution batch_tokens;  // positions per pass
};

struct Metrics {
    Counters counters;
    Histogram ttft_us;
    Histogram itl_us;
    Histogram queue_us;
    Histogram e2e_us;
    Histogram step_us;
    Histogram batch_rows;
    Histogram batch_tokens;

    void on_submit() { counters.requests_submitted++; }
    void on_admit(int64_t time_in_queue_us) { queue_us.add(time_in_queue_us); }  // the first time only
    void on_prefix_lookup(int32_t queried_tokens, int32_t hit_tokens) {
        counters.prefix_tokens_queried += queried_tokens;
        counters.prompt_tokens_cached += hit_tokens;
    }
    void on_prompt_computed(int32_t tokens) { counters.prompt_tokens_computed += tokens; }
    void on_recomputed(int32_t tokens) { counters.recomputed_tokens += tokens; }
    void on_first_token(int64_t since_submit_us) {
        counters.generated_tokens++;
        ttft_us.add(since_submit_us);
    }
    void on_token(int64_t since_last_us) {  // the second and later ones
        counters.generated_tokens++;
        itl_us.add(since_last_us);
    }
    void on_tokens_at_once(int32_t tokens) { counters.generated_tokens += tokens; }  // no time between them
    void on_finish(FinishReason reason, int64_t since_submit_us) {
        const auto i = static_cast<size_t>(reason);
        if (i < finish_reasons_max) counters.requests_finished_by[i]++;
        e2e_us.add(since_submit_us);
    }
    void on_preempt(int32_t tokens_held) {
        counters.preemptions++;
        counters.preempted_tokens += tokens_held;
    }
    void on_copy(int32_t blocks) { counters.copied_blocks += blocks; }
    void on_pass(int32_t rows, int32_t tokens) {
        counters.passes++;
        batch_rows.add(rows);
        batch_tokens.add(tokens);
    }
    void on_step(int64_t time_us, int64_t worst_tile_us) {
        counters.steps++;
        step_us.add(time_us);
        if (worst_tile_us > counters.worst_tile_us) counters.worst_tile_us = worst_tile_us;
    }

    MetricsSnapshot snapshot(const Gauges& gauges) const;
};

}  // namespace treadle
