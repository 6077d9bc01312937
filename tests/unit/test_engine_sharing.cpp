// What shares, preempts or forks says the same as what runs alone, by bytes.
#include <doctest/doctest.h>

#include <vector>

#include "engine_host.h"

using namespace treadle;
using namespace treadle::test;
using Host = EngineHost;

TEST_CASE("a pool so small that somebody is preempted all the time changes no token") {
    const auto model = load_bytes(tiny_llama(21).bytes());
    std::vector<Job> jobs;
    for (uint64_t i = 0; i < 10; i++) {
        Job job{random_prompt(i / 3, 20 + 7 * i), 30, {}, 0};  // some begin alike
        job.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
        job.sampling.seed = i;
        jobs.push_back(job);
    }
    const Outcome expected = run_jobs(*model, jobs, {});
    for (const int32_t blocks : {8, 11, 16, 40}) {
        for (const bool cut : {false, true}) {
            Setting setting;
            setting.max_sequences = 6;
            setting.max_batch_tokens = 33;
            setting.kv_blocks = blocks;
            setting.cut_each_tile = cut;
            setting.submit_every = cut ? 3 : 0;
            CAPTURE(blocks);
            CHECK(run_jobs(*model, jobs, setting).tokens == expected.tokens);
        }
    }
}

TEST_CASE("a beginning from the cache changes no token, whatever its length") {
    const auto model = load_bytes(tiny_llama(22).bytes());
    const std::vector<int32_t> whole = random_prompt(5, 64);
    Host warm(*model, 256);
    static_cast<void>(warm.submit(warm.asked(1), whole, 4));
    warm.run();
    for (size_t count = 1; count <= 64; count++) {
        const std::vector<int32_t> prompt(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(count));
        Host cold(*model);
        const uint64_t alone = cold.submit(cold.asked(9), prompt, 6);
        cold.run();
        const uint64_t found = warm.submit(warm.asked(9), prompt, 6);
        warm.run();
        RequestInfo info;
        REQUIRE(warm.engine->request_info(found, &info) == Status::OK);
        CHECK(info.cached_tokens == static_cast<int32_t>(count));
        CHECK(warm.tokens(found) == cold.tokens(alone));
    }
}

TEST_CASE("each sample equals the request that asks for it alone") {
    const auto model = load_bytes(tiny_llama(23).bytes());
    const std::vector<int32_t> prompt = random_prompt(6, 40);
    Host host(*model);
    const uint64_t all = host.submit(host.asked(4, 5), prompt, 20);
    host.run();
    CHECK(host.engine->stats().figures.counters.prompt_tokens_computed <
          40 + 5 * 17);  // computed once, and less than a block by each
    for (int32_t i = 0; i < 5; i++) {
        Host alone(*model);
        RequestParams params = alone.asked(4);
        params.first_sample = static_cast<uint64_t>(i);
        const uint64_t one = alone.submit(std::move(params), prompt, 20);
        alone.run();
        CHECK(host.tokens(all, i) == alone.tokens(one));
    }
}

TEST_CASE("a fork at any position equals a fresh request with those tokens, and leaves its parent alone") {
    const auto model = load_bytes(tiny_llama(24).bytes());
    const std::vector<int32_t> prompt = random_prompt(7, 25);
    Host alone(*model);
    const uint64_t straight = alone.submit(alone.asked(3), prompt, 30);
    alone.run();
    const std::vector<int32_t> expected = alone.tokens(straight);

    Host host(*model, 200);
    const uint64_t parent = host.submit(host.asked(3), prompt, 30);
    std::vector<uint64_t> forks;
    std::vector<int32_t> positions;
    host.run(3);
    for (int32_t position = 1; position <= static_cast<int32_t>(host.tokens(parent).size()); position++) {
        RequestParams params = host.asked(100 + static_cast<uint64_t>(position));
        params.sampling.temperature = 0;  // another way of choosing than its parent's
        uint64_t id = 0;
        REQUIRE(host.engine->fork(parent, 0, position, &params, 8, &id, nullptr) == Status::OK);
        forks.push_back(id);
        positions.push_back(position);
    }
    host.run();
    CHECK(host.tokens(parent) == expected);
    for (size_t i = 0; i < forks.size(); i++) {
        Host fresh(*model);
        RequestParams params = fresh.asked(0);
        params.sampling.temperature = 0;
        const uint64_t id =
            fresh.submit(std::move(params), {expected.begin(), expected.begin() + positions[i]}, 8);
        fresh.run();
        CHECK(host.tokens(forks[i]) == fresh.tokens(id));
    }

    // Two forks with the parent's parameters draw differently from each other and from the parent, each time the same.
    uint64_t one = 0, two = 0;
    REQUIRE(host.engine->fork(parent, 0, 30, nullptr, 0, &one, nullptr) == Status::OK);
    REQUIRE(host.engine->fork(parent, 0, 30, nullptr, 0, &two, nullptr) == Status::OK);
    host.run();
    CHECK(host.tokens(one) != host.tokens(two));
    CHECK(host.tokens(one) != expected);
    CHECK(host.tokens(one).size() == expected.size());
}

TEST_CASE("a fork that fails leaves the draws of the next one as they were") {
    const auto model = load_bytes(tiny_llama(25).bytes());
    const std::vector<int32_t> prompt = random_prompt(8, 20);
    std::vector<std::vector<int32_t>> told;
    for (const bool fails : {false, true}) {
        Host host(*model, 64, 2);
        const uint64_t parent = host.submit(host.asked(3), prompt, 10);
        uint64_t id = 0;
        if (fails) {
            const uint64_t other = host.submit(host.asked(4), prompt, 2);
            CHECK(host.engine->fork(parent, 0, 20, nullptr, 0, &id, nullptr) == Status::FULL);
            REQUIRE(host.engine->release(other) == Status::OK);
        }
        host.run();
        REQUIRE(host.engine->fork(parent, 0, 20, nullptr, 0, &id, nullptr) == Status::OK);
        host.run();
        told.push_back(host.tokens(id));
    }
    CHECK(told[0] == told[1]);
}
