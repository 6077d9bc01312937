// The thread pool and the cursor that passes are worked from: every tile runs once, no tile before the
// region it needs is complete, wherever a pass is cut, however many threads there are, whatever the host's
// parallel_for does.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/platform.h"
#include "cpu/pass_cursor.h"

using namespace treadle;
using namespace treadle::cpu;

namespace {

void* take(void*, size_t size, size_t alignment, int32_t) {
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void give(void*, void* pointer, size_t, size_t, int32_t) { std::free(pointer); }
const AllocatorHooks heap{nullptr, take, give};

// A clock that advances with each look, so that every deadline is near.
struct StepClock {
    int64_t now = 0;
    static int64_t look(void* user) { return ++static_cast<StepClock*>(user)->now; }
    ClockHook hook() { return {this, look}; }
};

// Regions of tiles that write plain memory: a tile adds up what the region before wrote, so a race or a
// wrong order shows.
struct Work {
    explicit Work(std::vector<int32_t> counts) : tiles(std::move(counts)), cells(tiles.size()) { clear(); }
    void clear() {
        for (size_t i = 0; i < tiles.size(); ++i) cells[i].assign(static_cast<size_t>(tiles[i]), 0);
        runs = 0;
        wrong_mode = 0;
        wrong_thread = 0;
    }
    static void run(void* context, int32_t region, int32_t tile, int32_t thread) {
        auto* self = static_cast<Work*>(context);
        if ((_mm_getcsr() & ~0x3Fu) != 0x1F80) self->wrong_mode++;
        if (thread < 0 || thread >= self->threads) self->wrong_thread++;
        uint64_t sum = 1;
        for (int32_t before = region - 1; before >= 0; --before) {
            if (self->tiles[static_cast<size_t>(before)] == 0) continue;
            for (const uint64_t cell : self->cells[static_cast<size_t>(before)]) sum += cell;
            break;
        }
        for (int64_t i = 0; i < self->spin; ++i) __asm__ volatile("" ::: "memory");
        self->cells[static_cast<size_t>(region)][static_cast<size_t>(tile)] += sum;
        self->runs++;
    }
    TileJob job() { return {this, run}; }
    uint64_t result() const {
        uint64_t sum = 0;
        for (const auto& region : cells) {
            for (const uint64_t cell : region) sum = sum * 31 + cell;
        }
        return sum;
    }
    int64_t total() const {
        int64_t sum = 0;
        for (const int32_t count : tiles) sum += count;
        return sum;
    }

    std::vector<int32_t> tiles;
    std::vector<std::vector<uint64_t>> cells;
    int32_t threads = 1;
    int64_t spin = 0;
    std::atomic<int64_t> runs{0};
    std::atomic<int32_t> wrong_mode{0};
    std::atomic<int32_t> wrong_thread{0};
};

std::unique_ptr<PassCursor> make_cursor(Memory* memory, Work& work, int32_t threads, ParallelForHook hook,
                                        ClockHook clock) {
    BackendParams params;
    params.threads = threads;
    params.parallel_for = hook;
    params.clock = clock;
    work.threads = threads;
    auto cursor =
        std::make_unique<PassCursor>(memory, static_cast<int32_t>(work.tiles.size()), params, work.job());
    Error error;
    REQUIRE(cursor->start_threads(memory, &error) == Status::OK);
    return cursor;
}

std::vector<int32_t> random_tiles(std::mt19937& random) {
    std::vector<int32_t> tiles(1 + random() % 40);
    for (int32_t& count : tiles)
        count = static_cast<int32_t>(random() % 3 == 0 ? random() % 20 : random() % 3);
    return tiles;
}

uint64_t expected_result(const std::vector<int32_t>& tiles) {
    Work work(tiles);
    for (size_t region = 0; region < tiles.size(); ++region) {
        for (int32_t tile = 0; tile < tiles[region]; ++tile)
            Work::run(&work, static_cast<int32_t>(region), tile, 0);
    }
    return work.result();
}

void run_in_order(void*, void (*body)(void*, int32_t), void* context, int32_t count) {
    for (int32_t i = 0; i < count; ++i) body(context, i);
}
void run_reversed(void*, void (*body)(void*, int32_t), void* context, int32_t count) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0xBF80 | 0x2040);  // flush to zero, denormals are zero, round down
    for (int32_t i = count; i-- > 0;) body(context, i);
    CHECK((_mm_getcsr() & ~0x3Fu) == (0xBF80 | 0x2040));
    _mm_setcsr(before);
}
void run_on_threads(void*, void (*body)(void*, int32_t), void* context, int32_t count) {
    std::vector<std::thread> threads;
    for (int32_t i = 0; i < count; ++i) {
        threads.emplace_back([=] {
            _mm_setcsr(0xBFC0);
            body(context, i);
        });
    }
    for (std::thread& thread : threads) thread.join();
}
void run_nothing(void*, void (*)(void*, int32_t), void*, int32_t) {}
void run_absurd(void*, void (*body)(void*, int32_t), void* context, int32_t count) {
    body(context, -1);
    body(context, count);
    body(context, INT32_MAX);
}

const ParallelForHook hooks[] = {{},
                                 {nullptr, run_in_order},
                                 {nullptr, run_reversed},
                                 {nullptr, run_on_threads},
                                 {nullptr, run_nothing},
                                 {nullptr, run_absurd}};

}  // namespace

TEST_CASE("every tile of a pass runs once, after the region it needs") {
    std::mt19937 random(7);
    Memory memory(heap, MemoryKind::other);
    for (int round = 0; round < 12; ++round) {
        const std::vector<int32_t> tiles = random_tiles(random);
        const uint64_t expected = expected_result(tiles);
        for (const int32_t threads : {1, 2, 3, 8}) {
            for (const ParallelForHook& hook : hooks) {
                Work work(tiles);
                auto cursor = make_cursor(&memory, work, threads, hook, system_clock());
                CHECK(!cursor->is_under_way());
                for (int pass = 0; pass < 3; ++pass) {
                    work.clear();
                    cursor->begin(work.tiles);
                    const AdvanceResult result =
                        cursor->advance(INT64_MAX, 1 + static_cast<int32_t>(random() % 9));
                    CHECK(result.state == PassState::done);
                    CHECK(!cursor->is_under_way());
                    CHECK(work.runs == work.total());
                    CHECK(work.result() == expected);
                    CHECK(work.wrong_mode == 0);
                    CHECK(work.wrong_thread == 0);
                }
            }
        }
    }
    CHECK(memory.bytes_in_use() == 0);
}

TEST_CASE("a pass can be cut after every tile") {
    std::mt19937 random(8);
    Memory memory(heap, MemoryKind::other);
    for (int round = 0; round < 20; ++round) {
        const std::vector<int32_t> tiles = random_tiles(random);
        for (const int32_t threads : {1, 3}) {
            for (const ParallelForHook& hook : hooks) {
                Work work(tiles);
                StepClock clock;
                auto cursor = make_cursor(&memory, work, threads, hook, clock.hook());
                cursor->begin(work.tiles);
                const bool helped =
                    threads > 1 && hook.run == nullptr;  // a worker may have the only tile there is
                int64_t calls = 0;
                while (cursor->is_under_way()) {
                    const int64_t before = work.runs;
                    const int64_t deadline =
                        random() % 4 == 0 ? clock.now + static_cast<int64_t>(random() % 30) : 0;
                    const AdvanceResult result = cursor->advance(deadline, threads);
                    if (result.state == PassState::done) CHECK(!cursor->is_under_way());
                    if (threads == 1) CHECK((result.state == PassState::done) == !cursor->is_under_way());
                    if (helped) continue;
                    CHECK(work.runs > before);
                    REQUIRE(++calls <= work.total());
                }
                CHECK(work.runs == work.total());
                CHECK(work.result() == expected_result(tiles));
            }
        }
    }
}

TEST_CASE("one tile per call where the deadline has passed and nobody helps") {
    Memory memory(heap, MemoryKind::other);
    Work work({3, 0, 1, 1, 2});
    StepClock clock;
    auto cursor = make_cursor(&memory, work, 1, {}, clock.hook());
    cursor->begin(work.tiles);
    for (int i = 1; i <= 7; ++i) {
        CHECK(cursor->is_under_way());
        cursor->advance(0, 1);
        CHECK(work.runs == i);
    }
    CHECK(!cursor->is_under_way());
    CHECK(cursor->advance(0, 1).state == PassState::done);
}

// Two tiles; a worker keeps the one it takes until it may end.
struct HeldTile {
    static void run(void* context, int32_t, int32_t, int32_t thread) {
        auto* self = static_cast<HeldTile*>(context);
        if (thread == 1) {
            self->begun = true;
            while (!self->may_end) std::this_thread::yield();
        } else {
            while (!self->begun) std::this_thread::yield();
        }
    }
    std::atomic<bool> begun{false};
    std::atomic<bool> may_end{false};
};

TEST_CASE(
    "with a deadline nobody waits for a worker that lost its core, whether the call ran a tile or not") {
    Memory memory(heap, MemoryKind::scratch);
    HeldTile held;
    BackendParams params;
    params.threads = 2;
    params.clock = system_clock();
    PassCursor cursor(&memory, 1, params, {&held, HeldTile::run});
    Error error;
    REQUIRE(cursor.start_threads(&memory, &error) == Status::OK);
    const int32_t tiles[] = {2};
    cursor.begin(tiles);
    std::atomic<bool> passed{false};
    std::thread rescuer([&] {  // where the cursor waits after all, the test fails instead of hanging
        for (int i = 0; i < 500 && !passed; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        held.may_end = true;
    });
    const auto in_us = [&](int64_t us) { return system_clock().now() + us * 1000; };
    CHECK(cursor.advance(in_us(100), 2).state == PassState::more);   // its own tile, then none
    CHECK(cursor.advance(in_us(1000), 2).state == PassState::more);  // none at all
    CHECK(cursor.advance(in_us(-1), 2).state == PassState::more);
    CHECK_FALSE(held.may_end);
    passed = true;
    rescuer.join();
    CHECK(cursor.advance(INT64_MAX, 2).state == PassState::done);
}

TEST_CASE("a pass is abandoned or destroyed while workers are in its tiles") {
    std::mt19937 random(9);
    Memory memory(heap, MemoryKind::other);
    Work work({50, 1, 50, 1, 50});
    work.spin = 3000;
    auto cursor = make_cursor(&memory, work, 3, {}, system_clock());
    for (int pass = 0; pass < 60; ++pass) {
        work.clear();
        cursor->begin(work.tiles);
        const int64_t budget_ns = static_cast<int64_t>(random() % 300'000);
        cursor->advance(system_clock().now() + budget_ns, 3);
        if (pass % 2 == 0) {
            cursor->abandon();
            const int64_t runs = work.runs;
            CHECK(!cursor->is_under_way());
            CHECK(cursor->advance(INT64_MAX, 3).state == PassState::done);
            CHECK(work.runs == runs);
        } else {
            CHECK(cursor->advance(INT64_MAX, 3).state == PassState::done);
            CHECK(work.runs == work.total());
        }
    }
    cursor->begin(work.tiles);
    cursor->advance(system_clock().now() + 50'000, 3);
    cursor.reset();
    CHECK(memory.bytes_in_use() == 0);
}

TEST_CASE("a pass without tiles is done at once") {
    Memory memory(heap, MemoryKind::other);
    Work work({0, 0, 0});
    auto cursor = make_cursor(&memory, work, 2, {}, system_clock());
    cursor->begin(work.tiles);
    CHECK(!cursor->is_under_way());
    CHECK(cursor->advance(INT64_MAX, 2).state == PassState::done);
}

TEST_CASE("the worst tile is measured") {
    Memory memory(heap, MemoryKind::other);
    Work work({4, 4});
    work.spin = 20'000;
    for (const ParallelForHook& hook : {hooks[0], hooks[1]}) {
        const int32_t threads = hook.run == nullptr ? 1 : 2;  // of a pool, the caller's tiles are measured
        auto cursor = make_cursor(&memory, work, threads, hook, system_clock());
        cursor->begin(work.tiles);
        CHECK(cursor->advance(INT64_MAX, threads).worst_tile_ns > 1000);
    }
}

TEST_CASE("the caller's rounding mode comes back as it was") {
    Memory memory(heap, MemoryKind::other);
    Work work({4, 1, 4});
    for (const ParallelForHook& hook : {hooks[0], hooks[1]}) {
        auto cursor = make_cursor(&memory, work, 2, hook, system_clock());
        cursor->begin(work.tiles);
        const unsigned before = _mm_getcsr();
        _mm_setcsr(0xBFC0);
        cursor->advance(INT64_MAX, 2);
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        CHECK(after == 0xBFC0);
        CHECK(work.wrong_mode == 0);
    }
}

// ThreadSanitizer does not follow a fork of a program with threads.
#ifndef __SANITIZE_THREAD__
TEST_CASE("a forked child can destroy what it inherited") {
    Memory memory(heap, MemoryKind::other);
    Work work({50, 50});
    work.spin = 2000;
    auto cursor = make_cursor(&memory, work, 3, {}, system_clock());
    cursor->begin(work.tiles);
    cursor->advance(system_clock().now() + 20'000, 3);
    const pid_t child = fork();
    if (child == 0) {
        alarm(10);
        cursor.reset();
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}
#endif
