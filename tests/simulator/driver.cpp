// Translates between the simulator's structs and the engine's interface.
#include "driver.h"

#include <algorithm>
#include <new>
#include <stdexcept>

namespace treadle::test {
namespace {

class CollectEvents final : public EventSink {
public:
    explicit CollectEvents(std::vector<PolledEvent>* out) : out_(out) {}
    bool take(const EventNode& event, std::span<const TokenLogprob> logprobs) override {
        PolledEvent& polled = out_->emplace_back();
        const Sequence& sequence = *event.sequence;
        const Request& request = *sequence.request;
        polled.request = request.id;
        polled.number = request.params.user_data;
        polled.sequence = sequence.index;
        polled.kind = event.kind;
        polled.position = event.position;
        polled.token = event.token;
        polled.logprob = event.logprob;
        polled.best.assign(logprobs.begin(), logprobs.begin() + event.logprob_count);
        polled.text.resize(event.text_bytes);
        sequence.room.copy_oldest_text(polled.text.data());
        polled.last = event.last;
        if (event.kind == EventKind::finished) {
            polled.reason = sequence.finish_reason;
            polled.status = sequence.failure;
        }
        return true;
    }

private:
    std::vector<PolledEvent>* out_;
};

}  // namespace

Driver::Driver(const FakeModelOptions& model, EngineParams params, FakeControl* control)
    : model_(model_memory_, model), params_(params) {
    params_.clock = clock_.hook();
    params_.wake_user = &wakes_;
    params_.wake = [](void* user) { ++*static_cast<int32_t*>(user); };
    control->clock = &clock_;
    Owned<Backend> backend = make_owned<FakeBackend>(&memory_.other, model_, *control);
    Error error;
    const EngineModel parts = {&model_.program(), &model_.rope(), &model_.vocabulary(), fingerprint(),
                               numerics_id};
    const Status status =
        make_engine(memory_, parts, model_.context(), params_, std::move(backend), &engine_, &error);
    if (status != Status::OK) throw std::runtime_error(std::string("make_engine: ") + error.message);
    params_ = engine_->params();
}

RequestParams Driver::params_of(const Submission& asked) {
    RequestParams params(&memory_.other);
    params.sampling = asked.sampling;
    params.first_sample = asked.first_sample;
    params.samples = asked.samples;
    params.beam_width = asked.beam_width;
    params.length_penalty = asked.length_penalty;
    params.generated_tail = asked.generated_tail;
    params.stop_tokens.assign(asked.stop_tokens.begin(), asked.stop_tokens.end());
    const std::vector<std::string_view> stops(asked.stop_strings.begin(), asked.stop_strings.end());
    if (params.stops.build(stops, nullptr) != Status::OK) throw std::runtime_error("bad stop strings");
    params.ignore_end = asked.ignore_end;
    params.keep = asked.keep;
    params.priority = asked.priority;
    params.deadline_us = asked.deadline_us;
    params.scope = asked.scope;
    params.user_data = asked.number;
    return params;
}

Status Driver::submit(const Submission& asked, uint64_t* id) {
    try {
        RequestParams params = params_of(asked);
        std::pmr::vector<int32_t> prompt(asked.prompt.begin(), asked.prompt.end(), &memory_.other);
        return engine_->submit(std::move(params), std::move(prompt), asked.max_tokens, id, nullptr);
    } catch (const std::bad_alloc&) {
        return Status::NOMEM;
    }
}

Status Driver::fork(uint64_t parent, int32_t sequence, int32_t position, const Submission* own,
                    int32_t max_tokens, uint64_t* id) {
    try {
        if (own == nullptr)
            return engine_->fork(parent, sequence, position, nullptr, max_tokens, id, nullptr);
        RequestParams params = params_of(*own);
        return engine_->fork(parent, sequence, position, &params, max_tokens, id, nullptr);
    } catch (const std::bad_alloc&) {
        return Status::NOMEM;
    }
}

Status Driver::pin(const Submission& asked, uint64_t* id) {
    try {
        RequestParams params = params_of(asked);
        std::pmr::vector<int32_t> prefix(asked.prompt.begin(), asked.prompt.end(), &memory_.other);
        return engine_->pin(std::move(params), std::move(prefix), id, nullptr);
    } catch (const std::bad_alloc&) {
        return Status::NOMEM;
    }
}

Status Driver::save(uint64_t id, int32_t sequence, std::optional<int32_t> position,
                    std::vector<std::byte>* bytes) {
    try {
        SessionState state(&memory_.other);
        TREADLE_TRY(engine_->save_session(id, sequence, position, &state, nullptr));
        bytes->resize(session_bytes(state));
        return encode_session(state, *bytes, nullptr);
    } catch (const std::bad_alloc&) {
        return Status::NOMEM;
    }
}

Status Driver::restore(std::span<const std::byte> bytes, const RestoreParams& asked, uint64_t* id) {
    try {
        SessionState state(&memory_.other);
        TREADLE_TRY(decode_session(bytes, &state, nullptr));
        return engine_->restore_session(state, asked, id, nullptr);
    } catch (const std::bad_alloc&) {
        return Status::NOMEM;
    }
}

std::vector<int32_t> Driver::tokens(uint64_t id, int32_t sequence) {
    size_t count = 0;
    std::vector<int32_t> out;
    if (engine_->sequence_tokens(id, sequence, out, &count, nullptr) != Status::BUFFER_TOO_SMALL) return out;
    out.resize(count);
    static_cast<void>(engine_->sequence_tokens(id, sequence, out, &count, nullptr));
    return out;
}

void Driver::poll(size_t capacity, std::vector<PolledEvent>* out) {
    CollectEvents sink(out);
    engine_->poll(sink, capacity);
}

}  // namespace treadle::test
