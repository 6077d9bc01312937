// The engine over the fake model, where a test needs a row to be what no real model makes of it.
#include <doctest/doctest.h>

#include <vector>

#include "engine/engine.h"
#include "support/fake_model.h"
#include "test_memory.h"

using namespace treadle;
using namespace treadle::test;

namespace {

class NoteEnds final : public EventSink {
public:
    bool take(const EventNode& event, std::span<const TokenLogprob>) override {
        if (event.kind == EventKind::finished) statuses.push_back(event.sequence->failure);
        return true;
    }
    std::vector<Status> statuses;
};

// An engine over a model whose rows now and then hold a NaN.
struct Host {
    explicit Host(uint64_t seed) : model(model_memory, {.seed = seed, .end_period = 0, .nan_period = 20}) {
        control.clock = &clock;
        EngineParams params;
        params.max_sequences = 4;
        params.kv_blocks = 64;
        params.clock = clock.hook();
        Error error;
        REQUIRE(make_engine(memory, {&model.program(), &model.rope(), &model.vocabulary()}, model.context(),
                            params, make_owned<FakeBackend>(&memory.other, model, control), &engine,
                            &error) == Status::OK);
    }
    uint64_t submit(int32_t samples, int32_t max_tokens) {
        RequestParams asked(&memory.other);
        asked.sampling.temperature = 1;
        asked.samples = samples;
        asked.keep = true;
        std::pmr::vector<int32_t> prompt({4, 5, 6}, &memory.other);
        uint64_t id = 0;
        REQUIRE(engine->submit(std::move(asked), std::move(prompt), max_tokens, &id, nullptr) == Status::OK);
        return id;
    }

    TestAllocator model_allocator, allocator;
    MemorySet model_memory{model_allocator.hooks()};
    MemorySet memory{allocator.hooks()};
    FakeModel model;
    FakeControl control;
    VirtualClock clock;
    Owned<Engine> engine;
};

}  // namespace

TEST_CASE("a failure of the backend leaves alone what a sequence of the same request failed of before") {
    int seen = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        CAPTURE(seed);
        Host host(seed);
        const uint64_t id = host.submit(4, 200);
        NoteEnds ends;
        StepReport report;
        while (ends.statuses.empty()) {
            REQUIRE(host.engine->step({}, &report) == Status::OK);
            host.engine->poll(ends, SIZE_MAX);
        }
        const size_t before = ends.statuses.size();
        if (before == 4) continue;  // a NaN that all of them met
        RequestInfo info;
        host.control.fail_next_begin = Status::INTERNAL;
        REQUIRE(host.engine->step({}, &report) == Status::INTERNAL);
        host.engine->poll(ends, SIZE_MAX);
        REQUIRE(ends.statuses.size() == 4);
        for (size_t i = 0; i < 4; i++)
            CHECK(ends.statuses[i] == (i < before ? Status::NOT_A_NUMBER : Status::INTERNAL));
        REQUIRE(host.engine->request_info(id, &info) == Status::OK);
        CHECK(info.failure.status == Status::NOT_A_NUMBER);  // the first
        seen++;
    }
    CHECK(seen > 10);
}

TEST_CASE("an end that waits to be polled keeps its failure when the backend fails") {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        CAPTURE(seed);
        Host host(seed);
        host.submit(2, 200);
        StepReport report;
        do {
            REQUIRE(host.engine->step({}, &report) == Status::OK);
        } while (report.running == 2);
        host.control.fail_next_begin = Status::INTERNAL;
        const Status status = host.engine->step({}, &report);
        NoteEnds ends;
        host.engine->poll(ends, SIZE_MAX);
        REQUIRE(ends.statuses.size() == 2);
        CHECK(ends.statuses[0] == Status::NOT_A_NUMBER);
        CHECK(ends.statuses[1] == (status == Status::OK ? Status::NOT_A_NUMBER : Status::INTERNAL));
    }
}
