// The metrics text, family by family: HELP, TYPE, samples.
//
// The histograms' limits (le) are round numbers rather than the edges of our own finer buckets, so that an objective such as
// "95% within 0.1 s" can be asked as it is; a sample less than 1/32 below a limit may be counted at the next one.
#include "engine/metrics_text.h"

#include "engine/text_writer.h"

namespace treadle {
namespace {

// Limits of the buckets: times in microseconds, from a token of a small model to a long prompt on a slow machine.
constexpr int64_t request_limits_us[] = {
    1'000,      2'500,       5'000,       10'000,      25'000,        50'000,        100'000,
    250'000,    500'000,     1'000'000,   2'500'000,   5'000'000,     10'000'000,    25'000'000,
    50'000'000, 100'000'000, 250'000'000, 500'000'000, 1'000'000'000, 3'600'000'000,
};
constexpr int64_t token_limits_us[] = {
    100,    250,    500,    1'000,   2'500,   5'000,   7'500,   10'000,  15'000,    20'000,    30'000,
    40'000, 50'000, 75'000, 100'000, 150'000, 200'000, 300'000, 500'000, 1'000'000, 2'500'000, 10'000'000,
};
constexpr int64_t step_limits_us[] = {
    50,     100,    250,    500,     1'000,   2'000,   4'000,     8'000,     16'000,
    25'000, 33'000, 50'000, 100'000, 250'000, 500'000, 1'000'000, 2'500'000, 10'000'000,
};
constexpr int64_t row_limits[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
constexpr int64_t token_limits[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536};

constexpr int seconds = 6;  // decimal places of a microsecond
constexpr int whole = 0;

class MetricsWriter {
public:
    explicit MetricsWriter(std::span<char> out) : text_(out) {}
    size_t bytes() const { return text_.bytes(); }

    void gauge(std::string_view name, std::string_view help, int64_t value) {
        family(name, help, "gauge");
        sample(name, value);
    }
    void counter(std::string_view name, std::string_view help, uint64_t value) {
        family(name, help, "counter");
        sample(name, value);
    }
    void histogram(std::string_view name, std::string_view help, const Histogram& samples,
                   std::span<const int64_t> limits, int places) {
        family(name, help, "histogram");
        for (const int64_t limit : limits) {
            text_.put("treadle_").put(name).put("_bucket{le=\"").put_decimal(limit, places).put("\"} ");
            text_.put(samples.count_at_most(limit)).put("\n");
        }
        text_.put("treadle_").put(name).put("_bucket{le=\"+Inf\"} ").put(samples.count()).put("\n");
        text_.put("treadle_").put(name).put("_sum ").put_decimal(samples.sum(), places).put("\n");
        text_.put("treadle_").put(name).put("_count ").put(samples.count()).put("\n");
    }

    void family(std::string_view name, std::string_view help, std::string_view type) {
        text_.put("# HELP treadle_").put(name).put(" ").put(help).put("\n");
        text_.put("# TYPE treadle_").put(name).put(" ").put(type).put("\n");
    }
    template <class Number>
    void sample(std::string_view name, Number value) {
        text_.put("treadle_").put(name).put(" ").put(value).put("\n");
    }
    template <class Number>
    void labelled(std::string_view name, std::string_view label, std::string_view is, Number value) {
        text_.put("treadle_")
            .put(name)
            .put("{")
            .put(label)
            .put("=\"")
            .put(is)
            .put("\"} ")
            .put(value)
            .put("\n");
    }
    void sample_seconds(std::string_view name, int64_t us) {
        text_.put("treadle_").put(name).put(" ").put_decimal(us, seconds).put("\n");
    }

private:
    TextWriter text_;
};

void write_gauges(const Gauges& now, MetricsWriter* out) {
    out->gauge("num_requests_running", "Requests in the running batch.", now.requests_running);
    out->gauge("num_requests_waiting", "Requests waiting to be admitted.", now.requests_waiting);
    out->gauge("num_requests_waiting_poll",
               "Requests that sit out because their events are full until polled.",
               now.requests_waiting_poll);
    out->gauge("num_requests_paused", "Requests that the host paused.", now.requests_paused);
    out->family("kv_cache_usage_perc", "Share of the cache's blocks that requests hold; 1 is all of them.",
                "gauge");
    out->sample("kv_cache_usage_perc",
                now.blocks_total > 0 ? static_cast<double>(now.blocks_held) / now.blocks_total : 0.0);
    out->family("kv_cache_blocks", "Blocks of the cache by state; cached ones are given up on demand.",
                "gauge");
    out->labelled("kv_cache_blocks", "state", "free", now.blocks_free);
    out->labelled("kv_cache_blocks", "state", "held", now.blocks_held);
    out->labelled("kv_cache_blocks", "state", "cached", now.blocks_cached);
    out->labelled("kv_cache_blocks", "state", "trimmed", now.blocks_trimmed);
    out->gauge("kv_cache_blocks_pinned", "Blocks that pinned prefixes fill together, computed or not.",
               now.blocks_pinned);
}

void write_counters(const Counters& sum, const Gauges& now, MetricsWriter* out) {
    out->counter("requests_submitted_total", "Requests submitted.", sum.requests_submitted);
    out->family("requests_finished_total", "Requests ended, by reason.", "counter");
    for (size_t i = 1; i < finish_reasons_max; i++) {  // 0 is "none"
        const std::string_view name = finish_reason_name(static_cast<FinishReason>(i));
        if (name != "other")
            out->labelled("requests_finished_total", "finished_reason", name, sum.requests_finished_by[i]);
    }
    out->counter("prompt_tokens_total", "Prompt tokens computed for the first time.",
                 sum.prompt_tokens_computed);
    out->counter("generation_tokens_total", "Tokens generated.", sum.generated_tokens);
    out->counter("prefix_cache_queries_total", "Tokens asked of the prefix cache.",
                 sum.prefix_tokens_queried);
    out->counter("prefix_cache_hits_total", "Tokens found in the prefix cache.", sum.prompt_tokens_cached);
    out->counter("num_preemptions_total", "Preemptions.", sum.preemptions);
    out->counter("preempted_tokens_total", "Tokens whose place in the cache preempted requests gave up.",
                 sum.preempted_tokens);
    out->counter("recomputed_tokens_total", "Tokens computed again after a preemption.",
                 sum.recomputed_tokens);
    out->counter("kv_cache_evicted_blocks_total", "Cached blocks given up for others.", now.blocks_evicted);
    out->counter("kv_cache_copied_blocks_total",
                 "Blocks copied, to be written or as a partly matching prefix.", sum.copied_blocks);
    out->counter("steps_total", "Calls of the engine's step.", sum.steps);
    out->counter("passes_total", "Forward passes completed.", sum.passes);
    out->family("worst_tile_seconds", "Longest piece of work that a step could not cut.", "gauge");
    out->sample_seconds("worst_tile_seconds", sum.worst_tile_us);
}

void write_histograms(const Metrics& metrics, MetricsWriter* out) {
    out->histogram("time_to_first_token_seconds", "Time from submission to the first token.", metrics.ttft_us,
                   request_limits_us, seconds);
    out->histogram("inter_token_latency_seconds", "Time between two tokens of a sequence.", metrics.itl_us,
                   token_limits_us, seconds);
    out->histogram("request_queue_time_seconds", "Time from submission to the first admission.",
                   metrics.queue_us, request_limits_us, seconds);
    out->histogram("e2e_request_latency_seconds", "Time from submission to the end.", metrics.e2e_us,
                   request_limits_us, seconds);
    out->histogram("step_time_seconds", "Time that a step took.", metrics.step_us, step_limits_us, seconds);
    out->histogram("pass_rows", "Sequences in a pass.", metrics.batch_rows, row_limits, whole);
    out->histogram("pass_tokens", "Tokens in a pass.", metrics.batch_tokens, token_limits, whole);
}

size_t write_all(const Metrics& metrics, const Gauges& gauges, std::span<char> out) {
    MetricsWriter writer(out);
    write_gauges(gauges, &writer);
    write_counters(metrics.counters, gauges, &writer);
    write_histograms(metrics, &writer);
    return writer.bytes();
}

}  // namespace

size_t write_metrics_text(const Metrics& metrics, const Gauges& gauges, std::span<char> out) {
    const size_t bytes = write_all(metrics, gauges, {});
    if (bytes <= out.size()) write_all(metrics, gauges, out);
    return bytes;
}

}  // namespace treadle
