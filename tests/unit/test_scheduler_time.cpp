// Plans under a time budget: pieces of prompts and batches are cut to it, decodes never, and prompts go on all the same.
#include <doctest/doctest.h>

#include <vector>

#include "engine/host_share.h"
#include "scheduler_bench.h"

using namespace treadle;

namespace {

constexpr int64_t ms = 1'000'000;

// A machine whose passes take 2 ms, 1 ms for each row and 0.1 ms for each further token.
struct TimedBench : test::SchedulerBench {
    using SchedulerBench::SchedulerBench;

    static int64_t time_of(const PassShape& shape) {
        return 2 * ms + shape.rows * ms + (shape.tokens - shape.rows) * ms / 10;
    }
    int64_t timed_pass(int64_t budget_ns) {
        scheduler.plan(&plan, budget_ns);
        const int64_t time = time_of(plan.shape);
        if (!plan.rows.empty()) scheduler.learn(plan.shape, time);
        commit();
        return time;
    }
    // Decodes and prompts of many sizes, so that the cost is known.
    void warm_up() {
        for (int i = 1; i <= 40; i++) {
            submit(3 * i, 3 * i + 3);
            for (int j = 0; j < 4; j++) timed_pass(INT64_MAX);
        }
        while (scheduler.has_work()) timed_pass(INT64_MAX);
    }
};

}  // namespace

TEST_CASE("a prompt beside decodes comes in pieces that fit the time, alone in one") {
    TimedBench bench(8, 4096, 1024);
    bench.warm_up();
    Sequence* alone = bench.submit(500, 600);
    bench.timed_pass(10 * ms);
    CHECK(alone->state == SequenceState::generating);  // nobody waits for a token: no reason for pieces

    Sequence* prompt = bench.submit(1000, 1010);
    int pieces = 0;
    while (prompt->state != SequenceState::generating && pieces < 100) {
        CHECK(bench.timed_pass(10 * ms) <= 10 * ms);
        REQUIRE(bench.row_of(alone) != nullptr);
        CHECK(bench.row_of(alone)->count == 1);
        const PlanRow* row = bench.row_of(prompt);
        REQUIRE(row != nullptr);
        CHECK((row->count % 8 == 0 || row->logits));
        pieces++;
    }
    CHECK(pieces >= 1000 / 70);  // 10 ms less 3 ms, at 0.1 ms each
    CHECK(pieces <= 1000 / 48);  // and the margin of the estimate
}

TEST_CASE("where nothing fits beside the decodes a prompt still gets a tile in each eighth pass") {
    TimedBench bench(8, 4096, 1024);
    bench.warm_up();
    std::vector<Sequence*> chats;
    for (int i = 0; i < 4; i++) chats.push_back(bench.submit(2, 1000));
    bench.timed_pass(INT64_MAX);
    Sequence* prompt = bench.submit(64, 70);
    bench.timed_pass(INT64_MAX);  // admitted while there is time
    REQUIRE(prompt->state == SequenceState::generating);
    bench.scheduler.remove(prompt);
    prompt->state = SequenceState::finished;

    Sequence* late = bench.submit(64, 70);
    int passes = 0;
    int with_prompt = 0;
    while (late->state != SequenceState::generating && passes < 200) {
        bench.timed_pass(5 * ms);  // four decodes alone take 6 ms
        for (const Sequence* chat : chats) CHECK(bench.row_of(chat) != nullptr);
        passes++;
        if (const PlanRow* row = bench.row_of(late)) {
            with_prompt++;
            CHECK(row->count == 8);
        }
    }
    CHECK(late->state !=
          SequenceState::generating);  // the batch is full for this target: it may not even start

    for (int i = 0; i < 4; i++) {
        bench.scheduler.remove(chats[static_cast<size_t>(i)]);
        chats[static_cast<size_t>(i)]->state = SequenceState::finished;
    }
    while (late->state == SequenceState::waiting) bench.timed_pass(5 * ms);
    CHECK(with_prompt == 0);
}

TEST_CASE("a prompt that has begun goes on in each eighth pass, however little time there is") {
    TimedBench bench(8, 4096, 1024);
    bench.warm_up();
    Sequence* chat = bench.submit(2, 1000);
    bench.timed_pass(INT64_MAX);
    Sequence* prompt = bench.submit(200, 210);
    bench.timed_pass(6 * ms);
    REQUIRE(prompt->state == SequenceState::prompt);
    std::vector<int> gaps;
    int gap = 0;
    while (prompt->state == SequenceState::prompt && gap < 20) {
        bench.timed_pass(1 * ms);
        CHECK(bench.row_of(chat) != nullptr);
        gap++;
        if (bench.row_of(prompt) == nullptr) continue;
        CHECK(bench.row_of(prompt)->count == 8);
        gaps.push_back(gap);
        gap = 0;
    }
    CHECK(prompt->state == SequenceState::generating);
    for (const int one : gaps) CHECK(one == 8);
}

TEST_CASE("a batch grows only as far as each of it gets a token in time") {
    TimedBench bench(32, 4096, 1024);
    bench.warm_up();
    for (int i = 0; i < 20; i++) bench.submit(2, 200);
    int32_t most = 0;
    for (int i = 0; i < 60; i++) {
        CHECK(bench.timed_pass(10 * ms) <= 10 * ms * 21 / 20);  // the costs of rows are being learned
        most = std::max(most, bench.scheduler.running());
    }
    CHECK(most >= 6);
    CHECK(most <= 8);  // 2 ms and 1 ms each
    for (int i = 0; i < 2000 && bench.scheduler.has_work(); i++) bench.timed_pass(10 * ms);
    CHECK_FALSE(bench.scheduler.has_work());  // those that waited had their turn
}

TEST_CASE(
    "bulk has the passes that nobody else needs, and beside others only what a tenth of the time takes") {
    TimedBench bench(32, 4096, 1024);
    bench.warm_up();
    std::vector<Sequence*> bulk;
    for (int i = 0; i < 8; i++) bulk.push_back(bench.submit(2, 400, -1, Priority::bulk));
    for (int i = 0; i < 4; i++) bench.timed_pass(INT64_MAX);
    CHECK(bench.plan.rows.size() == 8);
    std::vector<Sequence*> chats;
    for (int i = 0; i < 10; i++) chats.push_back(bench.submit(2, 60, -1, Priority::interactive));
    bench.timed_pass(INT64_MAX);
    int beside = 0;
    for (int i = 0; i < 40; i++) {
        const int64_t time = bench.timed_pass(INT64_MAX);
        for (const Sequence* chat : chats) CHECK(bench.row_of(chat) != nullptr);
        CHECK(time <= 12 * ms + 12 * ms / 10);
        beside += static_cast<int>(bench.plan.rows.size()) - 10;
    }
    CHECK(beside > 0);
    int32_t fewest = 1000;
    int32_t most = 0;
    for (const Sequence* sequence : bulk) {
        fewest = std::min(fewest, sequence->generated());
        most = std::max(most, sequence->generated());
    }
    CHECK(most - fewest <= 2);  // each in its turn
    for (int i = 0; i < 1000 && bench.scheduler.has_work(); i++) bench.timed_pass(INT64_MAX);
    for (const Sequence* sequence : bulk) CHECK(sequence->state == SequenceState::finished);
}

TEST_CASE("the host's share is what it gives to steps while there is work") {
    HostShare share;
    CHECK(share.share() == 1);
    int64_t now = 0;
    const auto frame = [&](int64_t step_ms, int64_t pause_ms, bool wanted) {
        share.begin_step(now, wanted);
        now += step_ms * ms;
        share.end_step(now);
        now += pause_ms * ms;
    };
    for (int i = 0; i < 200; i++) frame(4, 12, true);
    CHECK(share.share() == doctest::Approx(0.25));
    frame(4, 60'000, true);  // a level loads
    frame(4, 12, true);
    CHECK(share.share() > 0.2);
    for (int i = 0; i < 50; i++) frame(4, 1000, false);  // nothing to do: the pauses say nothing
    CHECK(share.share() > 0.2);
    for (int i = 0; i < 200; i++) frame(4, 0, true);
    CHECK(share.share() == doctest::Approx(1).epsilon(0.01));
    now -= 3'600'000 * ms;  // a clock jumps back
    frame(4, 0, true);
    CHECK(share.share() > 0);
    CHECK(share.share() <= 1);
}

TEST_CASE("prompts of bulk alone come in pieces, so that whoever comes does not wait long") {
    TimedBench bench(8, 4096, 1024);
    bench.warm_up();
    Sequence* bulk = bench.submit(900, 910, -1, Priority::bulk);
    int pieces = 0;
    for (; bulk->state != SequenceState::generating && pieces < 10; pieces++)
        CHECK(bench.timed_pass(INT64_MAX) <= 50 * ms);
    CHECK(pieces >= 2);
    CHECK(pieces <= 4);
}

TEST_CASE("where a tile of a prompt doesn't fit the time but fewer tokens do, they go on in each pass") {
    TimedBench bench(8, 4096, 1024);
    bench.warm_up();
    bench.submit(2, 1000);
    bench.timed_pass(INT64_MAX);
    Sequence* prompt = bench.submit(200, 210);
    bench.timed_pass(6 * ms);
    REQUIRE(prompt->state == SequenceState::prompt);
    for (int i = 0; i < 20; i++) {
        CHECK(bench.timed_pass(3 * ms + ms / 2) <= 3 * ms + ms / 2);
        REQUIRE(bench.row_of(prompt) != nullptr);
        CHECK(bench.row_of(prompt)->count == 4);
    }
}
