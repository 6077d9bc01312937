// Writes down what an engine does: the figures of its stats, and its trace if the host wants one. The engine tells it, and so
// does the scheduler about admissions and preemptions; all under the engine's table lock.
//
// Times are those of the last set_time: a phase reads the clock once, and all that happens in it happens then.
//
// Invariant: nothing here changes what is computed; nothing allocates after construction.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/memory.h"
#include "engine/metrics.h"
#include "engine/trace.h"
#include "scheduler/plan.h"
#include "scheduler/scheduler.h"

namespace treadle {

class Recorder final : public SchedulerObserver {
public:
    Recorder(Memory* memory, size_t trace_events, int64_t now_ns) : trace_(memory, trace_events, now_ns) {}

    void set_time(int64_t now_ns) { now_ns_.store(now_ns, std::memory_order_relaxed); }
    int64_t time_ns() const { return now_ns_.load(std::memory_order_relaxed); }

    void submitted(Request& request, int64_t now_ns);  // on the host's thread, at a time of its own
    void cancelled(Request& request);
    void admitted(Sequence& sequence) override;
    void set_back(Sequence& sequence, int32_t tokens, bool preempted) override;
    void computed(const PlanRow& row, bool prompt, int64_t pass_start_ns);
    void produced(Sequence& sequence);  // its newest token
    void produced_at_once(int32_t tokens) {
        metrics_.on_tokens_at_once(tokens);
    }  // by a beam search, at its end
    void finished(Sequence& sequence, bool last);
    void pass(const StepPlan& plan);  // has ended
    void phase(TracePhase phase, int64_t start_ns, int64_t end_ns) { trace_.phase(phase, start_ns, end_ns); }
    void step(int64_t time_us, int64_t worst_tile_us, const Gauges& gauges);

    const Metrics& metrics() const { return metrics_; }
    const Trace& trace() const { return trace_; }

private:
    void end_wait(Sequence& sequence);

    std::atomic<int64_t> now_ns_ =
        0;  // the step sets it without the lock, a restored request that is over reads it
    Metrics metrics_;
    Trace trace_;
};

}  // namespace treadle
