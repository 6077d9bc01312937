// What an engine did: stats, metrics as text, the trace.
#include "api/handles.h"
#include "api/structs.h"

namespace treadle {

namespace {

engine_distribution distribution(const Distribution& of) {
    return {of.count, of.mean, of.p50, of.p90, of.p99, of.max};
}

engine_stats stats_of(const EngineStats& now) {
    const Gauges& sizes = now.figures.gauges;
    const Counters& sums = now.figures.counters;
    engine_stats value = {};
    value.running = sizes.requests_running;
    value.waiting = sizes.requests_waiting;
    value.waiting_poll = sizes.requests_waiting_poll;
    value.paused = sizes.requests_paused;
    value.kv_blocks_free = sizes.blocks_free;
    value.kv_blocks_held = sizes.blocks_held;
    value.kv_blocks_cached = sizes.blocks_cached;
    value.requests_submitted = sums.requests_submitted;
    value.requests_finished = sums.requests_finished();
    value.requests_cancelled = sums.requests_cancelled();
    value.requests_failed = sums.requests_failed();
    value.requests_late = sums.finished_by(FinishReason::deadline);
    value.prompt_tokens = sums.prompt_tokens_computed;
    value.queried_tokens = sums.prefix_tokens_queried;
    value.cached_tokens = sums.prompt_tokens_cached;
    value.recomputed_tokens = sums.recomputed_tokens;
    value.generated_tokens = sums.generated_tokens;
    value.preemptions = sums.preemptions;
    value.preempted_tokens = sums.preempted_tokens;
    value.evicted_blocks = sizes.blocks_evicted;
    value.copied_blocks = sums.copied_blocks;
    value.steps = sums.steps;
    value.passes = sums.passes;
    value.worst_tile_us = sums.worst_tile_us;
    value.ttft_us = distribution(now.figures.ttft_us);
    value.itl_us = distribution(now.figures.itl_us);
    value.queue_us = distribution(now.figures.queue_us);
    value.request_us = distribution(now.figures.e2e_us);
    value.step_us = distribution(now.figures.step_us);
    value.pass_rows = distribution(now.figures.batch_rows);
    value.pass_tokens = distribution(now.figures.batch_tokens);
    value.cost_pass_us = now.cost_ns[0] / 1000;
    value.cost_row_us = now.cost_ns[1] / 1000;
    value.cost_token_us = now.cost_ns[2] / 1000;
    value.cost_token_context_us = now.cost_ns[3] / 1000;
    value.cost_error = now.cost_error;
    value.host_share = now.host_share;
    value.kv_blocks_pinned = sizes.blocks_pinned;
    value.kv_blocks_trimmed = sizes.blocks_trimmed;
    value.kv_bytes = now.kv_bytes;
    return value;
}

class CallerText final : public TextSink {
public:
    CallerText(engine_write_fn function, void* user) : write_(function), user_(user) {}
    bool write(std::span<const char> text) override { return write_(user_, text.data(), text.size()) == 0; }

private:
    engine_write_fn write_;
    void* user_;
};

}  // namespace

extern "C" {

ENGINE_API engine_status engine_stats_init(engine_stats* stats, size_t size) {
    return api::init_struct(stats, size, engine_stats{});
}

ENGINE_API engine_status engine_get_stats(engine* e, engine_stats* stats) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        TREADLE_REQUIRE(stats);
        return api::write_struct("engine_stats", stats, stats_of(e->core->stats()), error);
    });
}

ENGINE_API engine_status engine_metrics_text(engine* e, char* text, size_t capacity, size_t* size) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        if (capacity > 0) TREADLE_REQUIRE(text);
        const size_t bytes = e->core->metrics_text({text, capacity});
        if (size != nullptr) *size = bytes;
        return bytes > capacity ? Status::BUFFER_TOO_SMALL : Status::OK;
    });
}

ENGINE_API engine_status engine_trace_write(engine* e, engine_write_fn write, void* user) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        TREADLE_REQUIRE(write);
        CallerText sink(write, user);
        return e->core->write_trace(sink);
    });
}

}  // extern "C"

}  // namespace treadle
