// How requests enter an engine and how the host disposes of them: submit, fork, cancel, release, priority. From any thread, also
// while a step runs: they write to the mailbox and the list of orders, and the next intake acts.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "base/limits.h"
#include "engine/engine.h"
#include "engine/loose_slabs.h"
#include "engine/text_replay.h"

namespace treadle {
namespace {

// A fork's index among the draws of its seed: as good as random, and the same whenever the same fork is made again.
uint64_t sample_index_of_fork(uint64_t parent, int32_t position, uint64_t ordinal) {
    const uint64_t words[3] = {parent, static_cast<uint64_t>(position), ordinal};
    return hash64(words, sizeof words);
}

RequestParams copy_of(const RequestParams& params, Memory* memory) {
    RequestParams copy(memory);
    copy.sampling = params.sampling;
    copy.stop_tokens = params.stop_tokens;
    copy.stops = params.stops;
    copy.ignore_end = params.ignore_end;
    copy.keep = params.keep;
    copy.scope = params.scope;
    copy.user_data = params.user_data;
    return copy;
}

}  // namespace

// How long the sequence may get, or why the prompt can never fit.
Status Engine::limit_of(int32_t prompt_tokens, int32_t wanted_limit, int32_t* limit, Error* error) const {
    const int32_t pool_tokens = cache_.total() * limits::kv_block_tokens;
    if (prompt_tokens >= params_.context_length)
        return fail(error, Status::PROMPT_TOO_LONG,
                    "the prompt has %d tokens, the context holds %d, one of them for the answer",
                    prompt_tokens, params_.context_length);
    if (prompt_tokens >= pool_tokens)
        return fail(
            error, Status::POOL_TOO_SMALL,
            "the prompt has %d tokens, the KV cache holds %d (kv_blocks is %d), one of them for the answer",
            prompt_tokens, pool_tokens, cache_.total());
    *limit = std::min({params_.context_length, pool_tokens, wanted_limit});
    return Status::OK;
}

Status Engine::submit(RequestParams&& params, std::pmr::vector<int32_t>&& prompt, int32_t max_tokens,
                      uint64_t* id, Error* error) {
    free_the_buried();
    const auto prompt_tokens = static_cast<int32_t>(prompt.size());
    const int32_t wanted_limit = limit_wanted(prompt_tokens, max_tokens);
    int32_t limit = 0;
    TREADLE_TRY(limit_of(prompt_tokens, wanted_limit, &limit, error));
    if (params.beam_width > 1)
        TREADLE_TRY(limit_of_beams(params.beam_width, prompt_tokens, max_tokens < 0, &limit, error));
    params.scope = scope_of(params.scope);
    Owned<Request> request = make_request(std::move(params), std::move(prompt), limit, wanted_limit);
    begin(request.get());
    return enter(std::move(request), id, error);
}

CacheScope Engine::scope_of(CacheScope asked) const {
    if (!params_.prefix_cache) asked.is_private = true;
    if (asked.is_private) asked.salt = 0;
    return asked;
}

Owned<Request> Engine::make_request(RequestParams&& params, std::pmr::vector<int32_t>&& prompt, int32_t limit,
                                    int32_t wanted_limit) const {
    Memory* memory = &memory_.other;
    const int32_t sequences = params.beam_width > 1 ? params.beam_width : params.samples;
    Owned<Request> request = make_owned<Request>(memory, memory, std::move(params));
    request->sequences.reserve(static_cast<size_t>(sequences));
    request->wanted_priority = request->params.priority;
    request->live = sequences;
    for (int32_t i = 0; i < sequences; i++) {
        std::pmr::vector<int32_t> tokens(memory);
        tokens.reserve(static_cast<size_t>(limit));
        tokens.assign(prompt.begin(), prompt.end());
        request->sequences.push_back(make_owned<Sequence>(memory, memory, request.get(), i, std::move(tokens),
                                                          limit, model_.vocabulary->max_token_bytes()));
        request->sequences.back()->wanted_limit = wanted_limit;
    }
    return request;
}

// Into the table and the mailbox, or nothing happened.
Status Engine::enter(Owned<Request> request, uint64_t* id, Error* error) {
    const int64_t now = request->submitted_ns = params_.clock.now();
    if (request->params.deadline_us > 0)
        request->deadline_ns = request->params.deadline_us > (INT64_MAX - std::max<int64_t>(now, 0)) / 1000
                                   ? INT64_MAX
                                   : now + request->params.deadline_us * 1000;
    for (LooseSlabs loose(backend_.get()); true; loose.allocate()) {
        const std::lock_guard lock(table_lock_);
        TREADLE_TRY(check_entry(request.get(), error));
        if (claim_blocks(*request, &loose)) {
            *id = take_in(std::move(request), now);
            break;
        }
        if (loose.short_of_memory())
            return fail(
                error, Status::NOMEM,
                "the KV cache was trimmed to %d blocks of %d, and there is no memory for those that the "
                "request may need",
                cache_.present(), cache_.total());
    }
    wake_host();
    return Status::OK;
}

Status Engine::check_entry(Request* request, Error* error) const {
    if (unusable_ != Status::OK)
        return fail(error, Status::UNUSABLE, "the engine is unusable since a step failed: %s",
                    status_text(unusable_));
    if (table_.full())
        return fail(error, Status::FULL,
                    "max_requests is %d and as many live; poll their final events or release them",
                    params_.max_requests);
    return fit_among_pins(request, error);
}

// Returns its id.
uint64_t Engine::take_in(Owned<Request> entering, int64_t now_ns) {
    Request* request = entering.release();
    table_.add(request);
    request->arrival = ++arrivals_;
    CacheScope& scope = request->params.scope;
    if (scope.is_private && scope.salt == 0) scope.salt = arrivals_;  // one of its own, for its forks too
    for (const Owned<Sequence>& sequence : request->sequences) {
        sequence->cache.scope = scope;
        sequence->room.for_each([this](EventNode* told_again) { events_.append(told_again); });
        if (!sequence->is_pin()) promised_blocks_ += sequence->blocks_most();
    }
    if (request->deadline_ns != INT64_MAX) deadlines_.add(request);
    if (request->params.pin) pins_.add(request);
    request->in_mailbox = true;
    mailbox_.sequences += request->live;
    recorder_.submitted(*request, now_ns);
    const uint64_t id = request->id;
    if (request->over != FinishReason::none) {  // the scheduler never meets it
        finish_all(request, request->over);
        request->in_mailbox = false;
    } else {
        (mailbox_.newest == nullptr ? mailbox_.oldest : mailbox_.newest->next_mail) = request;
        mailbox_.newest = request;
    }
    return id;
}

void Engine::begin(Request* request) const {
    for (const Owned<Sequence>& sequence : request->sequences) begin_text(sequence.get());
    if (request->params.beam_width > 1) make_beams(request);
}

// The text's state follows from all tokens. What counts as generated has been told already, but for what it holds back.
void Engine::begin_text(Sequence* sequence) const {
    const std::span<const int32_t> tokens = sequence->tokens;
    if (sequence->generated() == 0) {
        begin_after_prompt(*model_.vocabulary, tokens, &sequence->text);
        return;
    }
    std::pmr::vector<char> scratch(text_scratch_.size(), &memory_.scratch);
    replay_text(*model_.vocabulary, sequence->request->params, tokens,
                static_cast<size_t>(sequence->prompt_tokens), true, scratch, &sequence->text,
                [&](std::string_view text) { sequence->told_bytes += text.size(); });
}

// `position`: none for all tokens there are.
Status Engine::borrow(uint64_t id, int32_t index, std::optional<int32_t> position, Borrowed* out,
                      Error* error) {
    const std::lock_guard lock(table_lock_);
    Request* request = table_.find(id);
    if (request == nullptr) return fail(error, Status::STALE_ID, "the request was never made or is released");
    if (index < 0 || index >= request->params.samples)
        return fail(error, Status::INVALID_ARGUMENT, "sequence is %d, the request has %d", index,
                    request->params.samples);
    const Sequence& sequence = *request->sequences[static_cast<size_t>(index)];
    const int32_t length = told_length(sequence);
    const int32_t wanted = position.value_or(length);
    if (wanted < 1 || wanted > length)
        return fail(error, Status::INVALID_ARGUMENT, "position is %d, must be 1 to the sequence's %d tokens",
                    wanted, length);
    request->borrowers++;
    out->engine = this;
    out->request = request;
    out->sequence = &sequence;
    out->position = wanted;
    out->is_searching = request->beams != nullptr && sequence.state != SequenceState::finished;
    out->finish_reason = sequence.finish_reason;
    out->delivered_bytes = sequence.told_bytes - sequence.room.text_bytes();
    out->forks = request->forks;
    return Status::OK;
}

void Engine::give_back(Request* request) {
    const std::lock_guard lock(table_lock_);
    request->borrowers--;
    bury_if_unnamed(request);
}

Status Engine::fork(uint64_t parent_id, int32_t index, int32_t position, RequestParams* params,
                    int32_t max_tokens, uint64_t* id, Error* error) {
    free_the_buried();
    Borrowed borrowed;
    TREADLE_TRY(borrow(parent_id, index, position, &borrowed, error));
    Request* parent = borrowed.request;
    const Sequence& from = *borrowed.sequence;
    const bool inherits_limit = max_tokens == 0 && position < from.wanted_limit && !from.is_pin();
    const int32_t wanted_limit =
        inherits_limit ? from.wanted_limit : limit_wanted(position, max_tokens == 0 ? -1 : max_tokens);
    int32_t limit = 0;
    TREADLE_TRY(limit_of(position, wanted_limit, &limit, error));
    RequestParams asked = params != nullptr ? std::move(*params) : copy_of(parent->params, &memory_.other);
    if (asked.beam_width > 1)
        TREADLE_TRY(limit_of_beams(asked.beam_width, position, max_tokens < 0, &limit, error));
    asked.scope = parent->params.scope;
    asked.generated_tail = std::max(position - from.prompt_tokens, 0);
    std::pmr::vector<int32_t> tokens(from.tokens.begin(), from.tokens.begin() + position, &memory_.other);
    Owned<Request> request = make_request(std::move(asked), std::move(tokens), limit, wanted_limit);
    begin(request.get());
    uint64_t ordinal = 0;
    {
        const std::lock_guard lock(table_lock_);
        ordinal = parent->forks++;
        if (params == nullptr && parent->wanted_priority != Priority::paused)
            request->params.priority = request->wanted_priority = parent->wanted_priority;
    }
    for (const Owned<Sequence>& sequence : request->sequences)
        sequence->sample_index = sample_index_of_fork(from.sample_index, position, ordinal) +
                                 static_cast<uint64_t>(sequence->index);
    const Status status = enter(std::move(request), id, error);
    if (status != Status::OK) {  // as if it had not been tried, unless another thread has forked it since
        const std::lock_guard lock(table_lock_);
        if (parent->forks == ordinal + 1) parent->forks = ordinal;
    }
    return status;
}

// The next intake looks at this request.
void Engine::order(Request* request) {
    if (request->ordered) return;
    request->ordered = true;
    request->next_order = orders_;
    orders_ = request;
}

Status Engine::cancel(uint64_t id) {
    bool pin = false;
    {
        const std::lock_guard lock(table_lock_);
        Request* request = table_.find(id);
        if (request == nullptr) return Status::STALE_ID;
        pin = request->params.pin;
        if (!pin && request->finished()) return Status::OK;
        if (!pin) {
            request->cancelled = true;
            order(request);
        }
    }
    if (pin) return release(id);
    wake_host();
    return Status::OK;
}

Status Engine::set_priority(uint64_t id, Priority priority) {
    {
        const std::lock_guard lock(table_lock_);
        Request* request = table_.find(id);
        if (request == nullptr) return Status::STALE_ID;
        if (request->finished()) return Status::OK;
        request->wanted_priority = priority;
        order(request);
    }
    wake_host();
    return Status::OK;
}

Status Engine::release(uint64_t id) {
    bool live = false;
    {
        const std::lock_guard lock(table_lock_);
        Request* request = table_.find(id);
        if (request == nullptr) return Status::STALE_ID;
        request->released = true;
        pins_.remove(request);  // its blocks come back before the next plan
        drop_events(request);
        live = !request->finished();
        if (live) order(request);
        bury_if_unnamed(request);
    }
    free_the_buried();
    if (live) wake_host();
    return Status::OK;
}

void Engine::drop_events(Request* request) {
    if (request->beams != nullptr) request->beams->telling.under_way = false;
    for (const Owned<Sequence>& sequence : request->sequences)
        while (EventNode* node = sequence->room.oldest()) {
            events_.remove(node);
            sequence->room.pop();
        }
}

// Takes a request out of the table that is over and given up, once nobody names it any more; its memory is freed when a call
// may take its time.
void Engine::bury_if_unnamed(Request* request) {
    if (!request->finished() || !request->released || request->in_pass > 0 || request->ordered ||
        request->in_mailbox || request->borrowers > 0)
        return;
    deadlines_.remove(request);
    table_.remove(request);
    request->next_buried = graveyard_;
    graveyard_ = request;
}

}  // namespace treadle
