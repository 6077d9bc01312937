// Making and ending an engine, and what a host may call from any thread: submit, cancel, release, poll, questions. The step is
// in step.cpp.
#include "engine/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/limits.h"

namespace treadle {
namespace {

constexpr int32_t default_pool_tokens_min = 4096;

Status out_of_range(Error* error, const char* field, int32_t value, int32_t low, int32_t high) {
    return fail(error, Status::INVALID_ARGUMENT, "%s is %d, must be %d to %d", field, value, low, high);
}

Status check_params(const EngineParams& params, int32_t model_context, Error* error) {
    if (params.max_sequences < 1 || params.max_sequences > limits::sequences_max)
        return out_of_range(error, "max_sequences", params.max_sequences, 1, limits::sequences_max);
    if (params.max_batch_tokens < 1 || params.max_batch_tokens > limits::batch_tokens_max)
        return out_of_range(error, "max_batch_tokens", params.max_batch_tokens, 1, limits::batch_tokens_max);
    if (params.max_requests < 1 || params.max_requests > limits::requests_max)
        return out_of_range(error, "max_requests", params.max_requests, 1, limits::requests_max);
    if (params.context_length < 0 || params.context_length == 1 || params.context_length > model_context)
        return fail(error, Status::INVALID_ARGUMENT,
                    "context_length is %d, must be 0 or 2 to the model's context of %d tokens",
                    params.context_length, model_context);
    constexpr int32_t blocks_max = INT32_MAX / limits::kv_block_tokens;  // slots are int32
    if (params.kv_blocks < 0 || params.kv_blocks > blocks_max)
        return out_of_range(error, "kv_blocks", params.kv_blocks, 0, blocks_max);
    return Status::OK;
}

// All sequences of one pass together name each block once, as long as blocks are not shared.
int32_t table_blocks_max(const EngineParams& params) { return params.kv_blocks; }

Dims largest_pass(const EngineParams& params) {
    return {params.max_batch_tokens, std::min(params.max_sequences, params.max_batch_tokens)};
}

// The longest text that one token can let go: its own, held bytes and the longest stop string.
size_t text_scratch_bytes(size_t token_bytes_max) {
    return size_t{limits::stop_string_bytes_max} + Utf8Stream::output_bytes_max(token_bytes_max);
}

}  // namespace

Status make_engine(MemorySet& memory, const EngineModel& model, int32_t model_context, EngineParams params,
                   Owned<Backend> backend, Owned<Engine>* out, Error* error) {
    TREADLE_TRY(check_params(params, model_context, error));
    if (params.context_length == 0) params.context_length = model_context;
    if (params.kv_blocks == 0)
        params.kv_blocks = blocks_for(std::max(params.context_length, default_pool_tokens_min) + 1);
    params.max_sequences = std::min(params.max_sequences, params.max_requests);

    TREADLE_TRY(backend->kv_create(*model.program, params.kv_blocks, error));
    TREADLE_TRY(backend->build(*model.program, largest_pass(params), error));
    *out = make_owned<Engine>(&memory.other, memory, model, params, std::move(backend));
    return Status::OK;
}

Engine::Engine(MemorySet& memory, const EngineModel& model, const EngineParams& params,
               Owned<Backend> backend)
    : memory_(memory), model_(model), params_(params), backend_(std::move(backend)),
      pool_(&memory.kv, params.kv_blocks),
      scheduler_(&memory.other, {params.max_sequences, params.max_batch_tokens}, &pool_),
      runner_(&memory.scratch, backend_.get(), model.rope, largest_pass(params), table_blocks_max(params)),
      plan_(&memory.other),
      sampling_scratch_(&memory.scratch, sampling_scratch_candidates(model.vocabulary->size())),
      sampled_(&memory.scratch, static_cast<size_t>(params.max_sequences)),
      text_scratch_(&memory.scratch, text_scratch_bytes(model.vocabulary->max_token_bytes())),
      table_(&memory.other, params.max_requests) {
    plan_.rows.reserve(static_cast<size_t>(params.max_sequences));
}

Engine::~Engine() {
    runner_.abandon();
    free_the_buried();
    table_.for_each([this](Request* request) { free_request(request); });
}

void Engine::free_request(Request* request) {
    request->~Request();
    memory_.other.deallocate(request, sizeof(Request), alignof(Request));
}

void Engine::free_the_buried() {
    RequestQueue buried;
    {
        const std::lock_guard lock(table_lock_);
        std::swap(buried, graveyard_);
    }
    while (Request* request = buried.take_front()) free_request(request);
}

// How long the sequence may get, or why the prompt can never fit.
Status Engine::limit_of(int32_t prompt_tokens, int32_t max_tokens, int32_t* limit, Error* error) const {
    const int32_t pool_tokens = pool_.total() * limits::kv_block_tokens;
    if (prompt_tokens >= params_.context_length)
        return fail(error, Status::PROMPT_TOO_LONG,
                    "the prompt has %d tokens, the context holds %d, one of them for the answer",
                    prompt_tokens, params_.context_length);
    if (prompt_tokens >= pool_tokens)
        return fail(
            error, Status::POOL_TOO_SMALL,
            "the prompt has %d tokens, the KV cache holds %d (kv_blocks is %d), one of them for the answer",
            prompt_tokens, pool_tokens, pool_.total());
    const int32_t most = std::min(params_.context_length, pool_tokens);
    *limit = max_tokens < 0 || max_tokens > most - prompt_tokens ? most : prompt_tokens + max_tokens;
    return Status::OK;
}

Status Engine::submit(RequestParams&& params, std::pmr::vector<int32_t>&& prompt, int32_t max_tokens,
                      uint64_t* id, Error* error) {
    free_the_buried();
    int32_t limit = 0;
    TREADLE_TRY(limit_of(static_cast<int32_t>(prompt.size()), max_tokens, &limit, error));
    Owned<Request> request =
        make_owned<Request>(&memory_.other, &memory_.other, std::move(params), std::move(prompt), limit,
                            model_.vocabulary->max_token_bytes());
    {
        const std::lock_guard lock(table_lock_);
        if (unusable_ != Status::OK)
            return fail(error, Status::UNUSABLE, "the engine is unusable since a step failed: %s",
                        status_text(unusable_));
        if (table_.full())
            return fail(error, Status::FULL,
                        "max_requests is %d and as many live; poll their final events or release them",
                        params_.max_requests);
        table_.add(request.get());
        *id = request->id;
        mailbox_.append(request.release());
        stats_.requests_submitted++;
    }
    wake_host();
    return Status::OK;
}

// The step ends this request at its next intake or commit.
void Engine::order(Request* request) {
    if (request->ordered) return;
    request->ordered = true;
    request->next_order = orders_;
    orders_ = request;
}

Status Engine::cancel(uint64_t id) {
    {
        const std::lock_guard lock(table_lock_);
        Request* request = table_.find(id);
        if (request == nullptr) return Status::STALE_ID;
        if (request->finished()) return Status::OK;
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
        drop_events(request);
        live = !request->finished();
        if (live) {
            order(request);
        } else if (!request->in_pass) {
            bury(request);
        }
    }
    free_the_buried();
    if (live) wake_host();
    return Status::OK;
}

void Engine::drop_events(Request* request) {
    while (EventNode* node = request->room.oldest()) {
        events_.remove(node);
        request->room.pop();
    }
}

// Takes a request that is over and in no pass out of the table; its memory is freed when a call may take its time.
void Engine::bury(Request* request) {
    table_.remove(request);
    graveyard_.append(request);
}

Status Engine::request_info(uint64_t id, RequestInfo* out) {
    const std::lock_guard lock(table_lock_);
    const Request* request = table_.find(id);
    if (request == nullptr) return Status::STALE_ID;
    out->state = request->state;
    out->waits_for_poll = !request->finished() && !request->room.has_room();
    out->prompt_tokens = request->prompt_tokens;
    out->prompt_tokens_done = std::min(request->computed, request->prompt_tokens);
    out->generated_tokens = request->generated();
    out->queue_place = scheduler_.queue_place(request);
    if (out->queue_place < 0 &&
        request->state == RequestState::waiting)  // still in the mailbox, behind the queue
        out->queue_place = scheduler_.waiting() + mailbox_.place(request);
    out->finish_reason = request->finish_reason;
    out->failure = request->failure;
    return Status::OK;
}

Status Engine::sequence_tokens(uint64_t id, std::span<int32_t> out, size_t* count) {
    const std::lock_guard lock(table_lock_);
    const Request* request = table_.find(id);
    if (request == nullptr) return Status::STALE_ID;
    *count = request->tokens.size();
    if (request->tokens.size() > out.size()) return Status::BUFFER_TOO_SMALL;
    std::copy(request->tokens.begin(), request->tokens.end(), out.begin());
    return Status::OK;
}

void Engine::poll(EventSink& sink, size_t capacity) {
    bool goes_on = false;
    {
        const std::lock_guard lock(table_lock_);
        for (size_t i = 0; i < capacity && events_.oldest() != nullptr; i++) {
            EventNode* node = events_.oldest();
            Request* request = node->request;
            const bool last = node->kind == EventKind::finished;
            const bool had_room = request->room.has_room();
            if (!sink.take(*node, request->room.logprobs_of(node))) break;
            events_.remove(node);
            request->room.pop();
            goes_on |= !had_room && !request->finished() && request->room.has_room();
            if (!last || request->params.keep) continue;
            request->released = true;
            if (!request->in_pass) bury(request);
        }
    }
    free_the_buried();
    if (goes_on) wake_host();
}

EngineStats Engine::stats() {
    const std::lock_guard lock(table_lock_);
    EngineStats now = stats_;
    now.requests_running = scheduler_.running();
    now.requests_waiting = scheduler_.waiting() + mailbox_.size();
    now.requests_waiting_poll = scheduler_.waiting_poll();
    now.kv_blocks_free = pool_.free_blocks();
    now.kv_blocks_reserved = pool_.reserved();
    return now;
}

void Engine::wake_host() {
    if (params_.wake != nullptr && !woken_.exchange(true, std::memory_order_acq_rel))
        params_.wake(params_.wake_user);
}

}  // namespace treadle
