// The one place where the simulator touches the engine's interface: an engine over the fake model, with a counted allocator and a
// virtual clock, and plain structs in and out. When that interface grows, this file and driver.cpp grow with it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/session.h"
#include "support/fake_model.h"
#include "support/test_memory.h"

namespace treadle::test {

struct Submission {
    // One answer, chosen token by token.
    bool is_plain() const { return samples == 1 && beam_width == 1 && !pin; }
    std::vector<int32_t> prompt;
    SamplingParams sampling;
    uint64_t first_sample = 0;
    int32_t samples = 1;
    int32_t beam_width = 1;
    float length_penalty = 1;
    bool pin = false;  // of its prompt, scope and priority count
    int32_t generated_tail = 0;
    int32_t max_tokens = 0;  // negative: as many as there is room for
    Priority priority = Priority::normal;
    int64_t deadline_us = 0;
    CacheScope scope;
    bool ignore_end = false;
    bool keep = false;
    std::vector<int32_t> stop_tokens;
    std::vector<std::string> stop_strings;
    uint64_t number = 0;  // comes back with every event
};

struct PolledEvent {
    uint64_t request = 0;
    uint64_t number = 0;
    int32_t sequence = 0;
    EventKind kind = EventKind::token;
    int32_t position = 0;
    int32_t token = -1;
    float logprob = 0;  // of a finish: the score
    std::vector<TokenLogprob> best;
    std::string text;
    FinishReason reason = FinishReason::none;  // of a finish
    Status status = Status::OK;                // of a finish
    bool last = false;                         // of a finish
};

class Driver {
public:
    // The parameters' clock and the control's clock become the driver's own.
    Driver(const FakeModelOptions& model, EngineParams params, FakeControl* control);

    // NOMEM where the allocator failed.
    Status submit(const Submission& asked, uint64_t* id);
    // Without `own` the fork has its parent's parameters. max_tokens is 0 for the parent's limit.
    Status fork(uint64_t parent, int32_t sequence, int32_t position, const Submission* own,
                int32_t max_tokens, uint64_t* id);
    Status pin(const Submission& asked, uint64_t* id);
    Status unpin(uint64_t id) { return engine_->unpin(id); }
    // As bytes; position: none for all of it as it is.
    Status save(uint64_t id, int32_t sequence, std::optional<int32_t> position,
                std::vector<std::byte>* bytes);
    Status restore(std::span<const std::byte> bytes, const RestoreParams& asked, uint64_t* id);
    Status set_priority(uint64_t id, Priority priority) { return engine_->set_priority(id, priority); }
    Status cancel(uint64_t id) { return engine_->cancel(id); }
    uint64_t trim() { return engine_->trim(); }
    Status release(uint64_t id) { return engine_->release(id); }
    Status info(uint64_t id, RequestInfo* out) { return engine_->request_info(id, out); }
    std::vector<int32_t> tokens(uint64_t id, int32_t sequence);
    Status step(int64_t budget_us, StepReport* report) { return engine_->step({budget_us, 0}, report); }
    void poll(size_t capacity, std::vector<PolledEvent>* out);
    EngineStats all_stats() { return engine_->stats(); }
    MetricsSnapshot stats() { return engine_->stats().figures; }
    bool consistent() { return engine_->consistent(); }
    int32_t take_wakes() {
        return std::exchange(wakes_, 0);
    }  // calls of the wake hook since it was asked last
    void destroy() { engine_.reset(); }

    static constexpr char numerics_id[] = "fake-1";
    uint64_t fingerprint() const { return model_.empty_prefix(); }

    const EngineParams& params() const { return params_; }
    const FakeModel& model() const { return model_; }
    TestAllocator& allocator() { return allocator_; }
    VirtualClock& clock() { return clock_; }
    Memory* test_memory() { return &model_memory_.other; }

private:
    RequestParams params_of(const Submission& asked);

    TestAllocator model_allocator_;
    MemorySet model_memory_{model_allocator_.hooks()};
    FakeModel model_;
    VirtualClock clock_;
    int32_t wakes_ = 0;
    EngineParams params_;
    TestAllocator allocator_;  // of the engine alone, so that a step's allocations show
    MemorySet memory_{allocator_.hooks()};
    Owned<Engine> engine_;
};

}  // namespace treadle::test
