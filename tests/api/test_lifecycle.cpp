// The life of models, engines and requests as a host sees it: load, submit, step, poll, end.
#include <algorithm>

#include "api_fixture.h"

using namespace treadle::test;

namespace {

std::string code_of(const engine_model* model) {
    engine_model_info info;
    REQUIRE(engine_model_info_init(&info, sizeof info) == ENGINE_OK);
    REQUIRE(engine_model_get_info(model, &info) == ENGINE_OK);
    return info.cpu_code;
}

}  // namespace

TEST_CASE("versions and statuses have names and words") {
    CHECK(std::string(engine_version()) == ENGINE_VERSION);
    CHECK(engine_abi_version() == ENGINE_ABI_VERSION);
    CHECK(std::string(engine_status_name(ENGINE_OK)) == "ENGINE_OK");
    CHECK(std::string(engine_status_name(ENGINE_INTERNAL)) == "ENGINE_INTERNAL");
    CHECK(std::string(engine_status_name(-7)) == "ENGINE_UNKNOWN");
    for (engine_status status = ENGINE_OK; status <= ENGINE_WRONG_MODEL; status++) {
        CHECK(std::string(engine_status_name(status)) != "ENGINE_UNKNOWN");
        CHECK(std::strlen(engine_status_string(status)) > 5);
    }
    CHECK(engine_status_string(12345) != nullptr);
}

TEST_CASE("a model tells what it is") {
    Host host;
    engine_model_info info;
    REQUIRE(engine_model_info_init(&info, sizeof info) == ENGINE_OK);
    REQUIRE(engine_model_get_info(host.model, &info) == ENGINE_OK);
    CHECK(std::string(info.architecture) == "llama");
    CHECK(info.vocabulary == 320);
    CHECK(info.context_length == 256);
    CHECK(info.layers == 2);
    CHECK(info.hidden == 64);
    CHECK(info.heads == 4);
    CHECK(info.kv_heads == 2);
    CHECK(info.head_dim == 16);
    CHECK(info.has_chat_template == 1);
    CHECK(info.parameters > 0);
    CHECK(info.fingerprint != 0);
    CHECK(info.tensor_bytes > 0);
    CHECK(info.weight_bytes > 0);
    CHECK(info.load_bytes_peak >= info.weight_bytes);
    CHECK(info.tokenizer_bytes > 0);
    CHECK(std::strlen(info.numerics_id) > 0);
    engine_info of_engine;
    REQUIRE(engine_info_init(&of_engine, sizeof of_engine) == ENGINE_OK);
    REQUIRE(engine_get_info(host.e, &of_engine) == ENGINE_OK);
    CHECK(of_engine.kv_blocks == 64);
    CHECK(of_engine.kv_block_tokens == 16);
    CHECK(of_engine.context_length == 256);
    CHECK(of_engine.kv_block_bytes ==
          2u * 2 * 2 * 16 * 16 * 2);  // keys and values, layers, heads, positions, dims, bytes
    CHECK(of_engine.kv_bytes >= of_engine.kv_block_bytes * 64);
}

TEST_CASE("cpu_code chooses the code; one that the processor lacks is refused by name") {
    constexpr std::pair<int32_t, const char*> codes[] = {{ENGINE_CPU_SCALAR, "scalar"},
                                                         {ENGINE_CPU_SSE41, "sse41"},
                                                         {ENGINE_CPU_AVX2, "avx2"},
                                                         {ENGINE_CPU_AVX2_VNNI, "avx2_vnni"},
                                                         {ENGINE_CPU_AVX512, "avx512"}};
    std::string fastest;
    for (const auto& [code, name] : codes) {
        CAPTURE(std::string(name));
        Failure failure;
        engine_model_params params = model_params();
        params.cpu_code = code;
        engine_model* model = nullptr;
        const engine_status status =
            engine_model_load_memory(tiny_file().data(), tiny_file().size(), &params, &model, failure);
        if (status == ENGINE_INVALID_ARGUMENT) {
            CHECK(code != ENGINE_CPU_SCALAR);
            CHECK(failure.names(name));
            continue;
        }
        REQUIRE(status == ENGINE_OK);
        CHECK(code_of(model) == name);
        engine_model_free(model);
        fastest = name;
    }
    Host host;
    CHECK(code_of(host.model) == fastest);
}

TEST_CASE("a request's events: its tokens in order, its text, one end with the counts") {
    Host host;
    const engine_part part = text_part("hello");
    engine_request_params params = request_params(&part, 1);
    params.max_tokens = 12;
    params.ignore_end = 1;
    params.user_data = 77;
    const Story story = host.answer(params);
    CHECK(story.tokens.size() == 12);
    CHECK(story.finished == 1);
    CHECK(story.finish_reason == ENGINE_FINISH_LENGTH);
    CHECK(story.status == ENGINE_OK);
    CHECK(story.user_data == 77);
    CHECK(story.prompt_tokens == static_cast<int32_t>(host.tokenize({part}).size()));
    CHECK(story.generated_tokens == 12);
    const engine_stats stats = stats_of(host.e);
    CHECK(stats.requests_submitted == 1);
    CHECK(stats.requests_finished == 1);
    CHECK(stats.generated_tokens == 12);
    CHECK(stats.prompt_tokens == static_cast<uint64_t>(story.prompt_tokens));
    CHECK(stats.kv_blocks_free + stats.kv_blocks_cached == 64);
    CHECK(stats.kv_blocks_held == 0);
}

TEST_CASE("a long prompt tells its progress") {
    Host host;
    const std::string text(150, 'z');
    const engine_part part = text_part(text.c_str());
    engine_request_params params = request_params(&part, 1);
    params.max_tokens = 1;
    const engine_request id = host.submit(params);
    std::vector<int32_t> seen;
    while (host.stories[id].finished == 0) {
        host.step();
        engine_request_info info;
        engine_request_info_init(&info, sizeof info);
        if (engine_request_get_info(host.e, id, &info) == ENGINE_OK) seen.push_back(info.prompt_tokens_done);
        host.poll();
    }
    CHECK(host.stories[id].progress >= 4);
    CHECK(std::is_sorted(seen.begin(), seen.end()));
}

TEST_CASE("a request without keep is gone when its end was polled, one with keep when it is released") {
    Host host;
    const engine_part part = text_part("abc");
    engine_request_params params = request_params(&part, 1);
    params.max_tokens = 3;
    params.ignore_end = 1;
    const engine_request gone = host.submit(params);
    params.keep = 1;
    const engine_request kept = host.submit(params);
    host.run();
    engine_request_info info;
    engine_request_info_init(&info, sizeof info);
    CHECK(engine_request_get_info(host.e, gone, &info) == ENGINE_STALE_ID);
    CHECK(engine_cancel(host.e, gone) == ENGINE_STALE_ID);
    REQUIRE(engine_request_get_info(host.e, kept, &info) == ENGINE_OK);
    CHECK(info.state == ENGINE_REQUEST_FINISHED);
    CHECK(info.finish_reason == ENGINE_FINISH_LENGTH);
    CHECK(info.generated_tokens == 3);
    CHECK(engine_cancel(host.e, kept) == ENGINE_OK);  // harmless
    int32_t tokens[64];
    size_t count = 0;
    REQUIRE(engine_sequence_tokens(host.e, kept, 0, tokens, 64, &count) == ENGINE_OK);
    CHECK(count == static_cast<size_t>(info.prompt_tokens + 3));
    CHECK(engine_sequence_tokens(host.e, kept, 0, tokens, 2, &count) == ENGINE_BUFFER_TOO_SMALL);
    CHECK(count == static_cast<size_t>(info.prompt_tokens + 3));
    CHECK(engine_sequence_tokens(host.e, kept, 1, tokens, 64, &count) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_release(host.e, kept) == ENGINE_OK);
    CHECK(engine_release(host.e, kept) == ENGINE_STALE_ID);
    CHECK(engine_sequence_tokens(host.e, kept, 0, tokens, 64, &count) == ENGINE_STALE_ID);
}

TEST_CASE("a cancel ends a request in every state within one step, and its neighbours don't notice") {
    Host quiet;
    const Story expected = [&] {
        const engine_request id = quiet.submit_text("neighbour", 40);
        quiet.run();
        return quiet.stories[id];
    }();
    for (int after = 0; after < 12; after++) {
        Host host;
        const engine_request neighbour = host.submit_text("neighbour", 40);
        const std::string prompt(100, 'p');
        const engine_request victim = host.submit_text(prompt.c_str(), 50);
        for (int i = 0; i < after; i++) host.step(after % 2 == 0 ? 0 : 1);
        REQUIRE(engine_cancel(host.e, victim) == ENGINE_OK);
        REQUIRE(engine_cancel(host.e, victim) == ENGINE_OK);
        host.step();
        host.poll();
        CHECK(host.stories[victim].finished == 1);
        CHECK(host.stories[victim].finish_reason == ENGINE_FINISH_CANCELLED);
        host.run();
        CHECK(host.stories[neighbour].tokens == expected.tokens);
        CHECK(host.stories[neighbour].text == expected.text);
        CHECK(host.step().free_blocks == 64);
    }
}

TEST_CASE("a released request says nothing more, in every state") {
    for (int after = 0; after < 8; after++) {
        Host host;
        const engine_request victim = host.submit_text("some prompt that is released", 20);
        for (int i = 0; i < after; i++) host.step(1);
        REQUIRE(engine_release(host.e, victim) == ENGINE_OK);
        CHECK(engine_release(host.e, victim) == ENGINE_STALE_ID);
        host.run();
        CHECK(host.stories.count(victim) == 0);
        CHECK(host.step().free_blocks == 64);
    }
}

TEST_CASE("submit and cancel at the maximum never lose a place") {
    engine_params params = small_engine_params();
    params.max_requests = 3;
    Host host(params);
    for (int i = 0; i < 200; i++) {
        const engine_request a = host.submit_text("a", 30);
        const engine_request b = host.submit_text("b", 30);
        const engine_request c = host.submit_text("c", 30);
        const engine_part part = text_part("d");
        const engine_request_params one_more = request_params(&part, 1);
        engine_request id = 0;
        Failure failure;
        CHECK(engine_submit(host.e, &one_more, &id, failure) == ENGINE_FULL);
        CHECK(failure.names("max_requests"));
        if (i % 3 != 0) host.step(i % 2);
        for (const engine_request request : {a, b, c}) CHECK(engine_cancel(host.e, request) == ENGINE_OK);
        host.run();
        for (const engine_request request : {a, b, c})
            CHECK(host.stories[request].finish_reason == ENGINE_FINISH_CANCELLED);
    }
}

TEST_CASE("stop tokens, stop strings and the model's own end") {
    Host host;
    const engine_part part = text_part("tell me");
    engine_request_params params = request_params(&part, 1);
    params.max_tokens = 30;
    params.ignore_end = 1;
    const Story whole = host.answer(params);
    REQUIRE(whole.tokens.size() == 30);

    const int32_t stop = whole.tokens[10];
    size_t first = 0;
    while (whole.tokens[first] != stop) first++;
    params.stop_tokens = &stop;
    params.stop_token_count = 1;
    Story stopped = host.answer(params);
    CHECK(stopped.finish_reason == ENGINE_FINISH_END);
    CHECK(stopped.tokens.size() == first + 1);  // a stop token is the last of the tokens
    CHECK(whole.text.substr(0, stopped.text.size()) == stopped.text);
    params.stop_token_count = 0;

    for (size_t length = 1; length <= 6 && length < whole.text.size(); length++) {
        size_t at = whole.text.size() / 2;
        while ((whole.text[at] & 0xc0) == 0x80) at++;  // whole characters
        size_t end = std::min(at + length, whole.text.size());
        while (end < whole.text.size() && (whole.text[end] & 0xc0) == 0x80) end++;
        const std::string word = whole.text.substr(at, end - at);
        const engine_text text = {word.c_str(), ENGINE_ZERO_TERMINATED};
        params.stop_strings = &text;
        params.stop_string_count = 1;
        stopped = host.answer(params);
        CHECK(stopped.finish_reason == ENGINE_FINISH_STOP_STRING);
        CHECK(stopped.text == whole.text.substr(0, whole.text.find(word)));
    }
    const engine_text never = {"\xe2\x98\x83 never said", ENGINE_ZERO_TERMINATED};
    params.stop_strings = &never;
    stopped = host.answer(params);
    CHECK(stopped.finish_reason == ENGINE_FINISH_LENGTH);
    CHECK(stopped.text == whole.text);  // what was held back is delivered
}

TEST_CASE("text of events is whole UTF-8, and together what the tokens say") {
    Host host;
    for (uint64_t seed = 0; seed < 6; seed++) {
        const engine_part part = text_part("utf");
        engine_request_params params = request_params(&part, 1);
        params.max_tokens = 100;
        params.ignore_end = 1;
        params.temperature = 3;
        params.seed = seed;
        engine_request id = host.submit(params);
        std::string bytes;
        host.run();
        const Story story = host.stories[id];
        char buffer[4096];
        size_t count = 0;
        REQUIRE(engine_detokenize(host.model, story.tokens.data(), story.tokens.size(), 0, buffer,
                                  sizeof buffer, &count, nullptr) == ENGINE_OK);
        std::string expected;  // raw bytes; each invalid piece is U+FFFD in the events
        for (size_t i = 0; i < count; i++) expected += buffer[i];
        if (story.text.find("\xef\xbf\xbd") == std::string::npos) CHECK(story.text == expected);
        for (size_t i = 0; i < story.text.size();) {
            const auto lead = static_cast<unsigned char>(story.text[i]);
            const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
            REQUIRE((lead < 0x80 || lead >= 0xc2));
            for (size_t k = 1; k < length; k++)
                REQUIRE((static_cast<unsigned char>(story.text[i + k]) & 0xc0) == 0x80);
            i += length;
        }
    }
}

TEST_CASE("log-probabilities are of the tokens, best first, and sum to at most one") {
    Host host;
    const engine_part part = text_part("probabilities");
    engine_request_params params = request_params(&part, 1);
    params.max_tokens = 10;
    params.ignore_end = 1;
    params.logprobs = 5;
    const Story story = host.answer(params);
    REQUIRE(story.best.size() == 10);
    for (size_t i = 0; i < 10; i++) {
        REQUIRE(story.best[i].size() == 5);
        CHECK(story.best[i][0].token == story.tokens[i]);  // greedy
        CHECK(story.best[i][0].logprob == story.logprobs[i]);
        for (size_t k = 1; k < 5; k++) CHECK(story.best[i][k].logprob <= story.best[i][k - 1].logprob);
        CHECK(story.logprobs[i] <= 0);
    }
    params.logprobs = 0;
    CHECK(host.answer(params).tokens == story.tokens);
}

TEST_CASE("a conversation goes on from its own tokens") {
    Host host;
    const engine_part first[] = {message_part("system", "be brief"),
                                 message_part("user", "hi <|im_end|> there")};
    engine_request_params params = request_params(first, 2);
    params.max_tokens = 6;
    params.keep = 1;
    params.ignore_end = 1;
    const engine_request turn = host.submit(params);
    host.run();
    std::vector<int32_t> tokens(512);
    size_t count = 0;
    REQUIRE(engine_sequence_tokens(host.e, turn, 0, tokens.data(), tokens.size(), &count) == ENGINE_OK);
    tokens.resize(count);
    CHECK(std::count(tokens.begin(), tokens.begin() + host.stories[turn].prompt_tokens, im_start) == 3);
    CHECK(std::count(tokens.begin(), tokens.begin() + host.stories[turn].prompt_tokens, im_end) ==
          2);  // not the user's
    const std::vector<int32_t> next = host.tokenize({tokens_part(tokens), message_part("user", "and?")});
    REQUIRE(next.size() > tokens.size());
    CHECK(std::equal(tokens.begin(), tokens.end(), next.begin()));
    CHECK(next[tokens.size()] == im_end);  // the turn had been cut by its length
    CHECK(engine_release(host.e, turn) == ENGINE_OK);
}

TEST_CASE("a sequence ends with length where the context or the cache ends") {
    Host host;
    const std::string prompt(200, 'x');
    const engine_part part = text_part(prompt.c_str());
    engine_request_params params = request_params(&part, 1);
    params.ignore_end = 1;
    params.max_tokens = -1;
    Story story = host.answer(params);
    CHECK(story.finish_reason == ENGINE_FINISH_LENGTH);
    CHECK(story.prompt_tokens + story.generated_tokens == 256);
    params.max_tokens = INT32_MAX;
    CHECK(host.answer(params).tokens == story.tokens);

    engine_params small = small_engine_params();
    small.kv_blocks = 14;
    Host tight(small);
    story = tight.answer(params);
    CHECK(story.finish_reason == ENGINE_FINISH_LENGTH);
    CHECK(story.prompt_tokens + story.generated_tokens == 14 * 16);
}

TEST_CASE("engines of one model are independent, and keep it alive") {
    engine* second = nullptr;
    Story first_story, second_story;
    {
        Host host;
        engine_params params = small_engine_params();
        REQUIRE(engine_create(host.model, &params, &second, nullptr) == ENGINE_OK);
        const engine_request id = host.submit_text("same", 9);
        host.run();
        first_story = host.stories[id];
    }
    const engine_part part = text_part("same");
    engine_request_params params = request_params(&part, 1);
    params.max_tokens = 9;
    params.ignore_end = 1;
    engine_request id = 0;
    REQUIRE(engine_submit(second, &params, &id, nullptr) == ENGINE_OK);
    std::vector<int32_t> tokens;
    for (int finished = 0; !finished;) {
        engine_event event;
        char bytes[256];
        size_t count = 0;
        REQUIRE(engine_step(second, nullptr, nullptr) == ENGINE_OK);
        while (engine_poll_tokens(second, &event, sizeof event, 1, &count, bytes, sizeof bytes, nullptr,
                                  nullptr) == ENGINE_OK &&
               count == 1) {
            if (event.kind == ENGINE_EVENT_TOKEN) tokens.push_back(event.token);
            finished |= event.kind == ENGINE_EVENT_FINISHED;
        }
    }
    CHECK(tokens == first_story.tokens);
    engine_destroy(second);
    engine_destroy(nullptr);
    engine_model_free(nullptr);
}

TEST_CASE("destroy with live requests, events unpolled and a pass cut in the middle is fine") {
    for (int steps = 0; steps < 6; steps++) {
        Host host;
        for (int i = 0; i < 6; i++) host.submit_text("left behind", 50);
        for (int i = 0; i < steps; i++) host.step(1);
    }
}
