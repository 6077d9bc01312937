// What a pass computes: decodes first, chunks within the budget, admission with reserved blocks, nobody starved.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "base/limits.h"
#include "scheduler/scheduler.h"
#include "test_memory.h"

using namespace treadle;

namespace {

// A scheduler whose passes always succeed: commit() does what the engine does, with token 1.
struct Bench {
    Bench(int32_t max_sequences, int32_t max_batch_tokens, int32_t blocks)
        : pool(&memory.kv, blocks), scheduler(&memory.other, {max_sequences, max_batch_tokens}, &pool),
          plan(&memory.other) {}

    Request* submit(int32_t prompt_tokens, int32_t limit) {
        RequestParams params(&memory.other);
        std::pmr::vector<int32_t> prompt(static_cast<size_t>(prompt_tokens), 1, &memory.other);
        requests.push_back(make_owned<Request>(&memory.other, &memory.other, std::move(params),
                                               std::move(prompt), limit, size_t{8}));
        scheduler.enqueue(requests.back().get());
        return requests.back().get();
    }

    void commit() {
        for (const PlanRow& row : plan.rows) {
            Request* request = row.request;
            request->computed = row.first + row.count;
            if (!row.logits) continue;
            request->state = RequestState::generating;
            request->tokens.push_back(1);
            if (request->length() < request->limit) continue;
            request->state = RequestState::finished;
            scheduler.remove(request);
        }
        CHECK(scheduler.consistent());
    }

    const PlanRow* row_of(const Request* request) const {
        for (const PlanRow& row : plan.rows)
            if (row.request == request) return &row;
        return nullptr;
    }

    test::TestAllocator allocator;
    MemorySet memory{allocator.hooks()};
    BlockPool pool;
    Scheduler scheduler;
    StepPlan plan;
    std::vector<Owned<Request>> requests;
};

}  // namespace

TEST_CASE("blocks for a sequence: the last token is never computed") {
    CHECK(blocks_for(1) == 0);
    CHECK(blocks_for(2) == 1);
    CHECK(blocks_for(17) == 1);
    CHECK(blocks_for(18) == 2);
}

TEST_CASE("decode rows come first, prompts share what is left of the budget") {
    Bench bench(4, 10, 64);
    Request* first = bench.submit(4, 40);
    bench.scheduler.plan(&bench.plan);
    CHECK(bench.plan.tokens == 4);
    CHECK(bench.plan.logit_rows == 1);
    bench.commit();
    Request* second = bench.submit(25, 40);
    bench.scheduler.plan(&bench.plan);
    REQUIRE(bench.plan.rows.size() == 2);
    CHECK(bench.plan.rows[0].request == first);
    CHECK(bench.plan.rows[0].count == 1);
    CHECK(bench.row_of(second)->count == 9);
    CHECK_FALSE(bench.row_of(second)->logits);
    bench.commit();
    bench.scheduler.plan(&bench.plan);
    CHECK(bench.row_of(second)->first == 9);
    bench.commit();
    bench.scheduler.plan(&bench.plan);
    CHECK(bench.row_of(second)->count == 7);
    CHECK(bench.row_of(second)->logits);
}

TEST_CASE("a batch smaller than the number of decodes serves everybody in turn") {
    Bench bench(5, 2, 64);
    std::vector<Request*> requests;
    for (int i = 0; i < 5; i++) requests.push_back(bench.submit(1, 30));
    for (int i = 0; i < 30; i++) {
        bench.scheduler.plan(&bench.plan);
        CHECK(bench.plan.tokens <= 2);
        bench.commit();
    }
    for (const Request* request : requests) CHECK(request->generated() >= 4);
}

TEST_CASE("a large head lets followers pass for a while and then gets its blocks") {
    Bench bench(8, 64, 8);
    bench.submit(1, 17 * 4);  // holds 5 of 8 blocks for a long time
    bench.scheduler.plan(&bench.plan);
    bench.commit();
    Request* large = bench.submit(1, 16 * 8);  // needs all
    int passed = 0;
    for (int i = 0; i < 400 && large->state == RequestState::waiting; i++) {
        if (bench.scheduler.waiting() < 3) bench.submit(1, 3);
        const int32_t before = large->skipped;
        bench.scheduler.plan(&bench.plan);
        passed += large->skipped - before;
        bench.commit();
    }
    CHECK(large->state != RequestState::waiting);
    CHECK(passed > 0);
    CHECK(passed <= 40);
}

TEST_CASE("a prompt equal to the free blocks is admitted after mixed finishes") {
    Bench bench(8, 64, 8);
    std::vector<Request*> requests;
    for (int i = 0; i < 8; i++) requests.push_back(bench.submit(1, 17));
    bench.scheduler.plan(&bench.plan);
    bench.commit();
    for (size_t i = 0; i < 8; i += 2) bench.scheduler.remove(requests[i]);
    Request* fits = bench.submit(63, 16 * 4 + 1);
    bench.scheduler.plan(&bench.plan);
    CHECK(bench.row_of(fits) != nullptr);
}

TEST_CASE("a request whose events fill their room sits out, its neighbours go on") {
    Bench bench(2, 8, 64);
    Request* silent = bench.submit(1, 500);
    Request* polled = bench.submit(1, 500);
    bench.scheduler.plan(&bench.plan);
    bench.commit();
    while (silent->room.has_room()) silent->room.push(EventKind::token, "x");
    bench.scheduler.plan(&bench.plan);
    CHECK(bench.row_of(silent) == nullptr);
    CHECK(bench.row_of(polled) != nullptr);
    CHECK(bench.scheduler.waiting_poll() == 1);
    silent->room.pop();
    bench.commit();
    bench.scheduler.plan(&bench.plan);
    CHECK(bench.row_of(silent) != nullptr);
}

TEST_CASE("random workloads end, keep the books and give all blocks back") {
    std::mt19937 random(11);
    for (int round = 0; round < 60; round++) {
        const auto blocks = static_cast<int32_t>(4 + random() % 40);
        Bench bench(static_cast<int32_t>(1 + random() % 9), static_cast<int32_t>(1 + random() % 40), blocks);
        for (int i = 0; i < 30; i++) {
            const auto limit = static_cast<int32_t>(2 + random() % static_cast<unsigned>(blocks * 16 - 2));
            bench.submit(static_cast<int32_t>(1 + random() % static_cast<unsigned>(limit - 1)), limit);
        }
        int passes = 0;
        while (bench.scheduler.has_work() && passes < 100000) {
            bench.scheduler.plan(&bench.plan);
            REQUIRE_FALSE(bench.plan.rows.empty());
            for (const PlanRow& row : bench.plan.rows) {  // one poll per pass
                EventRoom& room = row.request->room;
                if (row.logits && room.has_room()) room.push(EventKind::token, "x");
                while (!room.empty()) room.pop();
            }
            bench.commit();
            passes++;
        }
        for (const auto& request : bench.requests) CHECK(request->finished());
        CHECK(bench.pool.available() == blocks);
    }
}
