// The engine over the fake model.
#include "fake_engine.h"

#include "base/platform.h"
#include "serving/host.h"

namespace treadle::bench {
namespace {

// Passes everything on to the fake model's backend, and shows the watch what comes by.
class WatchedBackend final : public Backend {
public:
    WatchedBackend(const test::FakeModel& model, test::FakeControl& control, PassWatch watch)
        : inner_(model, control), watch_(std::move(watch)) {}

    size_t kv_bytes_per_block(const Program& program) const override {
        return inner_.kv_bytes_per_block(program);
    }
    Status kv_create(const Program& program, int32_t blocks, Error* error) override {
        return inner_.kv_create(program, blocks, error);
    }
    void* kv_allocate(int32_t slab) override { return inner_.kv_allocate(slab); }
    void kv_free(int32_t slab, void* memory) override { inner_.kv_free(slab, memory); }
    void* kv_exchange(int32_t slab, void* memory) override { return inner_.kv_exchange(slab, memory); }
    Status build(const Program& program, Dims max, Error* error) override {
        return inner_.build(program, max, error);
    }
    Status begin(const PassInput& input, Dims dims) override {
        if (watch_) watch_(input);
        return inner_.begin(input, dims);
    }
    AdvanceResult advance(int64_t deadline_ns, int32_t max_threads) override {
        return inner_.advance(deadline_ns, max_threads);
    }
    void abandon() override { inner_.abandon(); }
    PassResults results() const override { return inner_.results(); }

private:
    test::FakeBackend inner_;
    PassWatch watch_;
};

class CountEnds final : public EventSink {
public:
    bool take(const EventNode& event, std::span<const TokenLogprob>) override {
        ended += event.kind == EventKind::finished ? 1 : 0;
        return true;
    }
    int32_t ended = 0;
};

}  // namespace

FakeEngine::FakeEngine(const FakeEngineOptions& options) : model_(model_memory_, options.model) {
    control_.checking = options.checking;
    EngineParams params = options.params;
    params.clock = system_clock();
    Owned<Backend> backend = make_owned<WatchedBackend>(&memory_.other, model_, control_, options.watch);
    Error error;
    if (make_engine(memory_, {&model_.program(), &model_.rope(), &model_.vocabulary()}, model_.context(),
                    params, std::move(backend), &engine_, &error) != Status::OK)
        give_up(error.message);
}

void FakeEngine::submit(const std::vector<int32_t>& prompt, int32_t max_tokens, bool ignore_end,
                        float temperature, Priority priority) {
    RequestParams params(&memory_.other);
    params.priority = priority;
    params.ignore_end = ignore_end;
    params.sampling.temperature = temperature;
    uint64_t id = 0;
    Error error;
    if (engine_->submit(std::move(params), {prompt.begin(), prompt.end(), &memory_.other}, max_tokens, &id,
                        &error) != Status::OK)
        give_up(error.message);
}

StepReport FakeEngine::step(int64_t budget_us) {
    StepReport report;
    if (engine_->step({budget_us, 0}, &report) != Status::OK) give_up("a step failed");
    return report;
}

int32_t FakeEngine::poll() {
    CountEnds sink;
    engine_->poll(sink, SIZE_MAX);
    return sink.ended;
}

}  // namespace treadle::bench
