// An engine of its own for requests that run_jobs does not know: samples, forks, priorities; its events are dropped, what it says
// is read from its sequences.
#pragma once

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "engine_harness.h"

namespace treadle::test {

// An engine of eight places over a loaded model.
struct EngineHost {
    explicit EngineHost(const LoadedModel& model, int32_t kv_blocks = 64, int32_t max_requests = 1024) {
        EngineParams params;
        params.max_sequences = 8;
        params.max_batch_tokens = 48;
        params.kv_blocks = kv_blocks;
        params.max_requests = max_requests;
        engine = make_engine_over(model, memory, params);
    }
    RequestParams asked(uint64_t seed, int32_t samples = 1) {
        RequestParams params(&memory.other);
        params.sampling.temperature = 1;
        params.sampling.seed = seed;
        params.samples = samples;
        params.ignore_end = true;
        params.keep = true;
        return params;
    }
    uint64_t submit(RequestParams&& params, const std::vector<int32_t>& prompt, int32_t max_tokens) {
        uint64_t id = 0;
        std::pmr::vector<int32_t> tokens(prompt.begin(), prompt.end(), &memory.other);
        REQUIRE(engine->submit(std::move(params), std::move(tokens), max_tokens, &id, nullptr) == Status::OK);
        return id;
    }
    void run(int32_t steps = INT32_MAX) {
        StepReport report;
        DropEvents sink;
        for (int32_t i = 0; i < steps; i++) {
            REQUIRE(engine->step({}, &report) == Status::OK);
            engine->poll(sink, SIZE_MAX);
            if (report.next_step_us != 0) return;
        }
    }
    std::vector<int32_t> tokens(uint64_t id, int32_t sequence = 0) {
        std::vector<int32_t> out(4096);
        size_t count = 0;
        REQUIRE(engine->sequence_tokens(id, sequence, out, &count, nullptr) == Status::OK);
        out.resize(count);
        return out;
    }

    TestAllocator allocator;
    MemorySet memory{allocator.hooks()};
    Owned<Engine> engine;
};

// Tokens that every vocabulary of the tests has.
inline std::vector<int32_t> random_prompt(uint64_t seed, size_t count) {
    Random random(seed);
    std::vector<int32_t> prompt(count);
    for (int32_t& token : prompt) token = static_cast<int32_t>(random.below(320));
    return prompt;
}

}  // namespace treadle::test
