// Making and ending an engine, and the questions that a host may ask from any thread. Submissions and orders are in requests.cpp,
// the step is in step.cpp.
#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "engine/metrics_text.h"

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
    if (params.watermark_blocks < -1 || params.watermark_blocks > blocks_max)
        return out_of_range(error, "watermark_blocks", params.watermark_blocks, -1, blocks_max);
    if (params.prefix_cache_blocks < -1 || params.prefix_cache_blocks > blocks_max)
        return out_of_range(error, "prefix_cache_blocks", params.prefix_cache_blocks, -1, blocks_max);
    constexpr int64_t itl_target_us_max = 3'600'000'000;  // an hour
    if (params.itl_target_us < 0 || params.itl_target_us > itl_target_us_max)
        return fail(error, Status::INVALID_ARGUMENT, "itl_target_us is %lld, must be 0 to %lld",
                    static_cast<long long>(params.itl_target_us), static_cast<long long>(itl_target_us_max));
    constexpr auto trace_events_max = static_cast<int32_t>(Trace::capacity_max);
    if (params.trace_events < 0 || params.trace_events > trace_events_max)
        return out_of_range(error, "trace_events", params.trace_events, 0, trace_events_max);
    return Status::OK;
}

Dims largest_pass(const EngineParams& params) {
    return {params.max_batch_tokens, std::min(params.max_sequences, params.max_batch_tokens)};
}

int64_t table_blocks_max(const EngineParams& params) {
    return block_table_capacity(largest_pass(params).logit_rows, params.kv_blocks);
}

SchedulerParams scheduler_params(const EngineParams& params) {
    return {
        .max_sequences = params.max_sequences,
        .max_batch_tokens = params.max_batch_tokens,
        .policy = params.memory_policy,
        .watermark_blocks = params.watermark_blocks,
        .table_blocks_max = table_blocks_max(params),
    };
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
        params.kv_blocks = blocks_of(std::max(params.context_length, default_pool_tokens_min));
    params.max_sequences = std::min(params.max_sequences, params.max_requests * limits::samples_max);
    if (params.watermark_blocks < 0)
        params.watermark_blocks = std::min(params.kv_blocks / 20, params.max_sequences);
    if (params.prefix_cache_blocks < 0) params.prefix_cache_blocks = params.kv_blocks;

    TREADLE_TRY(backend->kv_create(*model.program, params.kv_blocks, error));
    TREADLE_TRY(backend->build(*model.program, largest_pass(params), error));
    *out = make_owned<Engine>(&memory.other, memory, model, params, std::move(backend));
    return Status::OK;
}

Engine::Engine(MemorySet& memory, const EngineModel& model, const EngineParams& params,
               Owned<Backend> backend)
    : memory_(memory), model_(model), params_(params), backend_(std::move(backend)),
      cache_(&memory.kv, params.kv_blocks, params.prefix_cache_blocks, params.max_sequences),
      recorder_(&memory.other, static_cast<size_t>(params.trace_events), params.clock.now()),
      scheduler_(&memory.other, scheduler_params(params), &cache_, &recorder_),
      runner_(&memory.scratch, backend_.get(), model.rope, params.clock, largest_pass(params),
              table_blocks_max(params)),
      plan_(&memory.other),
      sampling_scratch_(&memory.scratch, sampling_scratch_candidates(model.vocabulary->size())),
      sampled_(&memory.scratch, static_cast<size_t>(params.max_sequences)),
      text_scratch_(&memory.scratch, text_scratch_bytes(model.vocabulary->max_token_bytes())),
      table_(&memory.other, params.max_requests), deadlines_(&memory.other, params.max_requests) {
    plan_.rows.reserve(static_cast<size_t>(params.max_sequences));
    plan_.copies.reserve(static_cast<size_t>(params.max_sequences));
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
    Request* buried = nullptr;
    {
        const std::lock_guard lock(table_lock_);
        buried = std::exchange(graveyard_, nullptr);
    }
    while (buried != nullptr) free_request(std::exchange(buried, buried->next_buried));
}

// ---- Questions

Status Engine::request_info(uint64_t id, RequestInfo* out) {
    const std::lock_guard lock(table_lock_);
    const Request* request = table_.find(id);
    if (request == nullptr) return Status::STALE_ID;
    *out = {};
    const Sequence* first_live = nullptr;  // it stands for the request
    for (const Owned<Sequence>& sequence : request->sequences) {
        if (first_live == nullptr && !sequence->finished()) first_live = sequence.get();
        out->prompt_tokens_done =
            std::max(out->prompt_tokens_done, std::min(sequence->computed_most, sequence->prompt_tokens));
        if (sequence->index < request->params.samples)
            out->generated_tokens += told_length(*sequence) - sequence->prompt_tokens;
    }
    const Sequence& one = first_live == nullptr ? *request->sequences.front() : *first_live;
    out->state = one.state;
    out->waits_for_poll = first_live != nullptr && !one.runnable();
    out->paused = first_live != nullptr && request->params.priority == Priority::paused &&
                  one.state != SequenceState::pinned;
    out->sequences = request->params.samples;
    out->prompt_tokens = one.prompt_tokens;
    out->cached_tokens = std::max(request->sequences.front()->cached_tokens, 0);
    if (one.state == SequenceState::waiting && !out->paused) {
        out->queue_place = scheduler_.queue_place(&one);
        if (out->queue_place < 0) {  // still in the mailbox, behind the queues
            out->queue_place = scheduler_.waiting();
            for (const Request* mail = mailbox_.oldest; mail != nullptr && mail != request;
                 mail = mail->next_mail)
                out->queue_place += mail->live;
        }
    }
    out->finish_reason = one.finish_reason;
    out->failure = request->failure;
    return Status::OK;
}

Status Engine::sequence_tokens(uint64_t id, int32_t index, std::span<int32_t> out, size_t* count,
                               Error* error) {
    const std::lock_guard lock(table_lock_);
    const Request* request = table_.find(id);
    if (request == nullptr) return Status::STALE_ID;
    if (index < 0 || index >= request->params.samples)
        return fail(error, Status::INVALID_ARGUMENT, "sequence is %d, the request has %d", index,
                    request->params.samples);
    const Sequence& sequence = *request->sequences[static_cast<size_t>(index)];
    *count = static_cast<size_t>(told_length(sequence));
    if (*count > out.size()) return Status::BUFFER_TOO_SMALL;
    std::copy_n(sequence.tokens.begin(), *count, out.begin());
    return Status::OK;
}

void Engine::poll(EventSink& sink, size_t capacity) {
    bool goes_on = false;
    {
        const std::lock_guard lock(table_lock_);
        for (size_t i = 0; i < capacity && events_.oldest() != nullptr; i++) {
            EventNode* node = events_.oldest();
            Sequence* sequence = node->sequence;
            Request* request = sequence->request;
            const bool last = node->last;
            const bool had_room = sequence->room.has_room();
            if (!sink.take(*node, sequence->room.logprobs_of(node))) break;
            events_.remove(node);
            sequence->room.pop();
            if (request->beams != nullptr) tell_beams(request);
            goes_on |= !had_room && !sequence->finished() && sequence->room.has_room();
            if (!last || request->params.keep) continue;
            request->released = true;
            bury_if_unnamed(request);
        }
        if (goes_on) scheduler_.reconsider();
    }
    free_the_buried();
    if (goes_on) wake_host();
}

Gauges Engine::gauges() const {
    return {
        .requests_running = scheduler_.running(),
        .requests_waiting = scheduler_.waiting() + mailbox_.sequences,
        .requests_waiting_poll = scheduler_.waiting_poll(),
        .requests_paused = scheduler_.paused(),
        .blocks_total = cache_.total(),
        .blocks_free = cache_.free_blocks(),
        .blocks_held = cache_.held_blocks(),
        .blocks_cached = cache_.cached_blocks(),
        .blocks_trimmed = cache_.away_blocks(),
        .blocks_pinned = pins_.blocks(),
        .blocks_evicted = cache_.evictions(),
    };
}

EngineStats Engine::stats() {
    const std::lock_guard lock(table_lock_);
    return {
        .figures = recorder_.metrics().snapshot(gauges()),
        .kv_bytes = memory_.kv.bytes_in_use(),
        .cost_ns = scheduler_.cost_model().coefficients(),
        .cost_error = scheduler_.cost_model().error(),
        .host_share = host_share_.share(),
    };
}

size_t Engine::metrics_text(std::span<char> out) {
    const std::lock_guard lock(table_lock_);
    return write_metrics_text(recorder_.metrics(), gauges(), out);
}

Status Engine::write_trace(TextSink& sink) {
    constexpr size_t piece_bytes = 64 << 10;
    AlignedArray<char> piece(&memory_.other, piece_bytes);
    TraceReader reader;
    while (!reader.done()) {
        size_t bytes = 0;
        {
            const std::lock_guard lock(table_lock_);
            bytes = reader.read(recorder_.trace(), {piece.data(), piece.size()});
        }
        if (bytes > 0 && !sink.write({piece.data(), bytes})) return Status::STOPPED;
    }
    return Status::OK;
}

bool Engine::consistent() {
    const std::lock_guard lock(table_lock_);
    return scheduler_.consistent(0);
}

void Engine::wake_host() {
    if (params_.wake != nullptr && !woken_.exchange(true, std::memory_order_acq_rel))
        params_.wake(params_.wake_user);
}

}  // namespace treadle
