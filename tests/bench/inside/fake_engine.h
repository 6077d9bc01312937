// An engine over the fake model, for what a host can't see from outside: what a step costs beside the model's own time, and
// which block belongs to whom. Used by overhead.cpp and blocks.cpp.
//
// Invariant: the clock is the real one and passes take no time, so that a step's time is all the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/engine.h"
#include "support/fake_model.h"
#include "support/test_memory.h"

namespace treadle::bench {

// Sees what each pass is told.
using PassWatch = std::function<void(const PassInput&)>;

struct FakeEngineOptions {
    test::FakeModelOptions model;
    EngineParams params;  // the clock is filled in
    test::FakeControl::Checking checking = test::FakeControl::Checking::none;
    PassWatch watch;
};

class FakeEngine {
public:
    explicit FakeEngine(const FakeEngineOptions& options);
    FakeEngine(const FakeEngine&) = delete;
    FakeEngine& operator=(const FakeEngine&) = delete;

    void submit(const std::vector<int32_t>& prompt, int32_t max_tokens, bool ignore_end,
                float temperature = 0, Priority priority = Priority::normal);
    StepReport step(int64_t budget_us = 0);
    int32_t poll();  // returns how many sequences ended
    EngineStats stats() { return engine_->stats(); }
    int64_t allocations() const { return allocator_.calls(); }
    int64_t violations() const { return control_.violations; }

private:
    test::TestAllocator model_allocator_, allocator_;
    MemorySet model_memory_{model_allocator_.hooks()};
    MemorySet memory_{allocator_.hooks()};
    test::FakeModel model_;
    test::FakeControl control_;
    Owned<Engine> engine_;
};

}  // namespace treadle::bench
