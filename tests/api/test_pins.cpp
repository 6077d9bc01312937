// Pinned prefixes as a host sees them: they stay whatever happens, cost what they fill, and change no token.
#include "api_fixture.h"
#include "test_memory.h"

using namespace treadle::test;

namespace {

std::vector<int32_t> beginning(const std::vector<int32_t>& tokens, size_t count) {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

engine_params engine_of(int32_t kv_blocks, int32_t policy = ENGINE_MEMORY_PREEMPT) {
    engine_params params = small_engine_params();
    params.kv_blocks = kv_blocks;
    params.memory_policy = policy;
    return params;
}

engine_pin_params pin_params(const engine_part* parts, size_t count) {
    engine_pin_params params;
    REQUIRE(engine_pin_params_init(&params, sizeof params) == ENGINE_OK);
    params.parts = parts;
    params.part_count = count;
    return params;
}

struct PinHost : Host {
    using Host::Host;
    engine_status try_pin(const std::vector<int32_t>& prefix, engine_request* id,
                          engine_error* error = nullptr) {
        const engine_part part = tokens_part(prefix);
        const engine_pin_params params = pin_params(&part, 1);
        return engine_pin(e, &params, id, error);
    }
    engine_request pin(const std::vector<int32_t>& prefix) {
        engine_request id = 0;
        REQUIRE(try_pin(prefix, &id) == ENGINE_OK);
        return id;
    }
    engine_request ask(const std::vector<int32_t>& prompt, int32_t max_tokens, float temperature = 0) {
        const engine_part part = tokens_part(prompt);
        engine_request_params params = request_params(&part, 1);
        params.max_tokens = max_tokens;
        params.temperature = temperature;
        params.seed = prompt.size();
        params.ignore_end = 1;
        params.keep = 1;
        return submit(params);
    }
    engine_request_info info(engine_request id) {
        engine_request_info value;
        REQUIRE(engine_request_info_init(&value, sizeof value) == ENGINE_OK);
        REQUIRE(engine_request_get_info(e, id, &value) == ENGINE_OK);
        return value;
    }
    engine_stats stats() const { return stats_of(e); }
    void flood() {
        for (uint32_t i = 0; i < 12; i++) {
            const engine_request id = ask(some_tokens(1000 + i, 40 + i), 6);
            run();
            CHECK(stories[id].finished == 1);
            REQUIRE(engine_release(e, id) == ENGINE_OK);
        }
    }
};

}  // namespace

TEST_CASE("a pinned prefix survives a flood, an unpinned one goes, and neither changes a token") {
    const std::vector<int32_t> prefix = some_tokens(1, 100);
    const std::vector<int32_t> prompt = joined(prefix, some_tokens(2, 9));
    PinHost alone(engine_of(64));
    const engine_request expected = alone.ask(prompt, 20, 1);
    alone.run();
    for (const int32_t policy : {ENGINE_MEMORY_PREEMPT, ENGINE_MEMORY_RESERVE}) {
        PinHost host(engine_of(14, policy));
        const engine_request pin = host.pin(prefix);
        CHECK(host.info(pin).state == ENGINE_REQUEST_WAITING);
        CHECK(host.info(pin).queue_place == 0);
        host.step();
        CHECK(host.info(pin).state == ENGINE_REQUEST_PROMPT);
        CHECK(host.info(pin).prompt_tokens_done == 32);
        host.run();
        CHECK(host.info(pin).state == ENGINE_REQUEST_PINNED);
        CHECK(host.info(pin).prompt_tokens == 100);
        CHECK(host.info(pin).prompt_tokens_done == 100);
        CHECK(host.info(pin).generated_tokens == 0);
        CHECK(host.stories.empty());  // no events
        CHECK(host.stats().kv_blocks_pinned == 7);
        CHECK(host.stats().kv_blocks_held == 7);
        CHECK(host.stats().running == 0);
        CHECK(host.stats().requests_submitted == 0);
        for (int round = 0; round < 2; round++) {
            host.flood();
            const engine_request id = host.ask(prompt, 20, 1);
            host.run();
            CHECK(host.info(id).cached_tokens >= 100);
            CHECK(host.stories[id].tokens == alone.stories[expected].tokens);
        }
        REQUIRE(engine_unpin(host.e, pin) == ENGINE_OK);
        CHECK(engine_unpin(host.e, pin) == ENGINE_STALE_ID);
        CHECK(host.stats().kv_blocks_pinned == 0);
        host.step();
        CHECK(host.stats().kv_blocks_held == 0);
        host.flood();
        const engine_request id = host.ask(prompt, 20, 1);
        host.run();
        CHECK(host.info(id).cached_tokens == 0);
        CHECK(host.stories[id].tokens == alone.stories[expected].tokens);
    }
}

TEST_CASE("what pins leave is what others may get, but what they begin with costs nothing") {
    PinHost host(engine_of(10));
    const std::vector<int32_t> prefix = some_tokens(3, 70);  // five blocks, four of them whole
    const engine_request pin = host.pin(prefix);
    CHECK(host.stats().kv_blocks_pinned == 5);  // before it is computed

    const engine_request other = host.ask(some_tokens(4, 20), -1);
    const engine_request same = host.ask(joined(prefix, {5, 6, 7}), -1);
    host.run();
    CHECK(host.info(pin).state == ENGINE_REQUEST_PINNED);
    CHECK(host.stories[other].finish_reason == ENGINE_FINISH_LENGTH);
    CHECK(host.stories[other].prompt_tokens + host.stories[other].generated_tokens == 16 * 5);
    CHECK(host.stories[same].prompt_tokens + host.stories[same].generated_tokens == 16 * 9);

    const std::vector<int32_t> long_prompt = some_tokens(5, 80);
    const engine_part part = tokens_part(long_prompt);
    const engine_request_params params = request_params(&part, 1);
    Failure failure;
    engine_request id = 77;
    CHECK(engine_submit(host.e, &params, &id, failure) == ENGINE_POOL_TOO_SMALL);
    CHECK(id == 77);
    for (const char* word : {"80 tokens", "holds 80", "kv_blocks is 10", "pinned are 5", "begins with 0"})
        CHECK_MESSAGE(failure.names(word), failure.message());
    REQUIRE(engine_unpin(host.e, pin) == ENGINE_OK);
    CHECK(engine_submit(host.e, &params, &id, failure) == ENGINE_OK);
    host.run();
    CHECK(host.stories[id].finished == 1);
}

TEST_CASE("a pin that a live request could not finish beside is refused with the numbers") {
    for (const int32_t policy : {ENGINE_MEMORY_PREEMPT, ENGINE_MEMORY_RESERVE}) {
        PinHost host(engine_of(10, policy));
        const std::vector<int32_t> prompt = some_tokens(6, 50);
        const engine_request live = host.ask(prompt, 60);  // 110 tokens: seven blocks
        engine_request pin = 0;
        Failure failure;
        CHECK(host.try_pin(some_tokens(7, 49), &pin, failure) == ENGINE_POOL_TOO_SMALL);
        for (const char* word : {"110 tokens", "7 blocks", "49 tokens", "4 were pinned", "kv_blocks is 10"})
            CHECK_MESSAGE(failure.names(word), failure.message());
        CHECK(pin == 0);
        CHECK(host.stats().kv_blocks_pinned == 0);
        const engine_request small = host.pin(some_tokens(7, 48));
        CHECK(host.try_pin(some_tokens(8, 1), &pin) == ENGINE_POOL_TOO_SMALL);
        const engine_request shared = host.pin(beginning(prompt, 48));  // blocks that the request has anyway
        CHECK(host.stats().kv_blocks_pinned == 6);
        host.run();
        CHECK(host.stories[live].generated_tokens == 60);
        CHECK(host.info(small).state == ENGINE_REQUEST_PINNED);
        CHECK(host.info(shared).state == ENGINE_REQUEST_PINNED);
        CHECK(host.try_pin(some_tokens(9, 70), &pin, failure) == ENGINE_POOL_TOO_SMALL);  // 11 of 10
        CHECK(host.try_pin(some_tokens(9, 60), &pin, failure) == ENGINE_POOL_TOO_SMALL);  // no block is left
        CHECK_MESSAGE(failure.names("10 blocks were pinned"), failure.message());
        const engine_request last = host.pin(some_tokens(9, 40));
        host.run();
        CHECK(host.info(last).state == ENGINE_REQUEST_PINNED);
        CHECK(host.stats().kv_blocks_pinned == 9);
        const engine_request in_one_block = host.ask({4, 5, 6}, -1);
        host.run();
        CHECK(host.stories[in_one_block].generated_tokens == 13);
    }
}

TEST_CASE("pins with a common beginning count and compute it once, equal ones too") {
    PinHost host;
    const std::vector<int32_t> prefix = some_tokens(10, 64);
    const engine_request one = host.pin(joined(prefix, some_tokens(11, 16)));
    const engine_request two = host.pin(joined(prefix, some_tokens(12, 20)));
    const engine_request equal = host.pin(joined(prefix, some_tokens(11, 16)));
    CHECK(host.stats().kv_blocks_pinned == 4 + 1 + 2);
    host.run();
    CHECK(host.stats().prompt_tokens == 64 + 16 + 20);
    CHECK(host.stats().kv_blocks_held == 7);
    for (const engine_request id : {one, two, equal}) CHECK(host.info(id).state == ENGINE_REQUEST_PINNED);
    REQUIRE(engine_unpin(host.e, one) == ENGINE_OK);
    CHECK(host.stats().kv_blocks_pinned == 7);
    REQUIRE(engine_unpin(host.e, equal) == ENGINE_OK);
    CHECK(host.stats().kv_blocks_pinned == 6);
    host.step();
    CHECK(host.stats().kv_blocks_held == 6);
    REQUIRE(engine_unpin(host.e, two) == ENGINE_OK);
    host.step();
    CHECK(host.stats().kv_blocks_held == 0);
    CHECK(host.stats().kv_blocks_pinned == 0);
}

TEST_CASE("a pin of what a request is computing waits for it and computes nothing again") {
    PinHost host;
    const std::vector<int32_t> prompt = some_tokens(13, 150);
    const engine_request id = host.ask(prompt, 4);
    host.step();
    const engine_request pin = host.pin(beginning(prompt, 133));
    host.step();
    CHECK(host.info(pin).state == ENGINE_REQUEST_WAITING);
    host.run();
    CHECK(host.info(pin).state == ENGINE_REQUEST_PINNED);
    CHECK(host.info(pin).prompt_tokens_done == 133);
    CHECK(host.stories[id].generated_tokens == 4);
    CHECK(host.stats().prompt_tokens < 150 + 16);  // a part of a block at most
}

TEST_CASE("an unpin works in every state, also in the middle of a pass, and neighbours don't notice") {
    const std::vector<int32_t> prefix = some_tokens(14, 90);
    PinHost quiet;
    const engine_request expected = quiet.ask(joined(prefix, {9, 8}), 30, 1);
    quiet.run();
    for (int after = 0; after < 40; after++) {
        PinHost host;
        const engine_request neighbour = host.ask(joined(prefix, {9, 8}), 30, 1);
        const engine_request pin = host.pin(some_tokens(15, 120));
        const engine_request begun = host.pin(beginning(prefix, 77));
        for (int i = 0; i < after; i++) host.step(after % 2 == 0 ? 0 : 1);
        const auto let_go = after % 3 == 0 ? engine_unpin : after % 3 == 1 ? engine_cancel : engine_release;
        REQUIRE(let_go(host.e, pin) == ENGINE_OK);
        CHECK(engine_cancel(host.e, pin) == ENGINE_STALE_ID);
        host.run();
        CHECK(host.stories.size() == 1);
        CHECK(host.stories[neighbour].tokens == quiet.stories[expected].tokens);
        CHECK(host.info(begun).state == ENGINE_REQUEST_PINNED);
        CHECK(host.stats().kv_blocks_held == 5);
        REQUIRE(engine_unpin(host.e, begun) == ENGINE_OK);
        host.step();
        CHECK(host.stats().kv_blocks_held == 0);
    }
}

TEST_CASE("a fork of a pin is a request that starts from the prefix, also where the prefix cache is off") {
    const std::vector<int32_t> prefix = some_tokens(16, 50);
    PinHost plain;
    const engine_request expected = plain.ask(prefix, 12);
    plain.run();
    for (const int32_t prefix_cache : {1, 0}) {
        engine_params params = small_engine_params();
        params.prefix_cache = prefix_cache;
        PinHost host(params);
        const engine_request pin = host.pin(prefix);
        host.run();
        const engine_request asked = host.ask(prefix, 12);
        engine_request_params of_fork = request_params(nullptr, 0);
        of_fork.max_tokens = 12;
        of_fork.ignore_end = 1;
        of_fork.keep = 1;
        engine_request fork = 0, endless = 0, shorter = 0;
        REQUIRE(engine_fork(host.e, pin, 0, 50, &of_fork, &fork, nullptr) == ENGINE_OK);
        REQUIRE(engine_fork(host.e, pin, 0, 30, &of_fork, &shorter, nullptr) == ENGINE_OK);
        REQUIRE(engine_fork(host.e, pin, 0, 50, nullptr, &endless, nullptr) == ENGINE_OK);
        CHECK(engine_fork(host.e, pin, 0, 51, nullptr, &endless, nullptr) == ENGINE_INVALID_ARGUMENT);
        host.run();
        CHECK(host.info(asked).cached_tokens == (prefix_cache == 1 ? 50 : 0));
        CHECK(host.info(fork).cached_tokens == 50);
        CHECK(host.info(shorter).cached_tokens == 30);
        CHECK(host.stories[fork].tokens == plain.stories[expected].tokens);
        CHECK(host.stories[endless].finished == 1);
        std::vector<int32_t> tokens(64);
        size_t count = 0;
        REQUIRE(engine_sequence_tokens(host.e, pin, 0, tokens.data(), 64, &count) == ENGINE_OK);
        tokens.resize(count);
        CHECK(tokens == prefix);
        REQUIRE(engine_unpin(host.e, pin) == ENGINE_OK);
        host.step();
        CHECK(host.stats().kv_blocks_held == 0);
    }
}

TEST_CASE("a pinned chat prefix is the beginning of the conversations that start with it") {
    PinHost host;
    const engine_part parts[] = {message_part("system", "You guard the bridge."), message_part("user", "hi")};
    const engine_pin_params params = pin_params(parts, 1);
    engine_request pin = 0;
    REQUIRE(engine_pin(host.e, &params, &pin, nullptr) == ENGINE_OK);
    host.run();
    engine_request_params request = request_params(parts, 2);
    request.keep = 1;
    const engine_request id = host.submit(request);
    host.run();
    CHECK(host.info(pin).prompt_tokens > 20);
    CHECK(host.info(id).cached_tokens == host.info(pin).prompt_tokens);
}

TEST_CASE("a salted pin is found by requests with its salt only") {
    PinHost host;
    const std::vector<int32_t> prefix = some_tokens(17, 40);
    const engine_part part = tokens_part(prefix);
    engine_pin_params params = pin_params(&part, 1);
    params.cache_salt = 5;
    engine_request pin = 0;
    REQUIRE(engine_pin(host.e, &params, &pin, nullptr) == ENGINE_OK);
    host.run();
    for (const uint64_t salt : {0, 5, 6}) {
        const std::vector<int32_t> prompt = joined(prefix, {1});
        const engine_part of_request = tokens_part(prompt);
        engine_request_params request = request_params(&of_request, 1);
        request.cache_salt = salt;
        request.max_tokens = 1;
        request.keep = 1;
        const engine_request id = host.submit(request);
        host.run();
        CHECK(host.info(id).cached_tokens == (salt == 5 ? 40 : 0));
    }
}

TEST_CASE("a pin's priority counts until it is whole") {
    PinHost host;
    const std::vector<int32_t> prefix = some_tokens(18, 80);
    const engine_request pin = host.pin(prefix);
    host.step();
    REQUIRE(engine_set_priority(host.e, pin, ENGINE_PRIORITY_PAUSED) == ENGINE_OK);
    host.run();
    CHECK(host.info(pin).state == ENGINE_REQUEST_PAUSED);
    CHECK(host.stats().kv_blocks_held == 0);
    REQUIRE(engine_set_priority(host.e, pin, ENGINE_PRIORITY_BULK) == ENGINE_OK);
    host.run();
    CHECK(host.info(pin).state == ENGINE_REQUEST_PINNED);
    REQUIRE(engine_set_priority(host.e, pin, ENGINE_PRIORITY_PAUSED) == ENGINE_OK);
    host.run();
    CHECK(host.info(pin).state == ENGINE_REQUEST_PINNED);
    CHECK(host.stats().kv_blocks_held == 5);
}

TEST_CASE("pins of wrong arguments say what is wrong, a failing allocation leaves nothing") {
    TestAllocator allocator;
    engine_params of_engine = small_engine_params();
    of_engine.max_requests = 2;
    PinHost host(of_engine, params_with(allocator));
    Failure failure;
    engine_request id = 0;
    const engine_part part = text_part("a prefix");
    engine_pin_params params = pin_params(&part, 1);
    CHECK(engine_pin(nullptr, &params, &id, failure) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_pin(host.e, nullptr, &id, failure) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_pin(host.e, &params, nullptr, failure) == ENGINE_INVALID_ARGUMENT);
    params.priority = 4;
    CHECK(engine_pin(host.e, &params, &id, failure) == ENGINE_INVALID_ARGUMENT);
    params.priority = ENGINE_PRIORITY_BULK;
    params.part_count = 0;
    CHECK(engine_pin(host.e, &params, &id, failure) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("no token"));
    params.part_count = 1;
    params.struct_size = 3;
    CHECK(engine_pin(host.e, &params, &id, failure) == ENGINE_STRUCT_SIZE);
    params.struct_size = sizeof params;
    CHECK(host.try_pin(some_tokens(19, 256), &id, failure) == ENGINE_PROMPT_TOO_LONG);
    CHECK(engine_unpin(nullptr, 1) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_unpin(host.e, 1) == ENGINE_STALE_ID);
    CHECK(id == 0);

    const int64_t before = allocator.live();
    for (int64_t n = 0;; n++) {
        allocator.fail_from(n);
        const engine_status status = engine_pin(host.e, &params, &id, failure);
        allocator.fail_never();
        if (status == ENGINE_OK) break;
        CAPTURE(n);
        REQUIRE(status == ENGINE_NOMEM);
        REQUIRE(allocator.live() == before);
        REQUIRE(host.stats().kv_blocks_pinned == 0);
    }
    const engine_request request = host.submit_text("no pin", 2);
    CHECK(engine_unpin(host.e, request) == ENGINE_INVALID_ARGUMENT);
    engine_request third = 0;
    CHECK(engine_pin(host.e, &params, &third, failure) == ENGINE_FULL);
    host.run();
    REQUIRE(engine_unpin(host.e, id) == ENGINE_OK);
    host.step();
    CHECK(engine_pin(host.e, &params, &third, failure) == ENGINE_OK);
    host.run();
    CHECK(host.info(third).state == ENGINE_REQUEST_PINNED);
}

TEST_CASE("a beam search beside a pin fits whole or is refused, and says what it says without one") {
    for (const int32_t policy : {ENGINE_MEMORY_PREEMPT, ENGINE_MEMORY_RESERVE}) {
        const std::vector<int32_t> prefix = some_tokens(3, 70);
        const std::vector<int32_t> prompt = joined(beginning(prefix, 64), some_tokens(4, 10));
        const engine_part part = tokens_part(prompt);
        engine_request_params search = request_params(&part, 1);
        search.beam_width = 4;
        search.max_tokens = 30;
        search.ignore_end = 1;
        Host alone(engine_of(64, policy));
        const Story expected = alone.answer(search);
        CHECK(expected.tokens.size() == 30);

        // 103 positions: four whole blocks of prompt, which are the pin's too, and at most four for each hypothesis.
        for (const int32_t blocks : {20, 21, 30}) {
            CAPTURE(blocks);
            PinHost host(engine_of(blocks, policy));
            const engine_request pin = host.pin(prefix);
            engine_request id = 0;
            Failure failure;
            const engine_status status = engine_submit(host.e, &search, &id, failure);
            REQUIRE(engine_trim(host.e, nullptr) == ENGINE_OK);
            if (blocks == 20) {
                CHECK(status == ENGINE_POOL_TOO_SMALL);
                CHECK(failure.names("beam_width"));
                search.max_tokens = -1;  // as many as fit: fewer than that
                CHECK(engine_submit(host.e, &search, &id, failure) == ENGINE_OK);
                search.max_tokens = 30;
                host.run();
                CHECK(host.stories[id].finish_reason == ENGINE_FINISH_LENGTH);
                CHECK(host.stories[id].tokens.size() < 30);
                continue;
            }
            REQUIRE(status == ENGINE_OK);
            host.flood();
            host.run();
            CHECK(host.stories[id].tokens == expected.tokens);
            CHECK(host.info(pin).state == ENGINE_REQUEST_PINNED);
            REQUIRE(engine_unpin(host.e, pin) == ENGINE_OK);
            host.run();
            CHECK(host.stats().kv_blocks_held == 0);

            REQUIRE(engine_submit(host.e, &search, &id, failure) == ENGINE_OK);
            engine_request other = 0;
            if (blocks == 21)
                CHECK(host.try_pin(some_tokens(9, 20), &other, failure) == ENGINE_POOL_TOO_SMALL);
            host.run();
            CHECK(host.stories[id].tokens == expected.tokens);
        }
    }
}

TEST_CASE("a pin has no answer that could be saved") {
    PinHost host(engine_of(20));
    const engine_request pin = host.pin(some_tokens(3, 40));
    host.run();
    unsigned char bytes[4096];
    size_t size = 0;
    Failure failure;
    CHECK(engine_session_save(host.e, pin, 0, -1, bytes, sizeof bytes, &size, failure) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("pin"));
}
