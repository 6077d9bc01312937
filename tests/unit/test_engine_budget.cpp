// Where a step with a budget may stop: in the preparation of a pass and among the draws of its tokens too, not only between
// the backend's tiles. The backend here computes nothing, so that whatever time goes by is the engine's own.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "engine_harness.h"

using namespace treadle;
using namespace treadle::test;

namespace {

// Its passes are done at once; the likeliest token is always the same.
class IdleBackend final : public Backend {
public:
    IdleBackend(int32_t vocabulary, int* begins) : vocabulary_(vocabulary), begins_(begins) {}
    size_t kv_bytes_per_block(const Program&) const override { return 16; }
    Status kv_create(const Program&, int32_t, Error*) override { return Status::OK; }
    void* kv_allocate(int32_t) override { return this; }
    void kv_free(int32_t, void*) override {}
    void* kv_exchange(int32_t, void*) override { return this; }
    Status build(const Program&, Dims max, Error*) override {
        RowResult row = {};
        row.usable = 1;
        row.count = std::min(vocabulary_, limits::candidates_kept);
        row.sum = row.sum_scaled = 1;
        for (int32_t i = 0; i < row.count; i++) row.best[i] = {static_cast<float>(-i), i + 5};
        rows_.assign(static_cast<size_t>(max.logit_rows), row);
        logits_.assign(static_cast<size_t>(max.logit_rows) * static_cast<size_t>(vocabulary_), 0.0f);
        return Status::OK;
    }
    Status begin(const PassInput&, Dims dims) override {
        ++*begins_;
        count_ = static_cast<size_t>(dims.logit_rows);
        return Status::OK;
    }
    AdvanceResult advance(int64_t, int32_t) override { return {}; }
    void abandon() override {}
    PassResults results() const override { return {{rows_.data(), count_}, logits_.data()}; }

private:
    int32_t vocabulary_;
    int* begins_;
    std::vector<RowResult> rows_;
    std::vector<float> logits_;
    size_t count_ = 0;
};

struct Bench {
    explicit Bench(const LoadedModel& model) {
        EngineParams params;
        params.max_sequences = 8;
        params.max_batch_tokens = 240;
        params.kv_blocks = 200;
        params.clock = clock.hook();
        Owned<Backend> backend = make_owned<IdleBackend>(&memory.other, model.program().vocabulary, &begins);
        Error error;
        REQUIRE(make_engine(memory, {&model.program(), &model.model().rope_table(), &model.vocabulary()},
                            model.model().hyper_parameters().context, params, std::move(backend), &engine,
                            &error) == Status::OK);
    }
    uint64_t submit(int32_t prompt_tokens, int32_t max_tokens) {
        RequestParams asked(&memory.other);
        asked.ignore_end = true;
        asked.sampling.top_k = 1;  // a draw, though of one: the clock is looked at after each
        uint64_t id = 0;
        std::pmr::vector<int32_t> prompt(static_cast<size_t>(prompt_tokens), 9, &memory.other);
        REQUIRE(engine->submit(std::move(asked), std::move(prompt), max_tokens, &id, nullptr) == Status::OK);
        return id;
    }
    int steps_to_the_end_of_a_pass() {
        for (int steps = 1;; steps++) {
            REQUIRE(engine->step({1, 0}, &report) == Status::OK);
            if (report.passes > 0) return steps;
            REQUIRE(report.next_step_us == 0);
            REQUIRE(steps < 1000);
        }
    }

    TestAllocator allocator;
    MemorySet memory{allocator.hooks()};
    TickingClock clock;  // each look at it costs a microsecond, so a budget of one is over at the second
    int begins = 0;
    StepReport report;
    Owned<Engine> engine;
};

}  // namespace

TEST_CASE("a budget cuts the preparation of a large pass, and the draws of many rows") {
    const auto model = load_bytes(tiny_llama(3).bytes());
    Bench large(*model);
    large.submit(200, 2);
    for (int i = 0; i < 5; i++) REQUIRE(large.engine->step({1, 0}, &large.report) == Status::OK);
    CHECK(large.begins == 0);
    CHECK(large.report.time_us < 10);
    CHECK(large.report.next_step_us == 0);
    CHECK(large.report.running == 1);
    CHECK(large.steps_to_the_end_of_a_pass() + 5 ==
          (200 + 15) / 16 + 1);  // one for each piece of sixteen rows, then the pass
    CHECK(large.begins == 1);
    CHECK(large.report.tokens_produced == 1);

    Bench many(*model);
    for (int i = 0; i < 8; i++) many.submit(1, 4);
    REQUIRE(many.engine->step({}, &many.report) == Status::OK);
    CHECK(many.report.tokens_produced == 8);
    CHECK(many.steps_to_the_end_of_a_pass() >= 8);
    CHECK(many.report.tokens_produced == 8);
    CHECK(many.report.time_us < 10);
}

TEST_CASE("a cancel or release among the draws of a pass takes effect like any other") {
    const auto model = load_bytes(tiny_llama(3).bytes());
    for (int steps = 0; steps < 12; steps++) {
        CAPTURE(steps);
        Bench bench(*model);
        std::vector<uint64_t> ids;
        for (int i = 0; i < 8; i++) ids.push_back(bench.submit(1, 3));
        REQUIRE(bench.engine->step({}, &bench.report) == Status::OK);
        for (int i = 0; i < steps; i++) REQUIRE(bench.engine->step({1, 0}, &bench.report) == Status::OK);
        CHECK(bench.engine->cancel(ids[1]) == Status::OK);
        CHECK(bench.engine->cancel(ids[6]) == Status::OK);
        CHECK(bench.engine->release(ids[3]) == Status::OK);
        REQUIRE(bench.engine->step({1, 0}, &bench.report) == Status::OK);
        RequestInfo info;
        REQUIRE(bench.engine->request_info(ids[6], &info) == Status::OK);
        CHECK(info.finish_reason == FinishReason::cancelled);
        CHECK(bench.engine->request_info(ids[3], &info) == Status::STALE_ID);
        while (bench.report.next_step_us == 0)
            REQUIRE(bench.engine->step({1, 0}, &bench.report) == Status::OK);
        REQUIRE(bench.engine->request_info(ids[7], &info) == Status::OK);
        CHECK(info.finish_reason == FinishReason::length);
        CHECK(info.generated_tokens == 3);
        CHECK(bench.report.free_blocks == 200);
    }
}
