// A step of the engine, phase by phase.
#include <algorithm>

#include "base/float_mode.h"
#include "engine/engine.h"

namespace treadle {
namespace {

#ifdef NDEBUG
constexpr bool debug_checks = false;
#else
constexpr bool debug_checks = true;  // every block is recounted after each pass
#endif

// Leaves the stepping flag as it was found, whatever happens in between.
class StepGuard {
public:
    explicit StepGuard(std::atomic<bool>* flag)
        : flag_(flag), entered_(!flag->exchange(true, std::memory_order_acquire)) {}
    ~StepGuard() {
        if (entered_) flag_->store(false, std::memory_order_release);
    }
    StepGuard(const StepGuard&) = delete;
    StepGuard& operator=(const StepGuard&) = delete;
    bool entered() const { return entered_; }

private:
    std::atomic<bool>* flag_;
    bool entered_;
};

}  // namespace

Status Engine::step(const StepParams& params, StepReport* report) {
    const StepGuard guard(&stepping_);
    if (!guard.entered()) return Status::BUSY;
    if (unusable_ != Status::OK) return Status::UNUSABLE;
    const FloatMode float_mode;
    const StepTimes times = begin_step(params);
    *report = {};

    Status status = Status::OK;
    bool pass_done = true;
    while (status == Status::OK && pass_done) {
        intake();
        status = plan();
        if (status != Status::OK || !runner_.under_way()) break;
        status = run(times, &pass_done, report);
        if (status != Status::OK || !pass_done) break;
        status = commit(report);
        if (params.budget_us == 0 || params_.clock.now() >= times.deadline_ns) break;
    }
    if (status != Status::OK) give_up(status);
    finish_report(times, report);
    return status;
}

Engine::StepTimes Engine::begin_step(const StepParams& params) {
    woken_.store(false, std::memory_order_release);
    const int64_t now = params_.clock.now();
    const int64_t budget_ns = params.budget_us > INT64_MAX / 4000 ? INT64_MAX / 4 : params.budget_us * 1000;
    return {
        .start_ns = now,
        .deadline_ns = params.budget_us == 0 || now > INT64_MAX / 2 ? INT64_MAX : now + budget_ns,
        .max_threads =
            params.max_threads == 0 ? params_.threads : std::min(params.max_threads, params_.threads),
    };
}

void Engine::intake() {
    const std::lock_guard lock(table_lock_);
    take_in();
}

// Submissions join the queue; cancelled and released requests end, those of the pass under way stay in it as ballast.
void Engine::take_in() {
    while (Request* request = mailbox_.take_front()) scheduler_.enqueue(request);
    while (Request* request = orders_) {
        orders_ = request->next_order;
        request->ordered = false;
        finish(request, FinishReason::cancelled);
    }
}

Status Engine::plan() {
    if (runner_.under_way()) return Status::OK;
    {
        const std::lock_guard lock(table_lock_);
        scheduler_.plan(&plan_);
        for (const PlanRow& row : plan_.rows) row.request->in_pass = true;
    }
    return plan_.rows.empty() ? Status::OK : runner_.begin(plan_);
}

Status Engine::run(const StepTimes& times, bool* pass_done, StepReport* report) {
    const bool waits = times.deadline_ns == INT64_MAX;
    AdvanceResult result;
    do {
        result = runner_.advance(times.deadline_ns, times.max_threads);
        report->worst_tile_us = std::max(report->worst_tile_us, result.worst_tile_ns / 1000);
    } while (waits && result.status == Status::OK && result.state != PassState::done);
    *pass_done = result.status == Status::OK && result.state == PassState::done;
    return result.status;
}

Status Engine::commit(StepReport* report) {
    sample_rows();
    const std::lock_guard lock(table_lock_);
    // Orders that came while the pass ran. Left for the next intake, one could name a request that this pass ends and a poll
    // frees; and a released one would get events that nobody takes out of the list before it is freed.
    take_in();
    size_t logit_row = 0;
    for (const PlanRow& row : plan_.rows) {
        commit_row(row, logit_row, report);
        logit_row += row.logits ? 1 : 0;
    }
    report->passes++;
    report->tokens_computed += plan_.tokens;
    stats_.passes++;
    return debug_checks && !scheduler_.consistent() ? Status::INTERNAL : Status::OK;
}

// Chooses the next token of each row that has logits. Nothing but the step writes what is read here, so no lock is held.
void Engine::sample_rows() {
    const PassResults results = runner_.results();
    const auto vocabulary = static_cast<size_t>(model_.program->vocabulary);
    size_t i = 0;
    for (const PlanRow& row : plan_.rows) {
        if (!row.logits) continue;
        const Request& request = *row.request;
        SampledRow& sampled = sampled_[i];
        sampled.status = sample(request.params.sampling, request.params.first_sample, request.length(),
                                results.rows[i], results.logits + i * vocabulary, model_.program->vocabulary,
                                {sampling_scratch_.data(), sampling_scratch_.size()}, &sampled.token);
        i++;
    }
}

void Engine::commit_row(const PlanRow& row, size_t logit_row, StepReport* report) {
    Request* request = row.request;
    request->in_pass = false;
    if (request->finished()) {  // it ended while the pass ran
        leave(request);
        return;
    }
    request->computed = row.first + row.count;
    if (request->state == RequestState::prompt) {
        stats_.prompt_tokens += static_cast<uint64_t>(row.count);
        const bool more_passes = !row.logits || row.first > 0;
        if (more_passes) push_progress(request);
        if (row.logits) request->state = RequestState::generating;
    }
    if (row.logits) append_token(request, logit_row, report);
}

void Engine::append_token(Request* request, size_t logit_row, StepReport* report) {
    const SampledRow& sampled = sampled_[logit_row];
    if (sampled.status != Status::OK) {
        static_cast<void>(fail(&request->failure, sampled.status,
                               "the logits after token %d are not finite; the model or its input is broken",
                               request->length() - 1));
        finish(request, FinishReason::error);
        return;
    }
    const int32_t token = sampled.token.token;
    request->tokens.push_back(token);
    report->tokens_produced++;
    stats_.generated_tokens++;

    const bool end = ends(*request, token);
    StopResult text;
    if (!end && !model_.vocabulary->is_control(token))
        text = request->text.push(request->params.stops, model_.vocabulary->token_bytes(token),
                                  text_scratch_.data());
    EventNode* event = push_event(request, EventKind::token, {text_scratch_.data(), text.bytes});
    event->position = request->length() - 1;
    event->token = token;
    event->logprob = sampled.token.logprob;
    if (request->params.sampling.logprobs > 0)
        event->logprob_count =
            best_logprobs(runner_.results().rows[logit_row], request->room.logprobs_of(event));

    if (end) {
        finish(request, FinishReason::end);
    } else if (text.stopped) {
        finish(request, FinishReason::stop_string);
    } else if (request->length() == request->limit) {
        finish(request, FinishReason::length);
    }
}

bool Engine::ends(const Request& request, int32_t token) const {
    const auto& stops = request.params.stop_tokens;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) return true;
    return !request.params.ignore_end && model_.vocabulary->is_end_of_generation(token);
}

EventNode* Engine::push_event(Request* request, EventKind kind, std::string_view text) {
    EventNode* event = request->room.push(kind, text);
    event->request = request;
    events_.append(event);
    return event;
}

void Engine::push_progress(Request* request) {
    EventNode* event = request->room.newest_progress();
    if (event == nullptr) event = push_event(request, EventKind::progress, {});
    event->position = std::min(request->computed, request->prompt_tokens);
}

// The one way to the state `finished`. Text that was held back is delivered, except after a stop string.
void Engine::finish(Request* request, FinishReason reason) {
    request->state = RequestState::finished;
    request->finish_reason = reason;
    stats_.requests_finished++;
    stats_.requests_cancelled += reason == FinishReason::cancelled ? 1 : 0;
    stats_.requests_failed += reason == FinishReason::error ? 1 : 0;
    if (!request->released) {
        const StopResult held = request->text.finish(request->params.stops, text_scratch_.data());
        if (held.bytes > 0) push_event(request, EventKind::text, {text_scratch_.data(), held.bytes});
        push_event(request, EventKind::finished, {})->position = request->length();
    }
    if (!request->in_pass) leave(request);
}

// A finished request that no pass names gives its blocks back, and goes for good if the host gave it up.
void Engine::leave(Request* request) {
    scheduler_.remove(request);
    if (request->released) bury(request);
}

// The backend failed: every live request ends with that status, so that no host waits for ever.
void Engine::give_up(Status status) {
    runner_.abandon();
    const std::lock_guard lock(table_lock_);
    unusable_ = status;
    while (Request* request = mailbox_.take_front()) scheduler_.enqueue(request);
    orders_ = nullptr;
    table_.for_each([&](Request* request) {
        const bool was_in_pass = request->in_pass;
        request->in_pass = false;
        request->ordered = false;
        if (request->finished()) {
            if (was_in_pass) leave(request);
            return;
        }
        static_cast<void>(
            fail(&request->failure, status, "the engine failed while it computed: %s", status_text(status)));
        finish(request, FinishReason::error);
    });
}

void Engine::finish_report(const StepTimes& times, StepReport* report) {
    report->time_us = (params_.clock.now() - times.start_ns) / 1000;
    const std::lock_guard lock(table_lock_);
    report->running = scheduler_.running();
    report->waiting = scheduler_.waiting() + mailbox_.size();
    report->waiting_poll = scheduler_.waiting_poll();
    report->free_blocks = pool_.available();
    const bool work = runner_.under_way() || !mailbox_.empty() || orders_ != nullptr || scheduler_.has_work();
    report->next_step_us = work && unusable_ == Status::OK ? 0 : -1;
    stats_.steps++;
    stats_.step_time_us += report->time_us;
    stats_.worst_step_us = std::max(stats_.worst_step_us, report->time_us);
    stats_.worst_tile_us = std::max(stats_.worst_tile_us, report->worst_tile_us);
}

}  // namespace treadle
