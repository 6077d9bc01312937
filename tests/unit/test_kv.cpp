// The pool of cache blocks: reserve, acquire, release against a simple model of it.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "kv/block_pool.h"
#include "test_memory.h"

using namespace treadle;

TEST_CASE("a block pool promises no more than it has") {
    test::TestAllocator allocator;
    Memory memory(allocator.hooks(), MemoryKind::kv);
    BlockPool pool(&memory, 8);
    CHECK(pool.total() == 8);
    CHECK(pool.reserve(5));
    CHECK(pool.available() == 3);
    CHECK_FALSE(pool.reserve(4));
    CHECK(pool.available() == 3);
    const int32_t first = pool.acquire();
    const int32_t second = pool.acquire();
    CHECK(first != second);
    CHECK(pool.reserved() == 3);
    CHECK(pool.free_blocks() == 6);
    CHECK(pool.available() == 3);
    pool.add_reference(first);
    pool.release(first);
    CHECK(pool.free_blocks() == 6);
    pool.release(first);
    CHECK(pool.free_blocks() == 7);
    pool.forfeit(3);
    pool.release(second);
    CHECK(pool.available() == 8);
    CHECK(pool.consistent());
}

TEST_CASE("random orders of reserve, acquire, share and release keep the pool consistent") {
    test::TestAllocator allocator;
    Memory memory(allocator.hooks(), MemoryKind::kv);
    std::mt19937 random(7);
    BlockPool pool(&memory, 23);
    std::map<int32_t, int32_t> held;  // block → references
    int32_t reserved = 0;
    for (int i = 0; i < 20000; i++) {
        const auto pick = [&] { return std::next(held.begin(), static_cast<long>(random() % held.size())); };
        switch (random() % 5) {
            case 0: {
                const auto want = static_cast<int32_t>(random() % 6);
                const bool fits = want <= 23 - static_cast<int32_t>(held.size()) - reserved;
                CHECK(pool.reserve(want) == fits);
                reserved += fits ? want : 0;
                break;
            }
            case 1:
                if (reserved > 0) {
                    const int32_t block = pool.acquire();
                    CHECK(held.count(block) == 0);
                    held[block] = 1;
                    reserved--;
                }
                break;
            case 2:
                if (!held.empty()) {
                    const auto place = pick();
                    pool.add_reference(place->first);
                    place->second++;
                }
                break;
            case 3:
                if (!held.empty()) {
                    const auto place = pick();
                    pool.release(place->first);
                    if (--place->second == 0) held.erase(place);
                }
                break;
            default:
                if (reserved > 0) {
                    const auto back = static_cast<int32_t>(random() % static_cast<unsigned>(reserved + 1));
                    pool.forfeit(back);
                    reserved -= back;
                }
        }
        CHECK(pool.available() == 23 - static_cast<int32_t>(held.size()) - reserved);
        CHECK(pool.consistent());
    }
}
