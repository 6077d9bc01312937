// What is preempted, found in the cache or forked says the same as what runs alone and straight, on SmolLM2-135M-Instruct.
// TREADLE_TEST_MODEL names the file.
#include <doctest/doctest.h>

#include <cstdlib>
#include <vector>

#include "engine_host.h"

using namespace treadle;
using namespace treadle::test;

namespace {

const LoadedModel& model() {
    const char* path = std::getenv("TREADLE_TEST_MODEL");
    INFO("TREADLE_TEST_MODEL must name the SmolLM2-135M-Instruct file");
    REQUIRE(path != nullptr);
    static const std::unique_ptr<LoadedModel> loaded = load_path(path);
    return *loaded;
}

std::vector<int32_t> beginning(const std::vector<int32_t>& tokens, int32_t count) {
    return {tokens.begin(), tokens.begin() + count};
}

std::vector<int32_t> alone(const std::vector<int32_t>& prompt, int32_t max_tokens, uint64_t seed) {
    EngineHost host(model());
    const uint64_t id = host.submit(host.asked(seed), prompt, max_tokens);
    host.run();
    return host.tokens(id);
}

}  // namespace

TEST_CASE("SmolLM2 preempted after every token says what it would have said") {
    const std::vector<int32_t> prompt = random_prompt(1, 21);
    EngineHost host(model(), 8);
    const uint64_t id = host.submit(host.asked(5), prompt, 24);
    RequestInfo info;
    for (int32_t generated = 0; generated < 24;) {
        host.run(1);
        REQUIRE(host.engine->request_info(id, &info) == Status::OK);
        if (info.generated_tokens == generated) continue;
        generated = info.generated_tokens;
        RequestParams urgent = host.asked(static_cast<uint64_t>(generated));
        urgent.priority = Priority::interactive;
        urgent.keep = false;
        // As large as the cache, so that nothing of the first is found again.
        static_cast<void>(host.submit(std::move(urgent), random_prompt(100 + generated, 110), 2));
    }
    host.run();
    CHECK(host.engine->stats().figures.counters.preemptions >= 20);
    CHECK(host.tokens(id) == alone(prompt, 24, 5));
}

TEST_CASE("SmolLM2 goes on from a beginning of any length in the cache as if it had computed it") {
    const std::vector<int32_t> whole = random_prompt(2, 64);
    EngineHost warm(model(), 256);
    static_cast<void>(warm.submit(warm.asked(1), whole, 2));
    warm.run();
    for (int32_t count = 1; count <= 64; count++) {
        const uint64_t found = warm.submit(warm.asked(9), beginning(whole, count), 4);
        warm.run();
        RequestInfo info;
        REQUIRE(warm.engine->request_info(found, &info) == Status::OK);
        CHECK(info.cached_tokens == count);
        CHECK(warm.tokens(found) == alone(beginning(whole, count), 4, 9));
    }
}

TEST_CASE("SmolLM2 forked at any position equals a fresh request with those tokens") {
    EngineHost host(model(), 256);
    const uint64_t parent = host.submit(host.asked(3), random_prompt(3, 19), 18);
    host.run();
    const std::vector<int32_t> tokens = host.tokens(parent);
    std::vector<uint64_t> forks;
    for (int32_t position = 1; position <= static_cast<int32_t>(tokens.size()); position++) {
        RequestParams params = host.asked(0);
        params.sampling.temperature = 0;
        REQUIRE(host.engine->fork(parent, 0, position, &params, 4, &forks.emplace_back(), nullptr) ==
                Status::OK);
    }
    host.run();
    for (size_t i = 0; i < forks.size(); i++) {
        EngineHost fresh(model());
        RequestParams params = fresh.asked(0);
        params.sampling.temperature = 0;
        const uint64_t id =
            fresh.submit(std::move(params), beginning(tokens, static_cast<int32_t>(i) + 1), 4);
        fresh.run();
        CHECK(host.tokens(forks[i]) == fresh.tokens(id));
    }
    CHECK(host.tokens(parent) == tokens);
}

TEST_CASE("each of SmolLM2's samples equals the request that asks for it alone") {
    const std::vector<int32_t> prompt = random_prompt(4, 40);
    EngineHost host(model(), 256);
    const uint64_t all = host.submit(host.asked(4, 4), prompt, 16);
    host.run();
    for (int32_t i = 0; i < 4; i++) {
        EngineHost single(model());
        RequestParams params = single.asked(4);
        params.first_sample = static_cast<uint64_t>(i);
        const uint64_t one = single.submit(std::move(params), prompt, 16);
        single.run();
        CHECK(host.tokens(all, i) == single.tokens(one));
    }
}
