// What a pass computes: decodes first, chunks within the budget, admission with reserved blocks, nobody starved.
#include <doctest/doctest.h>

#include <random>
#include <set>
#include <vector>

#include "scheduler_bench.h"

using namespace treadle;
using Bench = test::SchedulerBench;

TEST_CASE("decode rows come first, prompts share what is left of the budget") {
    Bench bench(4, 10, 64);
    Sequence* first = bench.submit(4, 40);
    bench.scheduler.plan(&bench.plan);
    CHECK(bench.plan.tokens == 4);
    CHECK(bench.plan.logit_rows == 1);
    bench.commit();
    Sequence* second = bench.submit(25, 40);
    bench.scheduler.plan(&bench.plan);
    REQUIRE(bench.plan.rows.size() == 2);
    CHECK(bench.plan.rows[0].sequence == first);
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
    std::vector<Sequence*> requests;
    for (int i = 0; i < 5; i++) requests.push_back(bench.submit(1, 30));
    for (int i = 0; i < 30; i++) {
        bench.scheduler.plan(&bench.plan);
        CHECK(bench.plan.tokens <= 2);
        bench.commit();
    }
    for (const Sequence* request : requests) CHECK(request->generated() >= 4);
}

TEST_CASE("turns in a small batch are kept while others sit out and come back") {
    Bench bench(3, 1, 128);
    std::vector<Sequence*> requests;
    const auto sit_out = [](Sequence* one) {
        while (one->room.has_room()) one->room.push(EventKind::token, "x");
    };
    for (int i = 0; i < 3; i++) {  // with batches of one token a prompt has its turn when nobody generates
        requests.push_back(bench.submit(1, 100));
        bench.pass();
        sit_out(requests.back());
    }
    for (Sequence* one : requests) one->room.pop();
    Sequence* unsteady = requests[0];
    std::vector<int> waited(3, 0);
    for (int i = 0; i < 60; i++) {
        if (unsteady->room.has_room()) {
            sit_out(unsteady);
        } else {
            unsteady->room.pop();
        }
        bench.pass();
        for (size_t j = 1; j < requests.size(); j++) {
            waited[j] = bench.row_of(requests[j]) != nullptr ? 0 : waited[j] + 1;
            CHECK(waited[j] <= 2);
        }
    }
}

TEST_CASE("a large head lets followers pass for a while and then gets its blocks") {
    Bench bench(8, 64, 8, MemoryPolicy::reserve);
    bench.submit(1, 17 * 4);  // holds 5 of 8 blocks for a long time
    bench.pass();
    Sequence* large = bench.submit(1, 16 * 8);  // needs all
    int passed = 0;
    for (int i = 0; i < 400 && large->state == SequenceState::waiting; i++) {
        if (bench.scheduler.waiting() < 3) bench.submit(1, 3);
        const int32_t before = large->skipped;
        bench.scheduler.plan(&bench.plan);
        passed += std::max(large->skipped - before, 0);
        bench.commit();
    }
    CHECK(large->state != SequenceState::waiting);
    CHECK(passed > 0);
    CHECK(passed <= 40);
}

TEST_CASE("an urgent head that lacks reserved blocks is not passed by less urgent ones for ever") {
    Bench bench(8, 64, 8, MemoryPolicy::reserve);
    Sequence* holder = bench.submit(1, 17 * 4, -1, Priority::bulk);  // holds 5 of 8 blocks
    bench.pass();
    Sequence* urgent = bench.submit(1, 16 * 8, -1, Priority::interactive);  // needs all
    int passed = 0;
    for (int i = 0; i < 400 && urgent->state == SequenceState::waiting; i++) {
        while (bench.scheduler.waiting() < 3) bench.submit(1, 3);
        const int32_t before = urgent->skipped;
        bench.scheduler.plan(&bench.plan);
        passed += std::max(urgent->skipped - before, 0);
        bench.commit();
    }
    CHECK(urgent->state != SequenceState::waiting);
    CHECK(holder->finished());
    CHECK(passed > 0);
    CHECK(passed <= 40);
    Sequence* small = bench.submit(1, 3);
    for (int i = 0; i < 400 && small->state == SequenceState::waiting; i++) bench.pass();
    CHECK(small->state != SequenceState::waiting);  // and the less urgent have their turn again
}

TEST_CASE("nobody is preempted for a head that would still lack blocks") {
    Bench bench(8, 64, 8);
    Sequence* bulk = bench.submit(40, 60, -1, Priority::bulk);  // 3 blocks, then 4
    bench.pass();
    Sequence* equal = bench.submit(30, 50);  // 2, then 3
    bench.pass();
    Sequence* large = bench.submit(100, 110);  // 7
    for (int i = 0; i < 5; i++) bench.pass();
    CHECK(bench.preemptions == 0);
    CHECK(large->state == SequenceState::waiting);
    Sequence* smaller = bench.submit(60, 70);  // 4: passes the one that lacks blocks, and has those of bulk
    bench.pass();
    CHECK(bench.preemptions == 1);
    CHECK(bulk->state == SequenceState::waiting);
    CHECK(smaller->state != SequenceState::waiting);
    CHECK(equal->state == SequenceState::generating);
}

TEST_CASE("a prompt equal to the free blocks is admitted after mixed finishes") {
    Bench bench(8, 64, 8);
    std::vector<Sequence*> requests;
    for (int i = 0; i < 8; i++) requests.push_back(bench.submit(1, 17));
    bench.scheduler.plan(&bench.plan);
    bench.commit();
    for (size_t i = 0; i < 8; i += 2) bench.scheduler.remove(requests[i]);
    Sequence* fits = bench.submit(63, 16 * 4 + 1);
    bench.scheduler.plan(&bench.plan);
    CHECK(bench.row_of(fits) != nullptr);
}

TEST_CASE("a request whose events fill their room sits out, its neighbours go on") {
    Bench bench(2, 8, 64);
    Sequence* silent = bench.submit(1, 500);
    Sequence* polled = bench.submit(1, 500);
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

TEST_CASE("nobody takes blocks of a more urgent one that waits for a poll") {
    Bench bench(4, 64, 6);
    const auto fill = [](Sequence* sequence) {
        while (sequence->room.has_room()) sequence->room.push(EventKind::token, "x");
    };
    Sequence* urgent = bench.submit(40, 60, -1, Priority::interactive);  // 3 blocks
    bench.pass();
    fill(urgent);
    Sequence* equal = bench.submit(20, 60, -1, Priority::bulk);  // 2
    bench.pass();
    fill(equal);
    Sequence* growing = bench.submit(4, 60, -1, Priority::bulk);  // 1, and then more
    for (int i = 0; i < 100; i++) bench.pass();
    CHECK(equal->state == SequenceState::waiting);  // of its own class: it gives up its blocks
    CHECK(bench.preemptions == 1);
    CHECK(urgent->state == SequenceState::generating);
    CHECK(urgent->cache.blocks.size() == 3);
    CHECK(growing->length() == 3 * 16 + 1);
    CHECK_FALSE(bench.scheduler.has_work());  // and the host may sleep until it polls
    Sequence* normal = bench.submit(4, 60);
    CHECK(bench.scheduler.has_work());
    bench.pass();
    CHECK(normal->state == SequenceState::generating);
    CHECK(growing->state == SequenceState::waiting);
    CHECK(bench.preemptions == 2);
    urgent->room.pop();
    bench.scheduler.reconsider();
    for (int i = 0; i < 400; i++) {
        bench.pass();
        for (Sequence* sequence : {urgent, equal}) sequence->room.pop();
    }
    for (const Sequence* sequence : {urgent, equal, growing, normal}) CHECK(sequence->finished());
}

TEST_CASE("an ample pool preempts nobody, whatever the lengths") {
    Bench bench(16, 64, 400, MemoryPolicy::preempt, 16);
    for (int i = 0; i < 40; i++) bench.submit(1 + i * 7 % 50, 60 + i * 13 % 90);
    while (bench.scheduler.has_work()) bench.pass();
    CHECK(bench.preemptions == 0);
}

TEST_CASE("out of blocks the latest of the least urgent goes, and comes back") {
    Bench bench(4, 64, 6);
    Sequence* old_one = bench.submit(20, 60);
    Sequence* middle = bench.submit(20, 60);
    Sequence* late = bench.submit(20, 60);
    bench.pass();
    CHECK(bench.scheduler.running() == 3);
    for (int i = 0; i < 15 && bench.preemptions == 0; i++) bench.pass();
    CHECK(bench.preemptions == 1);
    CHECK(late->state == SequenceState::waiting);
    CHECK(bench.row_of(late) == nullptr);  // what the plan had given it was taken back
    CHECK(old_one->state == SequenceState::generating);
    CHECK(middle->state == SequenceState::generating);
    CHECK(bench.plan.tokens == 2);
    int passes = 0;
    while (bench.scheduler.has_work() && passes++ < 1000) bench.pass();
    CHECK(late->finished());
    CHECK(bench.cache.available() == 6);
}

TEST_CASE("the first in rank progresses in every pass, in a pool that holds little more than it") {
    Bench bench(6, 40, 5);
    Sequence* first = bench.submit(10, 80);
    for (int i = 0; i < 5; i++) bench.submit(10, 70);
    while (!first->finished()) {
        const int32_t before = first->computed();
        bench.pass();
        if (!first->finished()) CHECK(first->computed() > before);
    }
    int passes = 0;
    while (bench.scheduler.has_work() && passes++ < 5000) bench.pass();
    for (const auto& request : bench.requests) CHECK(request->sequences[0]->finished());
}

TEST_CASE("a waiting long prompt doesn't eat the blocks that decodes need") {
    Bench bench(8, 32, 20, MemoryPolicy::preempt, 4);
    std::vector<Sequence*> chats;
    for (int i = 0; i < 4; i++) chats.push_back(bench.submit(30, 60));
    bench.pass();
    while (chats[3]->state != SequenceState::generating) bench.pass();
    bench.submit(200, 220);  // 13 blocks, of which 12 may be free
    for (int i = 0; i < 10; i++) {
        bench.pass();
        for (const Sequence* chat : chats) CHECK(bench.row_of(chat) != nullptr);
    }
    CHECK(bench.preemptions == 0);
}

TEST_CASE("an admission leaves the watermark's blocks to those that run") {
    Bench bench(8, 64, 10, MemoryPolicy::preempt, 3);
    Sequence* first = bench.submit(60, 64);  // 4 blocks
    bench.pass();
    Sequence* second = bench.submit(60, 64);  // 4 of the 6 that are free
    bench.pass();
    CHECK(second->state == SequenceState::waiting);
    while (!first->finished()) bench.pass();
    bench.pass();
    CHECK(bench.row_of(second) != nullptr);
}

TEST_CASE("urgent sequences take the place of less urgent ones, bulk has what is left") {
    Bench bench(2, 64, 64);
    Sequence* bulk = bench.submit(5, 50, -1, Priority::bulk);
    Sequence* normal = bench.submit(5, 30);
    bench.pass();
    CHECK(bench.row_of(normal) != nullptr);
    CHECK(bench.row_of(bulk) == nullptr);
    while (!normal->finished()) {
        bench.pass();
        CHECK(bench.row_of(bulk) == nullptr);
    }
    bench.pass();
    CHECK(bench.row_of(bulk) != nullptr);
    bench.submit(5, 30);
    bench.submit(5, 30);
    Sequence* urgent = bench.submit(5, 9, -1, Priority::interactive);
    bench.pass();
    CHECK(bench.plan.rows[0].sequence == urgent);
    CHECK(bench.row_of(bulk) == nullptr);
    CHECK(bulk->state == SequenceState::waiting);
    int passes = 0;
    while (bench.scheduler.has_work() && passes++ < 500) bench.pass();
    CHECK(bulk->finished());
}

TEST_CASE("a priority changes from the next plan on; paused keeps tokens and no block") {
    Bench bench(2, 64, 64);
    Sequence* one = bench.submit(40, 90);
    Sequence* two = bench.submit(40, 90);
    bench.pass();
    bench.pass();
    one->request->params.priority = Priority::paused;
    bench.scheduler.reprioritize(one);
    bench.pass();
    CHECK(bench.row_of(one) == nullptr);
    CHECK(one->cache.blocks.empty());
    CHECK(bench.scheduler.paused() == 1);
    const int32_t length = one->length();
    while (!two->finished()) bench.pass();
    CHECK_FALSE(bench.scheduler.has_work());
    CHECK(one->length() == length);
    one->request->params.priority = Priority::interactive;
    bench.scheduler.reprioritize(one);
    CHECK(bench.scheduler.has_work());
    const int64_t before = bench.computed;
    bench.pass();
    CHECK(bench.computed - before == 1);  // all else was still in the cache
    while (!one->finished()) bench.pass();
}

TEST_CASE("sequences with one beginning compute it once, at the urgency of the most urgent") {
    Bench bench(8, 32, 64);
    Sequence* producer = bench.submit(100, 120, 7, Priority::bulk);
    bench.pass();
    CHECK(producer->computed() == 32);
    Sequence* follower = bench.submit(100, 120, 7, Priority::interactive);
    Sequence* other = bench.submit(20, 40, 9);
    bench.pass();
    CHECK(bench.row_of(follower) == nullptr);
    CHECK(bench.row_of(other) == nullptr);
    CHECK(bench.row_of(producer) != nullptr);  // although it is bulk
    while (follower->state == SequenceState::waiting) bench.pass();
    CHECK(follower->cached_tokens >= 85);  // for less than a block nobody waits
    int passes = 0;
    while (bench.scheduler.has_work() && passes++ < 500) bench.pass();
    CHECK(bench.computed < 100 + 20 + 20 + 20 + 40);
}

TEST_CASE("of many with one prompt that come at once a single one computes it, however large the batch") {
    Bench bench(8, 1000, 64);
    std::vector<Sequence*> all;
    for (int i = 0; i < 5; i++) all.push_back(bench.submit(100, 110, 7));
    bench.pass();
    CHECK(bench.computed == 100);
    bench.pass();
    for (const Sequence* one : all) CHECK(bench.row_of(one) != nullptr);
    CHECK(bench.computed == 100 + 5);
}

TEST_CASE("urgency is lent only while somebody waits") {
    Bench bench(8, 16, 64);
    Sequence* producer = bench.submit(200, 220, 7, Priority::bulk);
    bench.pass();
    Sequence* follower = bench.submit(200, 220, 7, Priority::interactive);
    Sequence* other = bench.submit(30, 40, 9);
    bench.pass();
    CHECK(urgency(*producer) == Priority::interactive);
    CHECK(bench.row_of(producer) != nullptr);
    follower->state = SequenceState::finished;  // cancelled
    bench.scheduler.remove(follower);
    bench.pass();
    CHECK(urgency(*producer) == Priority::bulk);
    CHECK(bench.row_of(producer) == nullptr);
    CHECK(bench.row_of(other) != nullptr);
}

TEST_CASE("followers go on from the last computed block when the producer ends") {
    Bench bench(8, 32, 64);
    Sequence* producer = bench.submit(100, 120, 7);
    Sequence* follower = bench.submit(100, 120, 7);
    bench.pass();
    bench.pass();
    CHECK(follower->state == SequenceState::waiting);
    producer->state = SequenceState::finished;
    bench.scheduler.remove(producer);
    bench.pass();
    CHECK(bench.row_of(follower) != nullptr);
    CHECK(follower->cached_tokens == 64);
}

TEST_CASE("thousands that wait cost a plan no more than a few") {
    Bench bench(4, 16, 8);
    for (int i = 0; i < 5000; i++) bench.submit(20, 40);
    bench.pass();
    CHECK(bench.scheduler.waiting() + bench.scheduler.running() == 5000);
    int passes = 0;
    while (bench.scheduler.has_work() && passes++ < 300) bench.pass();
    CHECK(bench.scheduler.waiting() < 5000);
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
                EventRoom& room = row.sequence->room;
                if (row.logits && room.has_room()) room.push(EventKind::token, "x");
                while (!room.empty()) room.pop();
            }
            bench.commit();
            passes++;
        }
        for (const auto& request : bench.requests) CHECK(request->sequences[0]->finished());
        CHECK(bench.cache.available() == blocks);
    }
}

TEST_CASE("an urgent prompt takes the only place in the middle of a less urgent one") {
    Bench bench(1, 16, 64);
    Sequence* slow = bench.submit(150, 160);
    bench.pass();
    bench.pass();
    Sequence* urgent = bench.submit(20, 28, -1, Priority::interactive);
    for (int i = 0; i < 9; i++) {
        bench.scheduler.plan(&bench.plan);
        CHECK(bench.row_of(urgent) != nullptr);
        CHECK(bench.row_of(slow) == nullptr);
        bench.commit();
    }
    CHECK(urgent->state == SequenceState::finished);
    CHECK(bench.preemptions == 1);
}
