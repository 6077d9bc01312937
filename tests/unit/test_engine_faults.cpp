// The engine over the tests' own backend, which is late, pending, poisoning and failing: what it computes stays the
// same, and a failure ends every request once, leaves polling, releasing and destroying intact, and leaks nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "engine_harness.h"
#include "test_backend_double.h"

using namespace treadle;
using namespace treadle::test;

namespace {

// What the events of one request said.
struct Told {
    std::vector<int32_t> tokens;
    int ends = 0;
    FinishReason reason = FinishReason::none;
    Status status = Status::OK;
};

class NoteEvents final : public EventSink {
public:
    bool take(const EventNode& event, std::span<const TokenLogprob>) override {
        Told& told = stories[event.sequence->request->id];
        CHECK(told.ends == 0);  // the final event is the last
        if (event.kind == EventKind::token) told.tokens.push_back(event.token);
        if (event.kind != EventKind::finished) return true;
        told.ends++;
        told.reason = event.sequence->finish_reason;
        told.status = event.sequence->failure;
        return true;
    }
    std::map<uint64_t, Told> stories;
};

// An engine over the double, with a clock that cuts passes.
class Rig {
public:
    Rig(const LoadedModel& model, const tests::DoublePlan& wanted, int32_t max_sequences = 4)
        : plan(wanted), store_(model.model().weight_store(), plan) {
        Error error;
        Owned<Backend> backend;
        REQUIRE(store_.make_backend({1, {}, clock_.hook()}, memory_, &backend, &error) == Status::OK);
        EngineParams params;
        params.max_sequences = max_sequences;
        params.max_batch_tokens = 24;
        params.max_requests = 12;
        params.kv_blocks = 24;
        params.clock = clock_.hook();
        REQUIRE(make_engine(memory_, {&model.program(), &model.model().rope_table(), &model.vocabulary()},
                            model.model().hyper_parameters().context, params, std::move(backend), &engine,
                            &error) == Status::OK);
    }

    Status submit(const Job& job, uint64_t* id, bool keep = false) {
        RequestParams asked(&memory_.other);
        asked.sampling = job.sampling;
        asked.ignore_end = true;
        asked.keep = keep;
        std::pmr::vector<int32_t> prompt(job.prompt.begin(), job.prompt.end(), &memory_.other);
        return engine->submit(std::move(asked), std::move(prompt), job.max_tokens, id, nullptr);
    }
    uint64_t submit(const Job& job, bool keep = false) {
        uint64_t id = 0;
        REQUIRE(submit(job, &id, keep) == Status::OK);
        return id;
    }
    uint64_t pin(const std::vector<int32_t>& prefix) {
        uint64_t id = 0;
        std::pmr::vector<int32_t> tokens(prefix.begin(), prefix.end(), &memory_.other);
        REQUIRE(engine->pin(RequestParams(&memory_.other), std::move(tokens), &id, nullptr) == Status::OK);
        return id;
    }
    Status step(int64_t budget_us = 0) { return engine->step({budget_us, 0}, &report); }
    void poll(size_t capacity = SIZE_MAX) { engine->poll(sink, capacity); }

    TestAllocator allocator;
    tests::DoublePlan plan;
    NoteEvents sink;
    StepReport report;

private:
    MemorySet memory_{allocator.hooks()};
    TickingClock clock_;
    tests::DoubleStore store_;

public:
    Owned<Engine> engine;
};

std::vector<Job> some_jobs(uint64_t seed, size_t count) {
    Random random(seed);
    std::vector<Job> jobs(count);
    for (Job& job : jobs) {
        job.prompt.resize(1 + random.below(50));
        for (int32_t& token : job.prompt) token = static_cast<int32_t>(random.below(320));
        job.max_tokens = static_cast<int32_t>(1 + random.below(12));
        job.sampling.temperature = random.below(2) == 0 ? 0.0f : 1.0f;
        job.sampling.seed = random.next();
    }
    return jobs;
}

std::vector<int32_t> answer_of(const std::vector<int32_t>& tokens, const Job& job) {
    return {tokens.begin() + static_cast<std::ptrdiff_t>(job.prompt.size()), tokens.end()};
}

// Submits the jobs of a test of failures: some run, some wait, one is over and unpolled, one is kept.
std::vector<uint64_t> fill(Rig& rig, const std::vector<Job>& jobs) {
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < jobs.size(); i++) ids.push_back(rig.submit(jobs[i], i % 3 == 0));
    return ids;
}

}  // namespace

TEST_CASE("a late, pending and poisoning backend changes no token") {
    const auto model = load_bytes(tiny_llama(7).bytes());
    const std::vector<Job> jobs = some_jobs(1, 9);
    const Outcome expected = run_jobs(*model, jobs, {});
    for (uint32_t seed = 1; seed <= 6; seed++) {
        for (const int64_t budget_us : {int64_t{0}, int64_t{1}, int64_t{40}, INT64_MAX}) {
            CAPTURE(seed);
            CAPTURE(budget_us);
            tests::DoublePlan plan;
            plan.seed = seed;
            plan.late_calls = static_cast<int32_t>(seed % 3);
            plan.pending_rate = seed % 2 == 0 ? 0.5 : 0.1;
            plan.cut_every_tile = seed > 3;
            Rig rig(*model, plan);
            const std::vector<uint64_t> ids = fill(rig, jobs);
            for (int i = 0; i < 100000; i++) {
                REQUIRE(rig.step(budget_us) == Status::OK);
                if (i % 7 == 0) rig.poll(3);
                if (rig.report.next_step_us != 0) break;
            }
            rig.poll();
            for (size_t i = 0; i < jobs.size(); i++) {
                const Told& told = rig.sink.stories[ids[i]];
                CHECK(told.ends == 1);
                CHECK(told.reason == FinishReason::length);
                CHECK(told.tokens == answer_of(expected.tokens[i], jobs[i]));
            }
            CHECK(rig.plan.pendings > 0);
            CHECK(rig.report.free_blocks == 24);
        }
    }
}

TEST_CASE("a backend that fails ends every live request once, with its status, and nothing else breaks") {
    const auto model = load_bytes(tiny_llama(7).bytes());
    const std::vector<Job> jobs = some_jobs(2, 9);
    const Outcome expected = run_jobs(*model, jobs, {});
    for (int steps_before = 0; steps_before < 14; steps_before++) {
        for (const bool in_begin : {true, false}) {
            CAPTURE(steps_before);
            CAPTURE(in_begin);
            tests::DoublePlan plan;
            plan.late_calls = 1;
            Rig rig(*model, plan);
            std::vector<uint64_t> ids = fill(rig, jobs);
            for (int i = 0; i < steps_before; i++) REQUIRE(rig.step(steps_before % 2) == Status::OK);
            const uint64_t cancelled = ids[1], released = ids[2];
            CHECK(rig.engine->cancel(cancelled) == Status::OK);
            CHECK(rig.engine->release(released) == Status::OK);
            const uint64_t late = rig.submit(jobs[0]);

            (in_begin ? rig.plan.fail_next_begin : rig.plan.fail_next_advance) = Status::INTERNAL;
            Status status = Status::OK;
            for (int i = 0; i < 1000 && status == Status::OK; i++) status = rig.step(steps_before % 2);
            REQUIRE(status == Status::INTERNAL);
            CHECK(rig.report.next_step_us == -1);
            CHECK(rig.report.running == 0);
            CHECK(rig.report.waiting == 0);
            CHECK(rig.report.free_blocks == 24);
            CHECK(rig.step() == Status::UNUSABLE);
            CHECK(rig.report.next_step_us == -1);  // a host that goes by it sleeps
            uint64_t none = 0;
            CHECK(rig.submit(jobs[0], &none) == Status::UNUSABLE);

            RequestInfo info;
            CHECK(rig.engine->request_info(ids[3], &info) == Status::OK);
            CHECK(info.state == SequenceState::finished);
            rig.poll(2);
            rig.poll();
            CHECK(rig.sink.stories.count(released) == 0);
            ids.push_back(late);
            for (size_t i = 0; i < ids.size(); i++) {
                if (ids[i] == released) continue;
                CAPTURE(i);
                const Told& told = rig.sink.stories[ids[i]];
                CHECK(told.ends == 1);
                CHECK((told.status == Status::INTERNAL) == (told.reason == FinishReason::error));
                const size_t job = i < jobs.size() ? i : 0;
                const std::vector<int32_t> whole = answer_of(expected.tokens[job], jobs[job]);
                REQUIRE(told.tokens.size() <= whole.size());
                CHECK(std::equal(told.tokens.begin(), told.tokens.end(), whole.begin()));
                if (told.reason == FinishReason::length) CHECK(told.tokens == whole);
            }
            CHECK(rig.sink.stories[late].reason == FinishReason::error);
            CHECK(rig.engine->cancel(ids[0]) == Status::OK);  // kept, and over
            CHECK(rig.engine->release(ids[0]) == Status::OK);
            CHECK(rig.engine->release(ids[0]) == Status::STALE_ID);
            CHECK(rig.engine->release(late) == Status::STALE_ID);
            rig.engine.reset();
            CHECK(rig.allocator.live() == 0);
        }
    }
}

TEST_CASE("failures at random, at any moment of any request's life, never lose or double an end") {
    const auto model = load_bytes(tiny_llama(7).bytes());
    for (uint32_t seed = 1; seed <= 150; seed++) {
        CAPTURE(seed);
        Random random(seed);
        tests::DoublePlan plan;
        plan.seed = seed;
        plan.pending_rate = 0.2;
        plan.late_calls = 1;
        plan.begin_failure_rate = random.uniform() * 0.05;
        plan.advance_failure_rate = random.uniform() * 0.02;
        plan.cut_every_tile = random.below(2) == 0;
        Rig rig(*model, plan, static_cast<int32_t>(1 + random.below(5)));
        const std::vector<Job> jobs = some_jobs(seed, 12);
        std::vector<uint64_t> ids;
        std::vector<uint64_t> released;
        Status status = Status::OK;
        for (int turn = 0; turn < 120 && status == Status::OK; turn++) {
            uint64_t id = 0;
            if (random.below(3) == 0 &&
                rig.submit(jobs[random.below(12)], &id, random.below(3) == 0) == Status::OK)
                ids.push_back(id);
            if (!ids.empty() && random.below(6) == 0)
                static_cast<void>(rig.engine->cancel(ids[random.below(static_cast<uint32_t>(ids.size()))]));
            if (!ids.empty() && random.below(8) == 0) {
                const uint64_t victim = ids[random.below(static_cast<uint32_t>(ids.size()))];
                if (rig.engine->release(victim) == Status::OK) released.push_back(victim);
            }
            if (random.below(2) == 0) rig.poll(random.below(5));
            status = rig.step(random.below(3) == 0 ? 0 : 1);
        }
        for (int i = 0; i < 5000 && status == Status::OK && rig.report.next_step_us == 0; i++) {
            status = rig.step(1);
            rig.poll(1);
        }
        rig.poll();
        for (const uint64_t id : ids) {
            const bool gone = std::find(released.begin(), released.end(), id) != released.end();
            if (!gone) CHECK(rig.sink.stories[id].ends == 1);
        }
        CHECK(rig.report.free_blocks == 24);
        const MetricsSnapshot figures = rig.engine->stats().figures;
        CHECK(figures.counters.requests_finished() == figures.counters.requests_submitted);
        CHECK(figures.gauges.blocks_held == 0);
        if (random.below(2) == 0)
            for (const uint64_t id : ids) static_cast<void>(rig.engine->release(id));
        rig.engine.reset();
        CHECK(rig.allocator.live() == 0);
    }
}

TEST_CASE("a submit that runs out of memory anywhere leaves the engine as it was") {
    const auto model = load_bytes(tiny_llama(7).bytes());
    Rig rig(*model, {});
    const std::vector<Job> jobs = some_jobs(3, 2);
    const uint64_t neighbour = rig.submit(jobs[0]);
    REQUIRE(rig.step() == Status::OK);
    int refused = 0;
    for (int64_t allocation = 0;; allocation++) {
        const int64_t live = rig.allocator.live();
        rig.allocator.fail_from(allocation);
        uint64_t id = 0;
        bool thrown = false;
        try {
            static_cast<void>(rig.submit(jobs[1], &id));
        } catch (const std::bad_alloc&) {
            thrown = true;
        }
        rig.allocator.fail_never();
        if (!thrown) break;
        refused++;
        CHECK(rig.allocator.live() == live);
        CHECK(rig.engine->stats().figures.counters.requests_submitted == 1);
    }
    CHECK(refused >= 4);
    while (rig.report.next_step_us == 0) REQUIRE(rig.step() == Status::OK);
    rig.poll();
    CHECK(rig.sink.stories[neighbour].ends == 1);
    CHECK(rig.sink.stories.size() == 2);
}

TEST_CASE("pins end with the engine, whole or under way, without an event; unpinned they are gone") {
    const auto model = load_bytes(tiny_llama(61).bytes());
    const std::vector<Job> jobs = some_jobs(17, 3);
    for (const bool released : {false, true}) {
        tests::DoublePlan plan;
        Rig rig(*model, plan);
        const uint64_t whole = rig.pin(std::vector<int32_t>(20, 5));
        REQUIRE(rig.step() == Status::OK);
        RequestInfo info;
        REQUIRE(rig.engine->request_info(whole, &info) == Status::OK);
        CHECK(info.state == SequenceState::pinned);
        const uint64_t under_way = rig.pin(std::vector<int32_t>(60, 6));
        const uint64_t request = rig.submit(jobs[0]);
        REQUIRE(rig.step(1) == Status::OK);  // the pass is begun
        const uint64_t waiting = rig.pin(std::vector<int32_t>(30, 7));
        if (released) {
            CHECK(rig.engine->unpin(whole) == Status::OK);
            CHECK(rig.engine->unpin(under_way) == Status::OK);
        }
        rig.plan.fail_next_advance = Status::INTERNAL;
        CHECK(rig.step() == Status::INTERNAL);
        rig.poll();
        CHECK(rig.sink.stories.size() == 1);
        CHECK(rig.sink.stories[request].ends == 1);
        for (const uint64_t pin : {whole, under_way, waiting}) {
            const bool gone = released && pin != waiting;
            CHECK(rig.engine->request_info(pin, &info) == (gone ? Status::STALE_ID : Status::OK));
            if (!gone) {
                CHECK(info.state == SequenceState::finished);
                CHECK(info.failure.status == Status::INTERNAL);
            }
            CHECK(rig.engine->unpin(pin) == (gone ? Status::STALE_ID : Status::OK));
        }
        CHECK(rig.engine->stats().figures.gauges.blocks_pinned == 0);
        CHECK(rig.engine->stats().figures.gauges.blocks_held == 0);
    }
}
