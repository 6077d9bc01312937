// The engine's figures, summed up for its stats.
#include "engine/metrics.h"

#include <iterator>

namespace treadle {
namespace {

Distribution distribution(const Histogram& histogram) {
    return {
        .count = histogram.count(),
        .mean = histogram.mean(),
        .p50 = histogram.percentile(50),
        .p90 = histogram.percentile(90),
        .p99 = histogram.percentile(99),
        .max = histogram.max(),
    };
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
    // By number, as the public header gives them.
    constexpr std::string_view names[] = {"none",      "end",   "stop_string", "length",
                                          "cancelled", "error", "deadline"};
    const auto i = static_cast<size_t>(reason);
    return i < std::size(names) ? names[i] : "other";
}

MetricsSnapshot Metrics::snapshot(const Gauges& gauges) const {
    return {
        .counters = counters,
        .gauges = gauges,
        .ttft_us = distribution(ttft_us),
        .itl_us = distribution(itl_us),
        .queue_us = distribution(queue_us),
        .e2e_us = distribution(e2e_us),
        .step_us = distribution(step_us),
        .batch_rows = distribution(batch_rows),
        .batch_tokens = distribution(batch_tokens),
    };
}

}  // namespace treadle
