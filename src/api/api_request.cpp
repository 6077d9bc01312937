// Requests: submit, cancel, release, questions about them, and polling their events.
#include <algorithm>
#include <cmath>

#include "api/handles.h"
#include "api/params.h"
#include "api/prompt.h"
#include "api/structs.h"
#include "base/limits.h"

namespace treadle {

namespace {

engine_request_params default_request_params() {
    engine_request_params params = {};
    params.max_tokens = 256;
    params.part_size = sizeof(engine_part);
    params.stop_string_size = sizeof(engine_text);
    params.top_p = 1;
    params.samples = 1;
    params.priority = ENGINE_PRIORITY_NORMAL;
    params.prefix_cache = 1;
    params.beam_width = 1;
    params.length_penalty = 1;
    return params;
}

Status read_stops(const engine_request_params& in, const Vocabulary& vocabulary, Memory* memory,
                  RequestParams* out, Error* error) {
    if (in.stop_string_count > 0 && in.stop_strings == nullptr)
        return fail(error, Status::INVALID_ARGUMENT, "stop_strings is null, stop_string_count is %zu",
                    in.stop_string_count);
    if (in.stop_token_count > 0 && in.stop_tokens == nullptr)
        return fail(error, Status::INVALID_ARGUMENT, "stop_tokens is null, stop_token_count is %zu",
                    in.stop_token_count);
    if (in.stop_token_count > static_cast<size_t>(limits::stop_tokens_max))
        return fail(error, Status::LIMIT, "stop_token_count is %zu, at most %d are taken",
                    in.stop_token_count, limits::stop_tokens_max);
    if (in.stop_string_count > static_cast<size_t>(limits::stop_strings_max))
        return fail(error, Status::LIMIT, "stop_string_count is %zu, at most %d are taken",
                    in.stop_string_count, limits::stop_strings_max);
    for (size_t i = 0; i < in.stop_token_count; i++) {
        if (in.stop_tokens[i] < 0 || in.stop_tokens[i] >= vocabulary.size())
            return fail(error, Status::TOKEN_OUT_OF_RANGE,
                        "stop_tokens[%zu] is %d, the vocabulary has %d tokens", i, in.stop_tokens[i],
                        vocabulary.size());
        out->stop_tokens.push_back(in.stop_tokens[i]);
    }
    std::pmr::vector<std::string_view> strings(memory);
    for (size_t i = 0; i < in.stop_string_count; i++) {
        engine_text stop = {nullptr, 0};
        TREADLE_TRY(api::read_element("engine_text", in.stop_strings, in.stop_string_size, i, &stop, error));
        std::string_view text;
        TREADLE_TRY(api::view_of({"stop_strings", i, "text"}, stop.text, stop.bytes, &text, error));
        strings.push_back(text);
    }
    return out->stops.build(strings, error);
}

// A beam search chooses by probability alone; what would draw, or look at the text, has no meaning in it.
Status read_beams(const engine_request_params& in, RequestParams* out, Error* error) {
    const auto number = [](float value) { return static_cast<double>(value); };
    if (in.beam_width < 1 || in.beam_width > limits::beam_width_max)
        return fail(error, Status::INVALID_ARGUMENT, "beam_width is %d, must be 1 (off) to %d", in.beam_width,
                    limits::beam_width_max);
    if (!(in.length_penalty >= -4 && in.length_penalty <= 4))
        return fail(error, Status::INVALID_ARGUMENT, "length_penalty is %.9g, must be -4 to 4",
                    number(in.length_penalty));
    out->beam_width = in.beam_width;
    out->length_penalty = in.length_penalty;
    if (in.beam_width == 1) return Status::OK;
    const auto refuse = [&](const char* field, double value, double wanted) {
        return fail(error, Status::INVALID_ARGUMENT, "%s is %.9g, with a beam_width it must be %g", field,
                    value, wanted);
    };
    if (in.temperature != 0) return refuse("temperature", number(in.temperature), 0);
    if (in.top_k != 0) return refuse("top_k", in.top_k, 0);
    if (in.top_p != 1) return refuse("top_p", number(in.top_p), 1);
    if (in.min_p != 0) return refuse("min_p", number(in.min_p), 0);
    if (in.logprobs != 0) return refuse("logprobs", in.logprobs, 0);
    if (in.samples > in.beam_width)
        return fail(error, Status::INVALID_ARGUMENT, "samples is %d, must be 1 to the beam_width of %d",
                    in.samples, in.beam_width);
    return Status::OK;
}

Status read_request(const engine_request_params& in, const Vocabulary& vocabulary, Memory* memory,
                    RequestParams* out, Error* error) {
    if (in.max_tokens == 0 || in.max_tokens < -1)
        return fail(error, Status::INVALID_ARGUMENT,
                    "max_tokens is %d, must be at least 1, or -1 for as many as fit", in.max_tokens);
    out->sampling.temperature = in.temperature;
    out->sampling.top_k = in.top_k;
    out->sampling.top_p = in.top_p;
    out->sampling.min_p = in.min_p;
    out->sampling.seed = in.seed;
    out->sampling.logprobs = in.logprobs;
    TREADLE_TRY(check_sampling(out->sampling, error));
    out->first_sample = in.first_sample;
    out->ignore_end = in.ignore_end != 0;
    out->keep = in.keep != 0;
    out->user_data = in.user_data;
    if (in.samples < 1 || in.samples > limits::samples_max)
        return fail(error, Status::INVALID_ARGUMENT, "samples is %d, must be 1 to %d", in.samples,
                    limits::samples_max);
    out->samples = in.samples;
    TREADLE_TRY(read_beams(in, out, error));
    TREADLE_TRY(api::read_deadline(in.deadline_us, &out->deadline_us, error));
    out->scope = {in.cache_salt, in.prefix_cache == 0};
    TREADLE_TRY(api::read_priority(in.priority, &out->priority, error));
    return read_stops(in, vocabulary, memory, out, error);
}

Status submit(engine* e, const engine_request_params* in, engine_request* id, Error* error) {
    engine_request_params params = default_request_params();
    TREADLE_TRY(api::read_struct("engine_request_params", in, &params, error));
    RequestParams wanted(&e->memory.other);
    TREADLE_TRY(read_request(params, e->model->model->vocabulary(), &e->memory.other, &wanted, error));
    std::pmr::vector<int32_t> prompt(&e->memory.other);
    TREADLE_TRY(
        api::build_prompt(*e->model, params.parts, params.part_size, params.part_count, &prompt, error));
    if (prompt.empty())
        return fail(error, Status::INVALID_ARGUMENT, "the prompt has no token in its %zu parts",
                    params.part_count);
    if (prompt.size() > limits::context_max)
        return fail(error, Status::PROMPT_TOO_LONG, "the prompt has %zu tokens, at most %u are taken",
                    prompt.size(), limits::context_max);
    if (params.generated_tail < 0 || static_cast<size_t>(params.generated_tail) >= prompt.size())
        return fail(error, Status::INVALID_ARGUMENT,
                    "generated_tail is %d, must be less than the prompt's %zu tokens", params.generated_tail,
                    prompt.size());
    wanted.generated_tail = params.generated_tail;
    return e->core->submit(std::move(wanted), std::move(prompt), params.max_tokens, id, error);
}

Status fork(engine* e, engine_request parent, int32_t sequence, int32_t position,
            const engine_request_params* in, engine_request* id, Error* error) {
    if (in == nullptr) return e->core->fork(parent, sequence, position, nullptr, 0, id, error);
    engine_request_params params = default_request_params();
    TREADLE_TRY(api::read_struct("engine_request_params", in, &params, error));
    if (params.part_count != 0)
        return fail(error, Status::INVALID_ARGUMENT, "part_count is %zu, a fork has its parent's tokens",
                    params.part_count);
    RequestParams wanted(&e->memory.other);
    TREADLE_TRY(read_request(params, e->model->model->vocabulary(), &e->memory.other, &wanted, error));
    return e->core->fork(parent, sequence, position, &wanted, params.max_tokens, id, error);
}

constexpr size_t padded(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

// Writes events at the caller's stride, and their payloads into the caller's bytes.
class CallerEvents final : public EventSink {
public:
    CallerEvents(void* events, size_t stride, char* bytes, size_t bytes_capacity)
        : events_(static_cast<char*>(events)), stride_(stride), bytes_(bytes),
          bytes_capacity_(bytes_capacity) {}

    bool take(const EventNode& event, std::span<const TokenLogprob> logprobs) override {
        const size_t best_bytes = static_cast<size_t>(event.logprob_count) * sizeof(engine_logprob);
        const size_t payload_bytes = padded(event.text_bytes) + padded(best_bytes);
        if (payload_bytes > bytes_capacity_ - used) {
            needed = payload_bytes;
            return false;
        }
        const Sequence& sequence = *event.sequence;
        const Request& request = *sequence.request;
        engine_event value = {};
        value.kind = static_cast<int32_t>(event.kind);
        value.sequence = sequence.index;
        value.request = request.id;
        value.user_data = request.params.user_data;
        value.position = event.position;
        value.token = event.token;
        (event.kind == EventKind::finished ? value.score : value.logprob) = event.logprob;
        value.text_offset = used;
        value.text_bytes = event.text_bytes;
        if (event.text_bytes > 0) sequence.room.copy_oldest_text(bytes_ + used);
        used += padded(event.text_bytes);
        value.logprobs_offset = used;
        value.logprob_count = event.logprob_count;
        static_assert(sizeof(engine_logprob) == sizeof(TokenLogprob));
        if (best_bytes > 0) std::memcpy(bytes_ + used, logprobs.data(), best_bytes);
        used += padded(best_bytes);
        if (event.kind == EventKind::progress) value.prompt_tokens = sequence.given_tokens;
        if (event.kind == EventKind::finished) {
            value.prompt_tokens = sequence.prompt_tokens;
            value.finish_reason = static_cast<int32_t>(sequence.finish_reason);
            value.status = static_cast<engine_status>(sequence.failure);
            value.generated_tokens = event.position - sequence.prompt_tokens;
            value.cached_tokens = std::max(sequence.cached_tokens, 0);
            value.last = event.last ? 1 : 0;
        }
        api::write_sized(events_ + count * stride_, stride_, value);
        count++;
        return true;
    }

    size_t count = 0;
    size_t used = 0;
    size_t needed = 0;

private:
    char* events_;
    size_t stride_;
    char* bytes_;
    size_t bytes_capacity_;
};

}  // namespace

extern "C" {

ENGINE_API engine_status engine_request_params_init(engine_request_params* params, size_t size) {
    return api::init_struct(params, size, default_request_params());
}

ENGINE_API engine_status engine_submit(engine* e, const engine_request_params* params, engine_request* id,
                                       engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(e);
        TREADLE_REQUIRE(params);
        TREADLE_REQUIRE(id);
        return submit(e, params, id, error);
    });
}

ENGINE_API engine_status engine_fork(engine* e, engine_request parent, int32_t sequence, int32_t position,
                                     const engine_request_params* params, engine_request* id,
                                     engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(e);
        TREADLE_REQUIRE(id);
        return fork(e, parent, sequence, position, params, id, error);
    });
}

ENGINE_API engine_status engine_set_priority(engine* e, engine_request id, int32_t priority) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        Priority wanted = Priority::normal;
        TREADLE_TRY(api::read_priority(priority, &wanted, error));
        return e->core->set_priority(id, wanted);
    });
}

ENGINE_API engine_status engine_cancel(engine* e, engine_request id) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        return e->core->cancel(id);
    });
}

ENGINE_API engine_status engine_release(engine* e, engine_request id) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        return e->core->release(id);
    });
}

ENGINE_API engine_status engine_request_info_init(engine_request_info* info, size_t size) {
    return api::init_struct(info, size, engine_request_info{});
}

ENGINE_API engine_status engine_request_get_info(engine* e, engine_request id, engine_request_info* info) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        TREADLE_REQUIRE(info);
        RequestInfo now;
        TREADLE_TRY(e->core->request_info(id, &now));
        engine_request_info value = {};
        value.state = now.paused           ? ENGINE_REQUEST_PAUSED
                      : now.waits_for_poll ? ENGINE_REQUEST_WAITING_POLL
                                           : static_cast<int32_t>(now.state);
        value.sequences = now.sequences;
        value.cached_tokens = now.cached_tokens;
        value.prompt_tokens = now.prompt_tokens;
        value.prompt_tokens_done = now.prompt_tokens_done;
        value.generated_tokens = now.generated_tokens;
        value.queue_place = now.queue_place;
        value.finish_reason = static_cast<int32_t>(now.finish_reason);
        value.status = static_cast<engine_status>(now.failure.status);
        static_assert(sizeof value.message == sizeof now.failure.message);
        std::memcpy(value.message, now.failure.message, sizeof value.message);
        return api::write_struct("engine_request_info", info, value, error);
    });
}

ENGINE_API engine_status engine_sequence_tokens(engine* e, engine_request id, int32_t sequence,
                                                int32_t* tokens, size_t capacity, size_t* count) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        if (capacity > 0) TREADLE_REQUIRE(tokens);
        size_t size = 0;
        const Status status = e->core->sequence_tokens(id, sequence, {tokens, capacity}, &size, error);
        if (count != nullptr && (status == Status::OK || status == Status::BUFFER_TOO_SMALL)) *count = size;
        return status;
    });
}

ENGINE_API engine_status engine_poll_tokens(engine* e, engine_event* events, size_t event_size,
                                            size_t capacity, size_t* count, void* bytes,
                                            size_t bytes_capacity, size_t* bytes_used, size_t* bytes_needed) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        if (capacity > 0) TREADLE_REQUIRE(events);
        if (bytes_capacity > 0) TREADLE_REQUIRE(bytes);
        if (capacity > 0 && (event_size < api::struct_bytes_min || event_size > api::struct_bytes_max))
            return fail(error, Status::STRUCT_SIZE, "event_size is %zu", event_size);
        CallerEvents sink(events, event_size, static_cast<char*>(bytes), bytes_capacity);
        e->core->poll(sink, capacity);
        if (count != nullptr) *count = sink.count;
        if (bytes_used != nullptr) *bytes_used = sink.used;
        if (bytes_needed != nullptr) *bytes_needed = sink.needed;
        return sink.count == 0 && sink.needed > 0 ? Status::BUFFER_TOO_SMALL : Status::OK;
    });
}

}  // extern "C"

}  // namespace treadle
