// Engines whose caches keep keys and values in other types than f16, through engine.h: what they answer is as reproducible as
// ever (shared beginnings, preemption, sessions), what they take is what is planned, and what doesn't fit is refused by name.
#include <string>

#include "session_fixture.h"

using namespace treadle::test;

namespace {

struct Pair {
    int32_t keys;
    int32_t values;
};

constexpr Pair pairs[] = {{ENGINE_KV_F16, ENGINE_KV_F16},
                          {ENGINE_KV_Q8_0, ENGINE_KV_Q8_0},
                          {ENGINE_KV_Q8_0, ENGINE_KV_TBQ4},
                          {ENGINE_KV_TBQ4X, ENGINE_KV_TBQ4},
                          {ENGINE_KV_TBQ4, ENGINE_KV_TBQ4}};

const Bytes& file_of(uint32_t head_dim) {
    static std::map<uint32_t, Bytes> files;
    Bytes& file = files[head_dim];
    if (file.empty()) {
        treadle::test::TinyLlamaOptions options;
        options.head_dim = head_dim;
        file = tiny_llama(7, options).bytes();
    }
    return file;
}

engine_params params_of(Pair pair) {
    engine_params params = small_engine_params();
    params.key_type = pair.keys;
    params.value_type = pair.values;
    return params;
}

Story ask(Host& host, const std::vector<int32_t>& prompt, int32_t max_tokens = 20) {
    const engine_part part = tokens_part(prompt);
    engine_request_params params = request_params(&part, 1);
    params.max_tokens = max_tokens;
    params.ignore_end = 1;
    params.temperature = 0.8f;
    return host.answer(params);
}

engine_info info_of(engine* e) {
    engine_info info;
    REQUIRE(engine_info_init(&info, sizeof info) == ENGINE_OK);
    REQUIRE(engine_get_info(e, &info) == ENGINE_OK);
    return info;
}

}  // namespace

TEST_CASE("answers with each pair of types: alone, shared, preempted, restored") {
    std::map<std::vector<int32_t>, int> seen;
    for (const Pair pair : pairs) {
        CAPTURE(pair.keys);
        CAPTURE(pair.values);
        std::vector<std::vector<int32_t>> prompts;
        for (uint32_t i = 0; i < 4; i++) prompts.push_back(some_tokens(i, 20 + 17 * i));
        std::vector<std::vector<int32_t>> alone;
        for (const std::vector<int32_t>& prompt : prompts) {
            Host host(params_of(pair), model_params(), file_of(64));
            alone.push_back(ask(host, prompt).tokens);
        }
        seen[alone[3]]++;

        Host host(params_of(pair), model_params(), file_of(64));
        CHECK(ask(host, prompts[2]).tokens == alone[2]);
        const Story again = ask(host, prompts[2]);  // its beginning lies in the cache
        CHECK(again.tokens == alone[2]);
        CHECK(again.cached_tokens > 0);

        engine_params scarce = params_of(pair);
        scarce.kv_blocks = 8;  // the four together need 20
        Host crowded(scarce, model_params(), file_of(64));
        std::vector<engine_request> ids;
        for (const std::vector<int32_t>& prompt : prompts) {
            const engine_part part = tokens_part(prompt);
            engine_request_params params = request_params(&part, 1);
            params.max_tokens = 20;
            params.ignore_end = 1;
            params.temperature = 0.8f;
            ids.push_back(crowded.submit(params));
        }
        crowded.run();
        for (size_t i = 0; i < ids.size(); i++) CHECK(crowded.stories[ids[i]].tokens == alone[i]);
    }
    CHECK(seen.size() == std::size(pairs));  // the types do change what is computed
}

TEST_CASE("a session goes on in an engine with the same types, and in no other") {
    for (const Pair pair : pairs) {
        CAPTURE(pair.keys);
        const std::vector<int32_t> prompt = some_tokens(9, 33);
        const engine_part part = tokens_part(prompt);
        engine_request_params params = request_params(&part, 1);
        params.max_tokens = 24;
        params.ignore_end = 1;
        params.keep = 1;
        Host host(params_of(pair), model_params(), file_of(128));
        const engine_request id = host.submit(params);
        host.run();
        const SessionBytes bytes = save(host.e, id, 0, static_cast<int32_t>(prompt.size()) + 10);
        Host other(params_of(pair), model_params(), file_of(128));
        const engine_request restored = restore(other.e, bytes);
        other.run();
        const std::vector<int32_t>& whole = host.stories[id].tokens;
        const std::vector<int32_t>& rest = other.stories[restored].tokens;
        CHECK(rest == std::vector<int32_t>(whole.begin() + 10, whole.end()));

        const Pair foreign = pair.keys == ENGINE_KV_Q8_0 ? pairs[0] : pairs[1];
        Host stranger(params_of(foreign), model_params(), file_of(128));
        engine_request none = 0;
        Failure failure;
        CHECK(engine_session_restore(stranger.e, bytes.data(), bytes.size(), nullptr, &none, failure) ==
              ENGINE_WRONG_MODEL);
        CHECK(failure.names(info_of(host.e).numerics_id));
        CHECK(failure.names(info_of(stranger.e).numerics_id));
    }
}

TEST_CASE("an engine tells its types and takes the bytes that are planned for them") {
    for (const Pair pair : pairs)
        for (const uint32_t head_dim : {64u, 128u, 256u}) {
            Host host(params_of(pair), model_params(), file_of(head_dim));
            const engine_info info = info_of(host.e);
            CHECK(info.key_type == pair.keys);
            CHECK(info.value_type == pair.values);
            engine_plan_params params;
            REQUIRE(engine_plan_params_init(&params, sizeof params) == ENGINE_OK);
            params.layers = params.kv_heads = 2;
            params.head_dim = static_cast<int32_t>(head_dim);
            params.key_type = pair.keys;
            params.value_type = pair.values;
            params.weight_bytes = params.bandwidth = params.token_flops = params.usable_flops = 1;
            engine_plan plan;
            REQUIRE(engine_plan_init(&plan, sizeof plan) == ENGINE_OK);
            REQUIRE(engine_plan_capacity(&params, &plan, nullptr) == ENGINE_OK);
            CHECK(info.kv_block_bytes == plan.kv_block_bytes);
            CHECK(info.kv_bytes >= info.kv_block_bytes * 64);
            CHECK(info.kv_bytes < info.kv_block_bytes * 64 + (64 << 10));
        }
    Host f16(params_of(pairs[0]), model_params(), file_of(64));
    Host mixed(params_of(pairs[2]), model_params(), file_of(64));
    CHECK(std::string(info_of(mixed.e).numerics_id) ==
          std::string(info_of(f16.e).numerics_id) + ":q8_0/tbq4");
}

TEST_CASE("types that don't fit a model are refused by name") {
    struct Row {
        uint32_t head_dim;
        Pair pair;
        const char* words;
    };
    const Row rows[] = {{16, {ENGINE_KV_Q8_0, 0}, "head_dim is 16, key_type q8_0"},
                        {16, {0, ENGINE_KV_Q8_0}, "head_dim is 16, value_type q8_0"},
                        {32, {ENGINE_KV_TBQ4, 0}, "head_dim is 32, key_type tbq4"},
                        {96, {ENGINE_KV_TBQ4X, 0}, "head_dim is 96, key_type tbq4x"},
                        {32, {0, ENGINE_KV_TBQ4}, "head_dim is 32, value_type tbq4"},
                        {64, {0, ENGINE_KV_TBQ4X}, "value_type is tbq4x"},
                        {64, {4, 0}, "key_type is 4"},
                        {64, {0, -1}, "value_type is -1"}};
    for (const Row& row : rows) {
        CAPTURE(std::string(row.words));
        const engine_model_params of_model = model_params();
        const Bytes& file = file_of(row.head_dim);
        engine_model* model = nullptr;
        REQUIRE(engine_model_load_memory(file.data(), file.size(), &of_model, &model, nullptr) == ENGINE_OK);
        const engine_params params = params_of(row.pair);
        engine* e = nullptr;
        Failure failure;
        CHECK(engine_create(model, &params, &e, failure) == ENGINE_INVALID_ARGUMENT);
        CHECK(failure.names(row.words));
        CHECK(e == nullptr);
        engine_model_free(model);
    }
}

TEST_CASE(
    "the pass that chooses the pairs of tbq4x shows progress, can be stopped, and runs once per model") {
    const engine_model_params of_model = model_params();
    engine_model* model = nullptr;
    REQUIRE(engine_model_load_memory(file_of(64).data(), file_of(64).size(), &of_model, &model, nullptr) ==
            ENGINE_OK);
    struct Asked {
        std::vector<uint64_t> done;
        size_t stop_at = SIZE_MAX;
    };
    engine_params params = params_of({ENGINE_KV_TBQ4X, ENGINE_KV_TBQ4});
    params.progress = [](void* user, uint64_t done, uint64_t total) -> int32_t {
        auto* asked = static_cast<Asked*>(user);
        CHECK(total == 64);
        asked->done.push_back(done);
        return asked->done.size() <= asked->stop_at ? 1 : 0;
    };
    engine* e = nullptr;
    for (size_t stop_at = 0; stop_at < 9; stop_at++) {
        Asked asked;
        asked.stop_at = stop_at;
        params.progress_user = &asked;
        CHECK(engine_create(model, &params, &e, nullptr) == ENGINE_STOPPED);
        CHECK(asked.done.size() == stop_at + 1);
    }
    for (const bool first : {true, false}) {
        Asked asked;
        params.progress_user = &asked;
        REQUIRE(engine_create(model, &params, &e, nullptr) == ENGINE_OK);
        CHECK(asked.done.empty() != first);
        if (first) CHECK(std::is_sorted(asked.done.begin(), asked.done.end()));
        if (first) CHECK(asked.done.back() == 64);
        engine_destroy(e);
    }
    engine_model_free(model);
}
