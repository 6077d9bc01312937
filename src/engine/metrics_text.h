// The engine's figures as Prometheus text (exposition format 0.0.4), which a host serves under its own HTTP endpoint or writes
// to a file. Names follow the inference servers of the field (num_requests_running, time_to_first_token_seconds, …) with the
// prefix treadle_, so that their dashboards need only another prefix. Called by the api under the engine's lock.
//
// Invariant: the text depends on the figures alone, not on a locale, and always has the same lines in the same order.
#pragma once

#include <cstddef>
#include <span>

#include "engine/metrics.h"

namespace treadle {

// Returns the bytes that the text has (no zero at its end). It is in `out` if it fits; otherwise nothing is written: call with an
// empty span to learn the size, and leave some room, since the figures' digits grow.
size_t write_metrics_text(const Metrics& metrics, const Gauges& gauges, std::span<char> out);

}  // namespace treadle
