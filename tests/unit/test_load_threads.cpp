// Threads for a load: each body runs once, whatever the counts, and the caller sees what bodies did.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "cpu/load_threads.h"
#include "test_memory.h"

using namespace treadle;
using namespace treadle::test;

TEST_CASE("load threads: every body runs once in each run, and its effects are seen") {
    TestAllocator allocator;
    Memory memory(allocator.hooks(), MemoryKind::scratch);
    for (const int32_t threads : {2, 3, 8}) {
        Owned<cpu::LoadThreads> made;
        REQUIRE(cpu::LoadThreads::create(&memory, threads, &made, nullptr) == Status::OK);
        const ParallelForHook hook = made->hook();
        std::vector<int32_t> seen(200);  // plain: a race shows under a sanitizer
        for (int32_t round = 0; round < 300; ++round) {
            const int32_t count = round % 40 == 0 ? 0 : 1 + round * 7 % 200;
            hook.run(
                hook.user,
                [](void* context, int32_t index) {
                    (*static_cast<std::vector<int32_t>*>(context))[static_cast<size_t>(index)]++;
                },
                &seen, count);
            for (int32_t& value : seen) {
                const auto index = static_cast<int32_t>(&value - seen.data());
                REQUIRE(value == (index < count ? 1 : 0));
                value = 0;
            }
        }
    }
    CHECK(allocator.live() == 0);
}

TEST_CASE("load threads: several work at once") {
    TestAllocator allocator;
    Memory memory(allocator.hooks(), MemoryKind::scratch);
    Owned<cpu::LoadThreads> made;
    REQUIRE(cpu::LoadThreads::create(&memory, 3, &made, nullptr) == Status::OK);
    const ParallelForHook hook = made->hook();
    std::atomic<int32_t> inside{0};
    hook.run(
        hook.user,
        [](void* context, int32_t) {  // none returns before all three have come
            auto* all = static_cast<std::atomic<int32_t>*>(context);
            for (all->fetch_add(1); all->load() < 3;) std::this_thread::yield();
        },
        &inside, 3);
    CHECK(inside.load() == 3);
}

TEST_CASE("load threads: where memory runs out nothing is left") {
    for (int64_t n = 0;; ++n) {
        TestAllocator allocator;
        Memory memory(allocator.hooks(), MemoryKind::scratch);
        allocator.fail_from(n);
        Owned<cpu::LoadThreads> made;
        bool out_of_memory = false;
        try {
            const Status status = cpu::LoadThreads::create(&memory, 4, &made, nullptr);
            CHECK(status == Status::OK);
        } catch (const std::bad_alloc&) {
            out_of_memory = true;
        }
        made = nullptr;
        CHECK(allocator.live() == 0);
        if (!out_of_memory) break;
    }
}
