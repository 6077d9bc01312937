// engine_trim as a host sees it: memory goes back through the hooks and comes again with the load, whoever lives finishes
// without it, and no token changes.
#include <atomic>

#include "api_fixture.h"

using namespace treadle::test;

namespace {

// Counts the bytes of the KV cache, and refuses more when told to.
struct KvMeter {
    std::atomic<int64_t> bytes{0};
    std::atomic<int64_t> allocations{0};   // of every kind
    std::atomic<int64_t> left{INT64_MAX};  // of the KV cache that may still be allocated

    engine_model_params params() {
        engine_model_params params = model_params();
        params.alloc_user = this;
        params.alloc = [](void* user, size_t size, size_t alignment, int32_t kind) -> void* {
            auto* self = static_cast<KvMeter*>(user);
            self->allocations++;
            if (kind == ENGINE_MEMORY_KV) {
                if (self->left-- <= 0) return nullptr;
                self->bytes += static_cast<int64_t>(size);
            }
            alignment = std::max(alignment, alignof(std::max_align_t));
            return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
        };
        params.free = [](void* user, void* pointer, size_t size, size_t, int32_t kind) {
            if (kind == ENGINE_MEMORY_KV) static_cast<KvMeter*>(user)->bytes -= static_cast<int64_t>(size);
            std::memset(pointer, 0xdd, size);
            std::free(pointer);
        };
        return params;
    }
};

struct TrimHost {
    explicit TrimHost(const engine_params& params = small_engine_params()) : host(params, meter.params()) {
        engine_info info;
        REQUIRE(engine_info_init(&info, sizeof info) == ENGINE_OK);
        REQUIRE(engine_get_info(host.e, &info) == ENGINE_OK);
        block_bytes = static_cast<int64_t>(info.kv_block_bytes);
        books_bytes = meter.bytes - block_bytes * info.kv_blocks;
    }
    int64_t bytes() const { return meter.bytes - books_bytes; }  // of blocks

    engine_status try_ask(uint32_t seed, size_t prompt, int32_t max_tokens, engine_request* id,
                          engine_error* error = nullptr) {
        const std::vector<int32_t> tokens = some_tokens(seed, prompt);
        const engine_part part = tokens_part(tokens);
        engine_request_params params = request_params(&part, 1);
        params.max_tokens = max_tokens;
        params.temperature = 1;
        params.seed = seed;
        params.ignore_end = 1;
        return engine_submit(host.e, &params, id, error);
    }
    engine_request ask(uint32_t seed, size_t prompt, int32_t max_tokens) {
        engine_request id = 0;
        REQUIRE(try_ask(seed, prompt, max_tokens, &id) == ENGINE_OK);
        return id;
    }
    std::vector<int32_t> answer(uint32_t seed, size_t prompt, int32_t max_tokens) {
        const engine_request id = ask(seed, prompt, max_tokens);
        host.run();
        return host.stories[id].tokens;
    }
    // What is given back is what the hooks say, and what the stats say.
    int64_t trim() {
        const int64_t before = meter.bytes;
        uint64_t bytes = 77;
        REQUIRE(engine_trim(host.e, &bytes) == ENGINE_OK);
        CHECK(before - meter.bytes == static_cast<int64_t>(bytes));
        check_stats();
        return static_cast<int64_t>(bytes);
    }
    engine_stats stats() {
        engine_stats value;
        REQUIRE(engine_stats_init(&value, sizeof value) == ENGINE_OK);
        REQUIRE(engine_get_stats(host.e, &value) == ENGINE_OK);
        return value;
    }
    void check_stats() {
        engine_info info;
        REQUIRE(engine_info_init(&info, sizeof info) == ENGINE_OK);
        REQUIRE(engine_get_info(host.e, &info) == ENGINE_OK);
        const engine_stats now = stats();
        CHECK(now.kv_bytes == static_cast<uint64_t>(meter.bytes.load()));
        CHECK(info.kv_bytes == now.kv_bytes);
        CHECK(now.kv_blocks_free + now.kv_blocks_held + now.kv_blocks_cached + now.kv_blocks_trimmed ==
              info.kv_blocks);
        CHECK(bytes() == block_bytes * (info.kv_blocks - now.kv_blocks_trimmed));
    }

    KvMeter meter;
    Host host;
    int64_t block_bytes = 0;
    int64_t books_bytes = 0;  // who owns which block is written down for all of them, wherever they are
};

}  // namespace

TEST_CASE("after a burst all of the cache goes back, and a later load gets it again with the same tokens") {
    TrimHost twin;
    TrimHost trimmed;
    const int64_t all = trimmed.bytes();
    CHECK(all > 0);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 12; i++) {
            trimmed.ask(i, 60 + i, 20);
            twin.ask(i, 60 + i, 20);
        }
        trimmed.host.run();
        twin.host.run();
        if (round > 0) CHECK(trimmed.bytes() == all);
        CHECK(trimmed.trim() == all);
        CHECK(trimmed.bytes() == 0);
        CHECK(trimmed.stats().kv_blocks_trimmed == 64);
        CHECK(trimmed.trim() == 0);
    }
    REQUIRE(trimmed.host.stories.size() == 36);
    auto expected = twin.host.stories.begin();
    for (const auto& [id, story] : trimmed.host.stories) {
        CHECK(story.tokens == expected->second.tokens);
        CHECK(story.finish_reason == ENGINE_FINISH_LENGTH);
        ++expected;
    }
}

TEST_CASE("a little load takes a little back, and what is cached counts as load") {
    TrimHost rig;
    rig.trim();
    rig.answer(1, 20, 12);  // 31 positions: two blocks, and the watermark's three
    CHECK(rig.bytes() <= 6 * rig.block_bytes);
    CHECK(rig.bytes() >= 2 * rig.block_bytes);
    const uint64_t evicted = rig.stats().evicted_blocks;
    for (uint32_t i = 2; i < 10; i++) rig.answer(i, 20, 12);
    CHECK(rig.stats().evicted_blocks == evicted);  // nothing had to make room
    const uint64_t hits = rig.stats().cached_tokens;
    for (uint32_t i = 1; i < 10; i++) rig.answer(i, 20, 12);
    CHECK(rig.stats().cached_tokens == hits + 9 * 20);
    rig.check_stats();
}

TEST_CASE("a trim in the middle of a pass leaves what the pass uses, and no step allocates after it") {
    for (const int32_t policy : {ENGINE_MEMORY_PREEMPT, ENGINE_MEMORY_RESERVE}) {
        engine_params params = small_engine_params();
        params.memory_policy = policy;
        TrimHost twin(params);
        TrimHost rig(params);
        rig.answer(100, 90, 20);  // something cached, in blocks before those of the others
        twin.answer(100, 90, 20);
        std::vector<engine_request> ids, twins;
        for (uint32_t i = 0; i < 6; i++) {
            ids.push_back(rig.ask(i, 30 + 7 * i, 20));
            twins.push_back(twin.ask(i, 30 + 7 * i, 20));
        }
        int64_t given_back = 0;
        for (int i = 0; i < 100000; i++) {
            const int64_t allocations = rig.meter.allocations;
            const engine_step_report report = rig.host.step(1);
            CHECK(rig.meter.allocations == allocations);
            if (i % 3 == 0) given_back += rig.trim();
            rig.host.poll();
            if (report.next_step_us != 0 && report.waiting_poll == 0) break;
        }
        twin.host.run();
        for (size_t i = 0; i < ids.size(); i++)
            CHECK(rig.host.stories[ids[i]].tokens == twin.host.stories[twins[i]].tokens);
        CHECK(given_back > 0);
        rig.trim();
        CHECK(rig.bytes() == 0);
    }
}

TEST_CASE("pinned prefixes stay, cached ones go") {
    TrimHost rig;
    const std::vector<int32_t> prefix = some_tokens(500, 100);
    const engine_part part = tokens_part(prefix);
    engine_pin_params params;
    REQUIRE(engine_pin_params_init(&params, sizeof params) == ENGINE_OK);
    params.parts = &part;
    params.part_count = 1;
    engine_request pin = 0;
    REQUIRE(engine_pin(rig.host.e, &params, &pin, nullptr) == ENGINE_OK);
    rig.trim();  // before it is computed: its blocks are promised
    CHECK(rig.bytes() > 0);
    rig.host.run();
    const std::vector<int32_t> with_pin = rig.answer(500, 120, 8);
    CHECK(rig.stats().cached_tokens == 100);
    rig.answer(7, 50, 8);
    rig.trim();
    CHECK(rig.stats().kv_blocks_held == 7);
    CHECK(rig.stats().kv_blocks_cached <= 1);  // beside the pin's last block, in its slab
    const uint64_t before = rig.stats().cached_tokens;
    CHECK(rig.answer(500, 120, 8) == with_pin);
    CHECK(rig.stats().cached_tokens >= before + 100);
    const uint64_t then = rig.stats().cached_tokens;
    rig.trim();
    rig.answer(7, 50, 8);
    CHECK(rig.stats().cached_tokens == then);
    REQUIRE(engine_unpin(rig.host.e, pin) == ENGINE_OK);
    rig.host.run();
    rig.trim();
    CHECK(rig.bytes() == 0);
}

TEST_CASE("a submission that doesn't get memory again is NOMEM and changes nothing; the next one gets it") {
    TrimHost rig;
    const std::vector<int32_t> expected = rig.answer(3, 200, 30);
    rig.trim();
    for (int64_t n = 0;; n++) {
        CAPTURE(n);
        REQUIRE(n < 64);
        engine_request id = 0;
        Failure failure;
        rig.meter.left = n;
        const engine_status status = rig.try_ask(3, 200, 30, &id, failure);
        rig.meter.left = INT64_MAX;
        if (status == ENGINE_OK) {
            rig.check_stats();
            rig.host.run();
            CHECK(rig.host.stories[id].tokens == expected);
            break;
        }
        REQUIRE(status == ENGINE_NOMEM);
        CHECK(failure.names("trimmed"));
        CHECK(rig.bytes() == 0);
        CHECK(rig.stats().requests_submitted == 1);
        CHECK(rig.host.step().next_step_us == -1);
    }
}

TEST_CASE("a trim before anything was asked gives all back") {
    TrimHost rig;
    CHECK(rig.trim() > 0);
    CHECK(rig.bytes() == 0);
    CHECK(engine_trim(rig.host.e, nullptr) == ENGINE_OK);
}
