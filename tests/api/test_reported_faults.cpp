// Faults that users of other engines have reported, of the kinds that no other file here tests by name: each must not exist in
// this one. In brackets where it was reported.
#include <functional>
#include <string>
#include <vector>

#include "api_fixture.h"

using namespace treadle::test;

namespace {

using Change = std::function<void(engine_request_params&)>;

struct Asked {
    std::vector<int32_t> prompt;
    int32_t max_tokens = 8;
    Change change = [](engine_request_params&) {};
};

engine_request submit(Host& host, const Asked& asked) {
    const engine_part part = tokens_part(asked.prompt);
    engine_request_params params = request_params(&part, 1);
    params.max_tokens = asked.max_tokens;
    params.ignore_end = 1;
    asked.change(params);
    return host.submit(params);
}

Story alone(const Asked& asked) {
    Host host;
    const engine_request id = submit(host, asked);
    host.run();
    return host.stories[id];
}

// `first` keeps prompts apart.
std::vector<int32_t> prompt_of(size_t tokens, int32_t first) {
    std::vector<int32_t> prompt(tokens);
    for (size_t i = 0; i < tokens; i++)
        prompt[i] = first_byte + static_cast<int32_t>((i * 7 + static_cast<size_t>(first) * 31) % 200);
    prompt[0] = first_byte + first;
    return prompt;
}

engine_params pool_of(int32_t blocks) {
    engine_params params = small_engine_params();
    params.kv_blocks = blocks;
    return params;
}

}  // namespace

TEST_CASE("a pool that overflows ends only the request that can't fit") {  // [llama.cpp#23652]
    Host host(pool_of(8));
    std::vector<Asked> asked;
    for (int32_t i = 0; i < 3; i++) asked.push_back({prompt_of(30, i), 40});
    asked.push_back({prompt_of(30, 9), -1});  // would go on beyond what the pool holds
    std::vector<engine_request> ids;
    for (const Asked& one : asked) ids.push_back(submit(host, one));
    host.run();
    for (size_t i = 0; i < 3; i++) {
        const Story& story = host.stories[ids[i]];
        CHECK(story.finish_reason == ENGINE_FINISH_LENGTH);
        CHECK(story.tokens == alone(asked[i]).tokens);
    }
    const Story& large = host.stories[ids[3]];
    CHECK(large.finish_reason == ENGINE_FINISH_LENGTH);
    CHECK(large.prompt_tokens + large.generated_tokens == 8 * 16);
}

TEST_CASE("a prompt larger than the pool is refused with the numbers, and holds up nobody") {  // [vllm#39734]
    Host host(pool_of(8));
    const std::vector<int32_t> prompt = prompt_of(200, 1);
    const engine_part part = tokens_part(prompt);
    const engine_request_params params = request_params(&part, 1);
    engine_request id = 0;
    Failure failure;
    CHECK(engine_submit(host.e, &params, &id, failure) == ENGINE_POOL_TOO_SMALL);
    CHECK(failure.names("200"));
    CHECK(failure.names("8"));
    const Asked next{prompt_of(20, 2), 8};
    const engine_request follower = submit(host, next);
    host.run();
    CHECK(host.stories[follower].tokens == alone(next).tokens);
}

TEST_CASE("no answer crosses to another request, whoever runs beside it") {  // [mlx-lm#965]
    engine_params params = small_engine_params();
    params.max_sequences = 24;
    params.kv_blocks = 20;
    params.watermark_blocks = 0;
    Host host(params);
    std::vector<Asked> asked;
    for (int32_t i = 0; i < 40; i++) asked.push_back({prompt_of(17 + static_cast<size_t>(i), i), 12});
    std::vector<engine_request> ids;
    for (const Asked& one : asked) ids.push_back(submit(host, one));
    host.run();
    for (size_t i = 0; i < ids.size(); i++) CHECK(host.stories[ids[i]].tokens == alone(asked[i]).tokens);
    CHECK(stats_of(host.e).preemptions > 0);
}

TEST_CASE("blocks run out while nobody polls: nothing is lost") {  // [vllm#8219]
    Host host(pool_of(8));
    std::vector<Asked> asked;
    for (int32_t i = 0; i < 4; i++) asked.push_back({prompt_of(30, i), 30});
    std::vector<engine_request> ids;
    for (const Asked& one : asked) ids.push_back(submit(host, one));
    for (int i = 0; i < 500; i++) host.step();
    host.run();
    for (size_t i = 0; i < ids.size(); i++) CHECK(host.stories[ids[i]].tokens == alone(asked[i]).tokens);
    CHECK(stats_of(host.e).preemptions > 0);
}

TEST_CASE("an urgent request in the middle of a less urgent prompt") {  // [vllm#9342]
    engine_params params = small_engine_params();
    params.max_sequences = 1;
    params.max_batch_tokens = 16;
    Host host(params);
    const Asked slow{prompt_of(150, 1), 8, [](auto& p) { p.priority = ENGINE_PRIORITY_NORMAL; }};
    const Asked urgent{prompt_of(20, 2), 8, [](auto& p) { p.priority = ENGINE_PRIORITY_INTERACTIVE; }};
    const engine_request first = submit(host, slow);
    host.step();
    host.step();
    const engine_request second = submit(host, urgent);
    int steps = 0;
    for (; steps < 100 && host.stories[second].finished == 0; steps++) {
        host.step();
        host.poll();
    }
    CHECK(steps < 14);
    CHECK(host.stories[second].finished == 1);
    CHECK(host.stories[first].finished == 0);
    host.run();
    CHECK(host.stories[first].tokens == alone(slow).tokens);
    CHECK(host.stories[second].tokens == alone(urgent).tokens);
}

TEST_CASE("a victim that needs nearly all blocks comes back") {  // [unsloth llama.cpp#184]
    Host host(pool_of(10));
    const Asked large{prompt_of(120, 1), 30};  // 10 blocks at its end
    const engine_request victim = submit(host, large);
    for (int i = 0; i < 8; i++) host.step();
    std::vector<engine_request> urgent;
    for (int32_t i = 2; i < 5; i++)
        urgent.push_back(
            submit(host, {prompt_of(40, i), 20, [](auto& p) { p.priority = ENGINE_PRIORITY_INTERACTIVE; }}));
    host.run();
    CHECK(host.stories[victim].tokens == alone(large).tokens);
    for (const engine_request id : urgent) CHECK(host.stories[id].generated_tokens == 20);
    CHECK(stats_of(host.e).preemptions > 0);
}

TEST_CASE("blocks left free on admission spare preemptions") {  // [vllm#44594]
    const auto preemptions = [](int32_t watermark) {
        engine_params params = pool_of(24);
        params.max_sequences = 12;
        params.watermark_blocks = watermark;
        params.prefix_cache = 0;
        Host host(params);
        for (int32_t i = 0; i < 60; i++)
            submit(host, {prompt_of(20 + static_cast<size_t>(i * 13 % 40), i), 10 + i * 7 % 50});
        host.run();
        return stats_of(host.e).preemptions;
    };
    const uint64_t without = preemptions(0);
    CHECK(without > 0);
    CHECK(preemptions(6) < without / 2);
}

TEST_CASE("a prompt of whole blocks is found again, each time") {  // [vllm#11186]
    Host host;
    const Asked asked{prompt_of(64, 1), 8};
    const Story expected = alone(asked);
    for (int i = 0; i < 3; i++) {
        const engine_request id = submit(host, asked);
        host.run();
        CHECK(host.stories[id].tokens == expected.tokens);
        CHECK(host.stories[id].cached_tokens == (i == 0 ? 0 : 64));
    }
}

TEST_CASE("a hit of one block before a prompt in chunks") {  // [nano-vllm#210]
    engine_params params = small_engine_params();
    params.max_batch_tokens = 7;
    Host host(params);
    submit(host, {prompt_of(16, 1), 2});
    host.run();
    std::vector<int32_t> prompt = prompt_of(90, 1);
    prompt[16] = first_byte + 201;
    const Asked asked{prompt, 8};
    const engine_request id = submit(host, asked);
    host.run();
    CHECK(host.stories[id].cached_tokens == 16);
    CHECK(host.stories[id].tokens == alone(asked).tokens);
}

TEST_CASE("a long fresh prompt and a short cached one in one pass") {  // [vllm#46460]
    engine_params params = small_engine_params();
    params.max_batch_tokens = 256;
    Host host(params);
    const Asked cached{prompt_of(40, 1), 8};
    submit(host, cached);
    host.run();
    const Asked fresh{prompt_of(180, 2), 8};
    const engine_request second = submit(host, fresh);
    const engine_request first = submit(host, cached);
    host.run();
    CHECK(host.stories[first].cached_tokens == 40);
    CHECK(host.stories[first].tokens == alone(cached).tokens);
    CHECK(host.stories[second].tokens == alone(fresh).tokens);
}

TEST_CASE("many short requests leave a hot prefix where it is") {  // [vllm#42656]
    Host host(pool_of(24));
    const std::vector<int32_t> hot = prompt_of(128, 1);
    for (int32_t round = 0; round < 10; round++) {
        std::vector<int32_t> prompt = hot;
        prompt.push_back(first_byte + round);
        const engine_request id = submit(host, {prompt, 2});
        host.run();
        CHECK(host.stories[id].cached_tokens >= (round == 0 ? 0 : 128));
        for (int32_t i = 0; i < 12; i++) submit(host, {prompt_of(5, 20 + (round * 12 + i) % 150), 2});
        host.run();
    }
}

TEST_CASE("forks draw by their own parameters and their own numbers") {  // [LLamaSharp#621]
    Host host;
    const engine_request parent = submit(host, {prompt_of(40, 1), 20, [](auto& p) {
                                                    p.temperature = 1;
                                                    p.keep = 1;
                                                }});
    host.run();
    const auto fork = [&](float temperature) {
        engine_request_params params = request_params(nullptr, 0);
        params.temperature = temperature;
        params.max_tokens = 30;
        params.ignore_end = 1;
        engine_request id = 0;
        Failure failure;
        REQUIRE_MESSAGE(engine_fork(host.e, parent, 0, 40, &params, &id, failure) == ENGINE_OK,
                        failure.message());
        return id;
    };
    const engine_request cold = fork(0);
    const engine_request hot = fork(2);
    const engine_request again = fork(2);
    host.run();
    CHECK(host.stories[cold].tokens == alone({prompt_of(40, 1), 30}).tokens);
    CHECK(host.stories[hot].tokens != host.stories[cold].tokens);
    CHECK(host.stories[hot].tokens != host.stories[again].tokens);  // each has draws of its own
    CHECK(host.stories[hot].tokens.size() == 30);
}

TEST_CASE(
    "prompts in chunks of any size, alone or crowded, give equal log-probabilities") {  // [imp#986, pegainfer#688]
    const auto with_logprobs = [](auto& p) { p.logprobs = 3; };
    for (const size_t length : {47u, 48u, 49u, 129u, 200u}) {
        const Asked asked{prompt_of(length, 3), 6, with_logprobs};
        Host whole;
        const engine_request expected = submit(whole, asked);
        whole.run();
        for (const int32_t batch : {3, 16, 17, 256}) {
            engine_params params = small_engine_params();
            params.max_batch_tokens = batch;
            Host host(params);
            for (int32_t i = 0; i < 3; i++) submit(host, {prompt_of(30, 10 + i), 40});
            for (int i = 0; i < 5; i++) host.step();
            const engine_request id = submit(host, asked);
            host.run();
            CAPTURE(length);
            CAPTURE(batch);
            CHECK(host.stories[id].tokens == whole.stories[expected].tokens);
            CHECK(host.stories[id].logprobs == whole.stories[expected].logprobs);
        }
    }
}

TEST_CASE("free, held and cached blocks are all blocks after every step") {  // [sglang#35270]
    Host host(pool_of(12));
    for (int32_t i = 0; i < 20; i++)
        submit(host, {prompt_of(10 + static_cast<size_t>(i % 3) * 16, i % 5), 12});
    for (int i = 0; i < 400; i++) {
        host.step();
        host.poll();
        const engine_stats stats = stats_of(host.e);
        REQUIRE(stats.kv_blocks_free + stats.kv_blocks_held + stats.kv_blocks_cached == 12);
    }
    host.run();
    CHECK(stats_of(host.e).kv_blocks_held == 0);
}
