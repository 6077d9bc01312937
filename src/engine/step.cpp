// A step of the engine, phase by phase; commit is in commit.cpp.
#include <algorithm>
#include <array>
#include <utility>

#include "base/float_mode.h"
#include "engine/engine.h"

namespace treadle {
namespace {

constexpr int32_t at_once = 256;  // requests that intake handles before it lets others have the lock

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
    *report = {};
    report->next_step_us = -1;
    if (unusable_ != Status::OK) return Status::UNUSABLE;
    const FloatMode float_mode;
    const StepTimes times = begin_step(params);

    Status status = Status::OK;
    bool pass_done = true;
    while (status == Status::OK && pass_done) {
        intake(times);
        plan();
        if (!under_way()) break;
        status = run(times, &pass_done, report);
        if (status == Status::OK && pass_done) pass_done = sample_rows(times, report);
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
    const int64_t now = phase_start_ns_ = params_.clock.now();
    {
        const std::lock_guard lock(table_lock_);  // stats read them
        recorder_.set_time(now);
        host_share_.begin_step(now, work_left_);
    }
    constexpr int64_t latest = INT64_MAX - 1;  // INT64_MAX itself is no deadline
    const int64_t budget_ns = params.budget_us > latest / 1000 ? latest : params.budget_us * 1000;
    return {
        .start_ns = now,
        .deadline_ns = params.budget_us == 0      ? INT64_MAX
                       : now > latest - budget_ns ? latest
                                                  : now + budget_ns,
        .max_threads =
            params.max_threads == 0 ? params_.threads : std::min(params.max_threads, params_.threads),
        .preemptions_before = recorder_.metrics().counters.preemptions,
    };
}

// A phase has ended; what comes next happens at this time. The step's own thread reads what it wrote, so only the trace needs
// the lock.
void Engine::end_phase(TracePhase phase) {
    const int64_t start = phase_start_ns_;
    phase_start_ns_ = params_.clock.now();
    recorder_.set_time(phase_start_ns_);
    pass_work_ns_ += phase_start_ns_ - start;
    if (!recorder_.trace().on()) return;
    const std::lock_guard lock(table_lock_);
    recorder_.phase(phase, start, phase_start_ns_);
}

// Submissions join the queues and overdue requests end, as many as there is time for; all that are cancelled or released end.
// Those of the pass under way stay in it as ballast.
void Engine::intake(const StepTimes& times) {
    int64_t now = times.start_ns;
    Request* orders = nullptr;
    {
        const std::lock_guard lock(table_lock_);
        orders = std::exchange(orders_, nullptr);  // what comes meanwhile is for the next intake
    }
    do {
        const std::lock_guard lock(table_lock_);
        take_mail(at_once);
        orders = carry_out_some(orders);
        const bool more_overdue = end_the_overdue(now, at_once);
        if (mailbox_.oldest == nullptr && orders == nullptr && !more_overdue) break;
    } while ((now = params_.clock.now()) < times.deadline_ns || orders != nullptr);
    end_phase(TracePhase::intake);
}

void Engine::take_mail(int32_t most) {
    for (int32_t i = 0; i < most && mailbox_.oldest != nullptr; i++) {
        Request* request = mailbox_.oldest;
        mailbox_.oldest = std::exchange(request->next_mail, nullptr);
        if (mailbox_.oldest == nullptr) mailbox_.newest = nullptr;
        mailbox_.sequences -= request->live;
        request->in_mailbox = false;
        if (request->finished()) {  // cancelled before it was taken in
            bury_if_unnamed(request);
            continue;
        }
        for (const Owned<Sequence>& sequence : request->sequences) scheduler_.enqueue(sequence.get());
    }
}

// In order of arrival, so that many who change queues find their places one beside the other. Returns those that are left.
Request* Engine::carry_out_some(Request* orders) {
    std::array<Request*, at_once> some;
    size_t count = 0;
    for (; orders != nullptr && count < some.size(); count++) {
        some[count] = orders;
        orders = std::exchange(some[count]->next_order, nullptr);
    }
    std::sort(some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count),
              [](const Request* a, const Request* b) { return a->arrival < b->arrival; });
    for (size_t i = 0; i < count; i++) carry_out(some[i]);
    return orders;
}

void Engine::carry_out(Request* request) {
    request->ordered = false;
    if (request->finished()) {  // it ended by itself in the meantime
        bury_if_unnamed(request);
    } else if (request->cancelled || request->released) {
        recorder_.cancelled(*request);
        finish_all(request, FinishReason::cancelled);
    } else if (request->params.priority != request->wanted_priority) {
        request->params.priority = request->wanted_priority;
        if (request->in_mailbox) return;
        for (const Owned<Sequence>& sequence : request->sequences)
            if (!sequence->finished()) scheduler_.reprioritize(sequence.get());
    }
}

// As many as that; true: there are more.
bool Engine::end_the_overdue(int64_t now_ns, int32_t most) {
    for (int32_t i = 0; deadlines_.nearest() != nullptr; i++) {
        Request* request = deadlines_.nearest();
        if (request->deadline_ns > now_ns) return false;
        if (i == most) return true;
        deadlines_.remove(request);
        if (!request->finished()) finish_all(request, FinishReason::deadline);
    }
    return false;
}

void Engine::plan() {
    if (under_way()) return;
    {
        const std::lock_guard lock(table_lock_);
        scheduler_.plan(&plan_, pass_budget_ns());
        for (const PlanRow& row : plan_.rows) {
            row.sequence->in_pass = true;
            row.sequence->request->in_pass++;
        }
    }
    pass_start_ns_ = recorder_.time_ns();
    pass_work_ns_ = 0;
    if (!plan_.rows.empty()) runner_.begin(plan_);
    end_phase(TracePhase::plan);
}

// A pass makes a token of each sequence, so it may take the target's time, as far as the host gives that to the engine.
int64_t Engine::pass_budget_ns() const {
    if (params_.itl_target_us == 0) return INT64_MAX;
    return static_cast<int64_t>(static_cast<double>(params_.itl_target_us) * 1000 * host_share_.share());
}

Status Engine::run(const StepTimes& times, bool* pass_done, StepReport* report) {
    *pass_done = true;
    if (computed_) return Status::OK;
    const bool waits = times.deadline_ns == INT64_MAX;
    AdvanceResult result;
    do {
        result = runner_.advance(times.deadline_ns, times.max_threads);
        report->worst_tile_us = std::max(report->worst_tile_us, result.worst_tile_ns / 1000);
    } while (waits && result.status == Status::OK && result.state != PassState::done);
    *pass_done = computed_ = result.status == Status::OK && result.state == PassState::done;
    sampling_row_ = sampled_count_ = 0;
    end_phase(TracePhase::run);
    return result.status;
}

// Chooses the next token of each row that has logits, until the deadline but at least of one: a row may take a sort of the
// whole vocabulary. True when all have theirs. Nothing but the step writes what is read here, so no lock is held.
bool Engine::sample_rows(const StepTimes& times, StepReport* report) {
    const PassResults results = runner_.results();
    const auto vocabulary = static_cast<size_t>(model_.program->vocabulary);
    int64_t before = params_.clock.now();
    for (; sampling_row_ < plan_.rows.size(); sampling_row_++) {
        if (!plan_.rows[sampling_row_].logits) continue;
        const Sequence& sequence = *plan_.rows[sampling_row_].sequence;
        const size_t i = sampled_count_++;
        if (sequence.finished()) continue;  // it ended while the pass ran
        SampledRow& sampled = sampled_[i];
        const SamplingParams& params = sequence.request->params.sampling;
        const bool in_beam = sequence.request->beams != nullptr;
        sampled.status = in_beam
                             ? collect_candidates(sequence, results.rows[i])
                             : sample(params, sequence.sample_index, sequence.length(), results.rows[i],
                                      results.logits + i * vocabulary, model_.program->vocabulary,
                                      {sampling_scratch_.data(), sampling_scratch_.size()}, &sampled.token);
        if (!in_beam && samples_at_once(params)) continue;
        const int64_t now = params_.clock.now();
        report->worst_tile_us = std::max(report->worst_tile_us, (now - before) / 1000);
        before = now;
        if (now < times.deadline_ns || sampled_count_ == static_cast<size_t>(plan_.logit_rows)) continue;
        sampling_row_++;
        end_phase(TracePhase::sample);
        return false;
    }
    end_phase(TracePhase::sample);
    return true;
}

void Engine::finish_report(const StepTimes& times, StepReport* report) {
    const int64_t now = params_.clock.now();
    recorder_.set_time(now);
    report->time_us = (now - times.start_ns) / 1000;
    const std::lock_guard lock(table_lock_);
    const Gauges sizes = gauges();
    report->running = sizes.requests_running;
    report->waiting = sizes.requests_waiting;
    report->waiting_poll = sizes.requests_waiting_poll;
    report->paused = sizes.requests_paused;
    report->free_blocks = cache_.available();
    report->preemptions =
        static_cast<int32_t>(recorder_.metrics().counters.preemptions - times.preemptions_before);
    const bool work =
        under_way() || mailbox_.oldest != nullptr || orders_ != nullptr || scheduler_.has_work();
    report->next_step_us = unusable_ != Status::OK ? -1 : work ? 0 : until_deadline_us(now);
    work_left_ = work;
    host_share_.end_step(now);
    recorder_.step(report->time_us, report->worst_tile_us, sizes);
}

// Of the nearest deadline that a request has; -1: none.
int64_t Engine::until_deadline_us(int64_t now_ns) const {
    const Request* nearest = deadlines_.nearest();
    if (nearest == nullptr) return -1;
    const int64_t left_ns = nearest->deadline_ns - std::max<int64_t>(now_ns, 0);
    return left_ns <= 1000 ? 1 : (left_ns - 1) / 1000 + 1;
}

}  // namespace treadle
