// What happens to sequences, as figures and as events of the trace.
#include "engine/recorder.h"

#include <algorithm>

namespace treadle {
namespace {

int64_t us_between(int64_t start_ns, int64_t end_ns) {
    return std::max<int64_t>(end_ns - start_ns, 0) / 1000;
}

}  // namespace

void Recorder::submitted(Request& request, int64_t now_ns) {
    if (!request.params.pin) metrics_.on_submit();
    for (const Owned<Sequence>& sequence : request.sequences) {
        sequence->record.waiting_since_ns = now_ns;
        sequence->record.track = trace_.new_track(request.id, sequence->index);
        trace_.instant(&sequence->record.track, TraceInstant::submit, now_ns);
    }
}

void Recorder::cancelled(Request& request) {
    for (const Owned<Sequence>& sequence : request.sequences)
        if (!sequence->finished()) trace_.instant(&sequence->record.track, TraceInstant::cancel, time_ns());
}

void Recorder::end_wait(Sequence& sequence) {
    SequenceRecord& record = sequence.record;
    trace_.wait(&record.track, record.preempted ? TraceSpan::preempted : TraceSpan::waiting,
                record.waiting_since_ns, std::max(time_ns(), record.waiting_since_ns));
    record.preempted = false;
}

void Recorder::admitted(Sequence& sequence) {
    end_wait(sequence);
    if (sequence.cached_tokens >= 0 || sequence.is_pin()) return;  // it was here before, or is no prompt
    metrics_.on_admit(us_between(sequence.request->submitted_ns, time_ns()));
    if (!sequence.request->params.scope.is_private)
        metrics_.on_prefix_lookup(sequence.prompt_tokens,
                                  std::min(sequence.computed(), sequence.prompt_tokens));
}

void Recorder::set_back(Sequence& sequence, int32_t tokens, bool preempted) {
    sequence.record.waiting_since_ns = time_ns();
    sequence.record.preempted = true;
    if (preempted) metrics_.on_preempt(tokens);
}

void Recorder::computed(const PlanRow& row, bool prompt, int64_t pass_start_ns) {
    Sequence& sequence = *row.sequence;
    const int32_t again = std::clamp(sequence.computed_most - row.first, 0, row.count);
    metrics_.on_recomputed(again);
    if (prompt) metrics_.on_prompt_computed(row.count - again);
    trace_.work(&sequence.record.track, prompt || row.count > 1 ? TraceSpan::prompt : TraceSpan::decode,
                pass_start_ns, time_ns(),
                {row.count, row.first, static_cast<int64_t>(metrics_.counters.passes)});
}

void Recorder::produced(Sequence& sequence) {
    SequenceRecord& record = sequence.record;
    if (sequence.length() == sequence.given_tokens + 1) {
        metrics_.on_first_token(us_between(sequence.request->submitted_ns, time_ns()));
        trace_.instant(&record.track, TraceInstant::first_token, time_ns());
    } else {
        metrics_.on_token(us_between(record.newest_token_ns, time_ns()));
    }
    record.newest_token_ns = time_ns();
}

void Recorder::finished(Sequence& sequence, bool last) {
    const bool waits = sequence.queue != nullptr && !sequence.is_whole_pin();
    if (waits) end_wait(sequence);
    // One that is over as it enters does so between steps, after their time.
    trace_.finish(&sequence.record.track, std::max(time_ns(), sequence.record.waiting_since_ns),
                  sequence.finish_reason);
    if (last && !sequence.is_pin())
        metrics_.on_finish(sequence.finish_reason, us_between(sequence.request->submitted_ns, time_ns()));
}

void Recorder::pass(const StepPlan& plan) {
    metrics_.on_pass(static_cast<int32_t>(plan.rows.size()), plan.tokens);
    metrics_.on_copy(static_cast<int32_t>(plan.copies.size()));
}

void Recorder::step(int64_t time_us, int64_t worst_tile_us, const Gauges& now) {
    metrics_.on_step(time_us, worst_tile_us);
    trace_.blocks(time_ns(), now.blocks_free, now.blocks_held, now.blocks_cached);
    trace_.requests(time_ns(), now.requests_running, now.requests_waiting);
}

}  // namespace treadle
