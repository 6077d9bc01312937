// What a pass leaves behind: tokens are appended and told, ends are noticed, blocks become findable; and how requests end.
// Everything here runs under the engine's table lock.
#include <algorithm>

#include "engine/engine.h"
#include "engine/text_replay.h"

namespace treadle {
namespace {

#ifdef NDEBUG
constexpr bool debug_checks = false;
#else
constexpr bool debug_checks = true;  // every block is recounted after each pass
#endif

}  // namespace

Status Engine::commit(StepReport* report) {
    computed_ = false;
    const std::lock_guard lock(table_lock_);
    cache_.end_copies();
    scheduler_.learn(plan_.shape, pass_work_ns_);
    size_t logit_row = 0;
    for (const PlanRow& row : plan_.rows) {
        commit_row(row, logit_row, report);
        logit_row += row.logits ? 1 : 0;
    }
    report->passes++;
    report->tokens_computed += plan_.tokens;
    recorder_.pass(plan_);
    return debug_checks && !scheduler_.consistent(0) ? Status::INTERNAL : Status::OK;
}

void Engine::commit_row(const PlanRow& row, size_t logit_row, StepReport* report) {
    Sequence* sequence = row.sequence;
    sequence->in_pass = false;
    sequence->request->in_pass--;
    const bool first_time = !sequence->answers();
    recorder_.computed(row, first_time, pass_start_ns_);
    scheduler_.commit(row);  // also of one that ended while the pass ran: others may go on from there
    if (sequence->finished()) {
        leave(sequence);
        return;
    }
    if (sequence->request->released) {  // since the last intake: it says nothing more
        finish(sequence, FinishReason::cancelled);
        return;
    }
    if (first_time && !sequence->is_pin() &&
        (!row.logits || row.first > std::max(sequence->cached_tokens, 0)))
        push_progress(sequence);
    if (row.logits) append_token(sequence, logit_row, report);
}

void Engine::append_token(Sequence* sequence, size_t logit_row, StepReport* report) {
    const SampledRow& sampled = sampled_[logit_row];
    const RequestParams& params = sequence->request->params;
    if (sampled.status != Status::OK) {
        Error* failure = &sequence->request->failure;
        if (failure->status == Status::OK)
            static_cast<void>(
                fail(failure, sampled.status,
                     "the logits after token %d are not finite; the model or its input is broken",
                     sequence->length() - 1));
        sequence->failure = sampled.status;
        finish(sequence, FinishReason::error);
        return;
    }
    if (sequence->request->beams != nullptr) {
        commit_beam(sequence, report);
        return;
    }
    const int32_t token = sampled.token.token;
    sequence->tokens.push_back(token);
    report->tokens_produced++;
    recorder_.produced(*sequence);

    const bool end = ends(*sequence, token);
    StopResult text;
    if (!end && !model_.vocabulary->is_control(token))
        text = sequence->text.push(params.stops, model_.vocabulary->token_bytes(token), text_scratch_.data());
    EventNode* event = push_event(sequence, EventKind::token, {text_scratch_.data(), text.bytes});
    event->position = sequence->length() - 1;
    event->token = token;
    if (params.sampling.logprobs > 0) {
        event->logprob = sampled.token.logprob;
        event->logprob_count =
            best_logprobs(runner_.results().rows[logit_row], sequence->room.logprobs_of(event));
    }

    if (end) {
        finish(sequence, FinishReason::end);
    } else if (text.stopped) {
        finish(sequence, FinishReason::stop_string);
    } else if (sequence->length() == sequence->limit) {
        finish(sequence, FinishReason::length);
    }
}

bool Engine::ends(const Sequence& sequence, int32_t token) const {
    return ends_answer(*model_.vocabulary, sequence.request->params, token);
}

EventNode* Engine::push_event(Sequence* sequence, EventKind kind, std::string_view text) {
    EventNode* event = sequence->room.push(kind, text);
    event->sequence = sequence;
    sequence->told_bytes += text.size();
    events_.append(event);
    return event;
}

void Engine::push_progress(Sequence* sequence) {
    EventNode* event = sequence->room.newest_progress();
    if (event == nullptr) event = push_event(sequence, EventKind::progress, {});
    event->position = std::min(sequence->computed_most, sequence->given_tokens);
}

void Engine::finish_all(Request* request, FinishReason reason) {
    for (const Owned<Sequence>& sequence : request->sequences)
        if (!sequence->finished()) finish(sequence.get(), reason);
}

// The one way to the state `finished`. Text that was held back is delivered, except after a stop string.
void Engine::finish(Sequence* sequence, FinishReason reason) {
    Request* request = sequence->request;
    if (request->beams != nullptr) {
        end_beams(request, reason);
        return;
    }
    sequence->state = SequenceState::finished;
    sequence->finish_reason = reason;
    const bool last = --request->live == 0;
    if (!sequence->is_pin()) promised_blocks_ -= sequence->blocks_most();
    recorder_.finished(*sequence, last);
    if (last) {
        deadlines_.remove(request);
        pins_.remove(request);
    }
    if (!request->released && !request->params.pin) {
        push_held_text(sequence);
        EventNode* event = push_event(sequence, EventKind::finished, {});
        event->position = sequence->length();
        event->last = last;
    }
    if (!sequence->in_pass) leave(sequence);
}

void Engine::push_held_text(Sequence* sequence) {
    const StopResult held = sequence->text.finish(sequence->request->params.stops, text_scratch_.data());
    if (held.bytes > 0)
        push_event(sequence, EventKind::text, {text_scratch_.data(), held.bytes})->position =
            told_length(*sequence);
}

// A finished sequence that no pass names lets its blocks go, and its request goes for good if the host gave it up.
void Engine::leave(Sequence* sequence) {
    if (sequence->request->in_mailbox) {
        mailbox_.sequences--;
    } else {
        scheduler_.remove(sequence);
    }
    bury_if_unnamed(sequence->request);
}

// The backend failed: every live request ends with that status, so that no host waits for ever.
void Engine::give_up(Status status) {
    runner_.abandon();
    computed_ = false;
    const std::lock_guard lock(table_lock_);
    unusable_ = status;
    cache_.end_copies();
    take_mail(INT32_MAX);
    orders_ = nullptr;
    table_.for_each([&](Request* request) { end_after_failure(request, status); });
}

void Engine::end_after_failure(Request* request, Status status) {
    request->ordered = false;
    request->next_order = nullptr;
    const bool was_over = request->finished();
    for (const Owned<Sequence>& sequence : request->sequences) {
        const bool was_in_pass = sequence->in_pass;
        sequence->in_pass = false;
        if (sequence->finished() && was_in_pass) scheduler_.remove(sequence.get());
    }
    request->in_pass = 0;
    if (was_over) {
        bury_if_unnamed(request);
        return;
    }
    if (request->failure.status == Status::OK)
        static_cast<void>(
            fail(&request->failure, status, "the engine failed while it computed: %s", status_text(status)));
    for (const Owned<Sequence>& sequence : request->sequences)
        if (!sequence->finished()) sequence->failure = status;
    finish_all(request, FinishReason::error);
}

}  // namespace treadle
