// The cache of blocks: what is found, shared, copied and evicted, against a model of what each block's positions hold.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <vector>

#include "kv/block_cache.h"
#include "test_memory.h"

using namespace treadle;

namespace {

using Tokens = std::vector<int32_t>;

// A cache, and what lies in its blocks: a pass writes the sequence's own beginning up to each position, so that a block that was
// found, shared or copied wrongly shows.
struct World {
    explicit World(int32_t blocks, int32_t cached_max = 1 << 30)
        : cache(&memory.kv, blocks, cached_max, 64), contents(static_cast<size_t>(blocks)),
          copies(&memory.other) {}

    BlockTable table(CacheScope scope = {}) {
        BlockTable made(&memory.other);
        made.scope = scope;
        return made;
    }

    // Prepares and computes up to `end`; false if there was no room.
    bool compute(BlockTable* table, const Tokens& tokens, int32_t end) {
        if (!cache.prepare(table, end, &copies)) return false;
        run_copies();
        write(*table, tokens, end);
        cache.end_copies();
        cache.commit(tokens, end, table);
        return true;
    }
    void run_copies() {
        for (const BlockCopy& copy : copies)
            contents[static_cast<size_t>(copy.to)] = contents[static_cast<size_t>(copy.from)];
        copies.clear();
    }
    void write(const BlockTable& table, const Tokens& tokens, int32_t end) {
        for (int32_t i = table.tokens; i < end; i++)
            contents[static_cast<size_t>(table.blocks[static_cast<size_t>(i / 16)])]
                    [static_cast<size_t>(i % 16)] = beginning(tokens, i + 1);
    }
    int32_t found(const Tokens& tokens, CacheScope scope = {}) {
        BlockTable looked = table(scope);
        cache.match(tokens, &looked);
        const int32_t count = looked.tokens;
        CHECK(holds(looked, tokens));
        cache.release(&looked);
        return count;
    }
    bool holds(const BlockTable& table, const Tokens& tokens) const {
        for (int32_t i = 0; i < table.tokens; i++)
            if (contents[static_cast<size_t>(table.blocks[static_cast<size_t>(i / 16)])]
                        [static_cast<size_t>(i % 16)] != beginning(tokens, i + 1))
                return false;
        return true;
    }
    static uint64_t beginning(const Tokens& tokens, int32_t count) {
        uint64_t hash = 1;
        for (int32_t i = 0; i < count; i++)
            hash = (hash + static_cast<uint64_t>(tokens[static_cast<size_t>(i)])) * 0x9E3779B97F4A7C15u;
        return hash;
    }

    test::TestAllocator allocator;
    MemorySet memory{allocator.hooks()};
    BlockCache cache;
    std::vector<std::array<uint64_t, 16>> contents;
    std::pmr::vector<BlockCopy> copies;
};

Tokens counting(int32_t count, int32_t from = 0) {
    Tokens tokens(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; i++) tokens[static_cast<size_t>(i)] = from + i;
    return tokens;
}

}  // namespace

TEST_CASE("what was computed is found again, to the token") {
    World world(16);
    const Tokens tokens = counting(70);
    BlockTable table = world.table();
    CHECK(world.compute(&table, tokens, 70));
    CHECK(table.blocks.size() == 5);
    for (int32_t count = 1; count <= 70; count++) {
        Tokens asked(tokens.begin(), tokens.begin() + count);
        CHECK(world.found(asked) == count);
        asked.push_back(1000);
        asked.push_back(1001);
        CHECK(world.found(asked) == count);
    }
    world.cache.release(&table);
    CHECK(world.cache.held_blocks() == 0);
    CHECK(world.cache.cached_blocks() == 5);
    CHECK(world.found(tokens) == 70);
    CHECK(world.found(tokens, {7, false}) == 0);  // another salt
    CHECK(world.cache.consistent(0));
}

TEST_CASE("a block that others read further is copied before it is written") {
    World world(16);
    Tokens first = counting(40), second = counting(36);
    second.push_back(500);
    BlockTable a = world.table(), b = world.table();
    CHECK(world.compute(&a, first, 40));
    world.cache.match(second, &b);
    CHECK(b.tokens == 36);
    CHECK(b.blocks == a.blocks);
    CHECK(world.compute(&b, second, 37));
    CHECK(b.blocks[1] == a.blocks[1]);
    CHECK(b.blocks[2] != a.blocks[2]);
    CHECK(world.holds(a, first));
    CHECK(world.holds(b, second));
    CHECK(world.cache.held_blocks() == 4);
    CHECK(world.cache.consistent(6));
}

TEST_CASE("of those that share a last block, the first to write it keeps it") {
    World world(16);
    Tokens first = counting(20), second = counting(20);
    BlockTable a = world.table(), b = world.table();
    CHECK(world.compute(&a, first, 20));
    world.cache.match(second, &b);
    first.push_back(100);
    second.push_back(200);
    // Both in one pass.
    REQUIRE(world.cache.prepare(&a, 21, &world.copies));
    CHECK(world.copies.empty());
    REQUIRE(world.cache.prepare(&b, 21, &world.copies));
    CHECK(world.copies.size() == 1);
    world.run_copies();
    world.write(a, first, 21);
    world.write(b, second, 21);
    world.cache.end_copies();
    world.cache.commit(first, 21, &a);
    world.cache.commit(second, 21, &b);
    CHECK(world.holds(a, first));
    CHECK(world.holds(b, second));
    CHECK(world.cache.consistent(4));
}

TEST_CASE("equal blocks that two sequences computed become one") {
    World world(16);
    const Tokens tokens = counting(48);
    BlockTable a = world.table(), b = world.table();
    CHECK(world.compute(&a, tokens, 10));
    REQUIRE(world.cache.prepare(&b, 48, &world.copies));
    world.write(b, tokens, 48);
    world.cache.commit(tokens, 48, &b);
    CHECK(world.compute(&a, tokens, 48));
    CHECK(a.blocks == b.blocks);
    CHECK(world.cache.held_blocks() == 3);
    CHECK(world.cache.consistent(6));
}

TEST_CASE("eviction takes the least recently used, ends before beginnings, and parts of blocks first") {
    World world(6);
    const Tokens old_tokens = counting(32), new_tokens = counting(40, 1000);
    for (const Tokens& tokens : {old_tokens, new_tokens}) {
        BlockTable table = world.table();
        CHECK(world.compute(&table, tokens, static_cast<int32_t>(tokens.size())));
        world.cache.release(&table);
    }
    CHECK(world.cache.free_blocks() == 1);
    BlockTable other = world.table();
    CHECK(world.compute(&other, counting(32, 5000), 32));
    CHECK(world.found(old_tokens) == 32);
    CHECK(world.found(new_tokens) == 32);  // the part went
    world.cache.release(&other);
    CHECK(world.compute(&other, counting(16, 7000), 16));
    CHECK(world.found(old_tokens) == 16);  // it was looked up before new_tokens
    CHECK(world.found(new_tokens) == 32);
    CHECK(world.cache.consistent(1));
    world.cache.release(&other);
    world.cache.shrink(0);
    CHECK(world.cache.free_blocks() == 6);
    CHECK(world.found(old_tokens) == 0);
}

TEST_CASE("many short sequences leave a hot beginning in the cache") {
    World world(12);
    const Tokens hot = counting(64);
    BlockTable table = world.table();
    CHECK(world.compute(&table, hot, 64));
    world.cache.release(&table);
    for (int32_t i = 0; i < 100; i++) {
        if (i % 4 == 0) CHECK(world.found(hot) == 64);
        CHECK(world.compute(&table, counting(9, 1000 + 20 * i), 9));
        world.cache.release(&table);
    }
    CHECK(world.found(hot) == 64);
}

TEST_CASE("of a thousand that continue one block, the one that shares most is found, to the token") {
    for (const int32_t common : {0, 16}) {
        CAPTURE(common);
        World world(2100);
        std::mt19937 random(7);
        std::vector<Tokens> kept;
        std::vector<BlockTable> tables;
        const auto continuation = [&](uint32_t kinds) {  // few kinds of tokens, so that many begin alike
            Tokens tokens = counting(common);
            for (size_t more = 1 + random() % 16; more > 0; more--)
                tokens.push_back(static_cast<int32_t>(random() % kinds));
            return tokens;
        };
        const auto longest = [&](const Tokens& asked) {
            int32_t most = 0;
            for (const Tokens& tokens : kept) {
                const size_t end = std::min(asked.size(), tokens.size());
                size_t equal = 0;
                while (equal < end && asked[equal] == tokens[equal]) equal++;
                most = std::max(most, static_cast<int32_t>(equal));
            }
            return most;
        };
        for (int32_t i = 0; i < 1000; i++) {
            kept.push_back(continuation(i % 2 == 0 ? 4 : 1000));
            tables.push_back(world.table());
            CHECK(world.compute(&tables.back(), kept.back(), static_cast<int32_t>(kept.back().size())));
        }
        for (int32_t i = 0; i < 1000; i++) {  // half of them grow, some go, some stay without a holder
            const auto at = static_cast<size_t>(i);
            if (i % 2 == 0 && kept[at].size() % 16 != 0) {
                kept[at].push_back(static_cast<int32_t>(random() % 4));
                CHECK(world.compute(&tables[at], kept[at], static_cast<int32_t>(kept[at].size())));
            }
            if (i % 3 == 0) world.cache.release(&tables[at]);
        }
        CHECK(world.cache.cached_blocks() > 200);
        int64_t held = 0;
        for (const BlockTable& table : tables) held += static_cast<int64_t>(table.blocks.size());
        CHECK(world.cache.consistent(held));
        for (int32_t i = 0; i < 1000; i++) {
            Tokens asked = kept[random() % kept.size()];
            asked.resize(static_cast<size_t>(common) + 1 + random() % 16, 5);
            if (i % 2 == 0) asked = continuation(4);
            CHECK(world.found(asked) == longest(asked));
        }
        world.cache.shrink(100);
        for (BlockTable& table : tables) world.cache.release(&table);
        world.cache.shrink(0);
        CHECK(world.cache.free_blocks() == 2100);
        CHECK(world.cache.consistent(0));
    }
}

TEST_CASE("private blocks are found within their scope only, and go when nobody holds them") {
    World world(8);
    const Tokens tokens = counting(40);
    const CacheScope mine = {3, true};
    BlockTable a = world.table(mine), b = world.table(mine);
    CHECK(world.compute(&a, tokens, 40));
    CHECK(world.found(tokens) == 0);
    CHECK(world.found(tokens, {3, false}) == 0);
    world.cache.match(tokens, &b);
    CHECK(b.tokens == 40);
    world.cache.release(&a);
    CHECK(world.found(tokens, mine) == 40);
    world.cache.release(&b);
    CHECK(world.cache.free_blocks() == 8);
    CHECK(world.cache.consistent(0));
}

TEST_CASE("a limit on the blocks that are kept holds") {
    for (const int32_t limit : {0, 1, 3}) {
        World world(10, limit);
        BlockTable table = world.table();
        CHECK(world.compute(&table, counting(90), 90));
        world.cache.release(&table);
        CHECK(world.cache.cached_blocks() == limit);
        CHECK(world.found(counting(90)) == 16 * limit);
        CHECK(world.cache.consistent(0));
    }
}

TEST_CASE("a sequence that fills the whole pool writes over what only the cache remembers") {
    World world(3);
    BlockTable table = world.table();
    const Tokens old_tokens = counting(48);
    CHECK(world.compute(&table, old_tokens, 48));
    world.cache.release(&table);
    Tokens tokens = counting(40);
    tokens.resize(48, 9);
    world.cache.match(tokens, &table);
    CHECK(table.tokens == 40);
    CHECK(world.cache.available() == 0);
    CHECK(world.cache.preparable(table) == 48);
    CHECK(world.compute(&table, tokens, 48));
    CHECK(world.holds(table, tokens));
    CHECK(world.cache.consistent(3));
}

TEST_CASE("a plan that is changed takes its copies back") {
    World world(8);
    const Tokens tokens = counting(24);
    BlockTable a = world.table(), b = world.table();
    CHECK(world.compute(&a, tokens, 24));
    Tokens fork(tokens.begin(), tokens.begin() + 20);
    fork.push_back(77);
    world.cache.match(fork, &b);
    REQUIRE(world.cache.prepare(&b, 21, &world.copies));
    CHECK(world.copies.size() == 1);
    CHECK(world.cache.consistent(5));
    world.cache.cancel_copy(&b, &world.copies);
    CHECK(world.copies.empty());
    world.cache.release(&b);
    CHECK(world.cache.held_blocks() == 2);
    CHECK(world.cache.consistent(2));
}

TEST_CASE("random sequences that grow, fork, end and are cut short: nobody sees another's positions") {
    struct Live {
        Tokens tokens;
        BlockTable table;
    };
    for (uint32_t seed = 1; seed <= 40; seed++) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        const auto below = [&](size_t n) { return static_cast<int32_t>(random() % n); };
        World world(3 + below(30), below(3) == 0 ? below(6) : 1 << 30);
        std::deque<Live> live;
        std::vector<Tokens> remembered;
        for (int i = 0; i < 1500; i++) {
            const int32_t what = below(8);
            if (what < 2 || live.empty()) {  // a new one, perhaps with a beginning that was there before
                Live next{{}, world.table(below(6) == 0 ? CacheScope{1, true} : CacheScope{})};
                if (!remembered.empty() && below(4) > 0) {
                    const Tokens& old_tokens = remembered[random() % remembered.size()];
                    next.tokens.assign(old_tokens.begin(), old_tokens.begin() + below(old_tokens.size() + 1));
                }
                for (int32_t more = below(40); more >= 0; more--) next.tokens.push_back(below(3));
                world.cache.match(next.tokens, &next.table);
                CHECK(world.holds(next.table, next.tokens));
                live.push_back(std::move(next));
            } else if (what < 6) {  // a pass over several
                std::vector<std::pair<Live*, int32_t>> planned;
                for (Live& one : live) {
                    if (below(3) == 0) continue;
                    if (one.table.tokens == static_cast<int32_t>(one.tokens.size()))
                        one.tokens.push_back(below(3));
                    const int32_t end = one.table.tokens + 1 +
                                        below(one.tokens.size() - static_cast<size_t>(one.table.tokens));
                    const int32_t could = world.cache.preparable(one.table);
                    const bool done = world.cache.prepare(&one.table, end, &world.copies);
                    CHECK(done == (end <= could));
                    if (done) planned.emplace_back(&one, end);
                }
                if (!planned.empty() && below(5) == 0) {  // the last is taken out of the plan again
                    world.cache.cancel_copy(&planned.back().first->table, &world.copies);
                    world.cache.release(&planned.back().first->table);
                    planned.pop_back();
                }
                world.run_copies();
                for (const auto& [one, end] : planned) world.write(one->table, one->tokens, end);
                world.cache.end_copies();
                for (const auto& [one, end] : planned) world.cache.commit(one->tokens, end, &one->table);
            } else {
                const auto place = live.begin() + below(live.size());
                remembered.push_back(place->tokens);
                world.cache.release(&place->table);
                live.erase(place);
            }
            int64_t held = 0;
            for (const Live& one : live) {
                REQUIRE(world.holds(one.table, one.tokens));
                held += static_cast<int64_t>(one.table.blocks.size());
            }
            REQUIRE(world.cache.consistent(held));
        }
    }
}

TEST_CASE("slabs go with what is cached in them, and come back free") {
    World world(70);  // slabs of two blocks
    const Tokens tokens = counting(100);
    BlockTable table = world.table(), other = world.table();
    CHECK(world.compute(&table, tokens, 100));
    CHECK(world.compute(&other, counting(20, 5000), 20));
    CHECK(table.blocks == decltype(table.blocks)({0, 1, 2, 3, 4, 5, 6}));  // the first slabs first
    CHECK(world.cache.slabs() == 35);
    for (const int32_t slab : {0, 1, 2, 3, 4}) CHECK(world.cache.is_held(slab));
    CHECK_FALSE(world.cache.is_held(5));
    world.cache.release(&table);
    CHECK_FALSE(world.cache.is_held(1));
    CHECK(world.cache.is_held(3));  // the other's first block
    world.cache.remove_slab(1);     // blocks 2 and 3: what continues them is forgotten too
    CHECK(world.cache.away_blocks() == 2);
    CHECK(world.cache.cached_blocks() == 2);
    CHECK(world.found(tokens) == 32);
    CHECK(world.cache.consistent(2));
    for (int32_t slab = 0; slab < world.cache.slabs(); slab++)
        if (!world.cache.is_held(slab) && !world.cache.is_away(slab)) world.cache.remove_slab(slab);
    CHECK(world.cache.present() == 4);  // the other's slabs
    CHECK(world.cache.available() == 2);
    CHECK(world.found(tokens) == 0);
    CHECK(world.cache.consistent(2));
    BlockTable large = world.table();
    CHECK_FALSE(world.compute(&large, tokens, 40));
    world.cache.add_slab(34);
    world.cache.add_slab(0);
    CHECK(world.compute(&large, tokens, 90));
    CHECK(large.blocks.front() == 0);
    CHECK(large.blocks.back() == 69);
    CHECK(world.cache.available() == 0);
    CHECK(world.cache.consistent(8));
    world.cache.release(&large);
    world.cache.release(&other);
    CHECK(world.cache.held_blocks() == 0);
    CHECK(world.cache.consistent(0));
}

TEST_CASE("slabs cover every pool") {
    for (const int32_t blocks : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 513, 100000, INT32_MAX / 16}) {
        CAPTURE(blocks);
        const int64_t size = limits::kv_slab_blocks(blocks);
        const int64_t slabs = limits::kv_slabs(blocks);
        CHECK(slabs <= limits::kv_slabs_max);
        CHECK((slabs >= 32 || size == 1));
        CHECK(slabs * size >= blocks);
        CHECK((slabs - 1) * size < blocks);
    }
}
