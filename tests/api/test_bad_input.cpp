// Bad input: each kind has its status and a message that names the field and the value; engine and neighbours are unchanged.
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "api_fixture.h"

using namespace treadle::test;

namespace {

engine_status load(const Bytes& file, Failure& failure) {
    engine_model* model = reinterpret_cast<engine_model*>(1);
    const engine_model_params params = model_params();
    const engine_status status = engine_model_load_memory(file.data(), file.size(), &params, &model, failure);
    if (status == ENGINE_OK) {
        engine_model_free(model);
    } else {
        CHECK(model == nullptr);
        CHECK(failure.error.status == status);
        CHECK(failure.message().size() > 5);
    }
    return status;
}

engine_status submit(Host& host, const engine_request_params& params, Failure& failure) {
    engine_request id = 0;
    return engine_submit(host.e, &params, &id, failure);
}

}  // namespace

TEST_CASE("files that are missing, a directory, empty, or no model") {
    Failure failure;
    engine_model* model = nullptr;
    CHECK(engine_model_load_file("/nowhere/model.gguf", nullptr, &model, failure) == ENGINE_NOT_FOUND);
    CHECK(failure.names("/nowhere/model.gguf"));
    CHECK(engine_model_load_file("/", nullptr, &model, failure) == ENGINE_IO);
    CHECK(failure.names("directory"));
    CHECK(engine_model_load_file("", nullptr, &model, failure) == ENGINE_NOT_FOUND);
    CHECK(engine_model_load_file("/dev/null", nullptr, &model, failure) == ENGINE_IO);

    char path[] = "/tmp/treadle-test-XXXXXX";
    const int descriptor = mkstemp(path);
    REQUIRE(descriptor >= 0);
    CHECK(engine_model_load_file(path, nullptr, &model, failure) == ENGINE_TRUNCATED);
    REQUIRE(write(descriptor, "GGUF", 4) == 4);
    CHECK(engine_model_load_file(path, nullptr, &model, failure) == ENGINE_TRUNCATED);
    REQUIRE(ftruncate(descriptor, 0) == 0);
    REQUIRE(pwrite(descriptor, "not a model, just text", 22, 0) == 22);
    CHECK(engine_model_load_file(path, nullptr, &model, failure) == ENGINE_BAD_MAGIC);
    const Bytes& file = tiny_file();
    REQUIRE(pwrite(descriptor, file.data(), file.size(), 0) == static_cast<ssize_t>(file.size()));
    const engine_model_params params = model_params();
    CHECK(engine_model_load_file(path, &params, &model, failure) == ENGINE_OK);
    engine_model_free(model);
    close(descriptor);
    unlink(path);
}

TEST_CASE("every truncation of a model is a status") {
    TinyLlamaOptions options;
    options.layers = 1;
    options.hidden = options.feed_forward = 32;
    options.heads = options.kv_heads = 1;
    options.head_dim = 16;
    options.vocabulary = 288;
    const Bytes file = tiny_llama(5, options).bytes();
    Failure failure;
    CHECK(load(file, failure) == ENGINE_OK);
    const size_t header = tiny_llama(5, options).header_bytes();
    for (size_t size = 0; size < file.size(); size += size < header + 64 ? 1 : 97) {
        const engine_status status =
            load(Bytes(file.begin(), file.begin() + static_cast<long>(size)), failure);
        CAPTURE(size);
        CHECK(status == ENGINE_TRUNCATED);
    }
}

TEST_CASE("wrong magic, version, architecture and types are named") {
    Failure failure;
    GgufWriter writer = tiny_llama(1);
    writer.magic = "GGML";
    CHECK(load(writer.bytes(), failure) == ENGINE_BAD_MAGIC);
    for (const uint32_t version : {0u, 1u, 4u, 0x03000000u}) {
        writer = tiny_llama(1);
        writer.version = version;
        CHECK(load(writer.bytes(), failure) == ENGINE_BAD_VERSION);
    }
    writer = tiny_llama(1);
    writer.set("general.architecture", "rwkv");
    CHECK(load(writer.bytes(), failure) == ENGINE_UNSUPPORTED_ARCHITECTURE);
    CHECK(failure.names("rwkv"));
    writer = tiny_llama(1);
    writer.set("tokenizer.ggml.model", "wordpiece");
    CHECK(load(writer.bytes(), failure) == ENGINE_UNSUPPORTED_TOKENIZER);
    CHECK(failure.names("wordpiece"));
    writer = tiny_llama(1);
    writer.tensors[0].type = 16;  // IQ2_XXS
    CHECK(load(writer.bytes(), failure) == ENGINE_UNSUPPORTED_TYPE);
    writer = tiny_llama(1);
    writer.set("llama.block_count", uint32_t{513});
    CHECK(load(writer.bytes(), failure) == ENGINE_LIMIT);
    CHECK(failure.names("block_count"));
    CHECK(failure.names("513"));
    writer = tiny_llama(1);
    writer.set("llama.attention.head_count", uint32_t{0});
    CHECK(load(writer.bytes(), failure) != ENGINE_OK);
    CHECK(failure.names("head_count"));
    writer = tiny_llama(1);
    writer.set("tokenizer.ggml.eos_token_id", uint32_t{UINT32_MAX});
    CHECK(load(writer.bytes(), failure) != ENGINE_OK);
    CHECK(failure.names("eos_token_id"));
}

TEST_CASE("a template that isn't known is a clear status of the chat part, not of the load") {
    GgufWriter writer = tiny_llama(1);
    writer.set("tokenizer.chat_template", "{{ raise_exception('no') }}");
    const Bytes file = writer.bytes();
    Host host(small_engine_params(), model_params(), file);
    engine_model_info info;
    engine_model_info_init(&info, sizeof info);
    REQUIRE(engine_model_get_info(host.model, &info) == ENGINE_OK);
    CHECK(info.has_chat_template == 0);
    const engine_part part = message_part("user", "hi");
    Failure failure;
    CHECK(submit(host, request_params(&part, 1), failure) == ENGINE_UNSUPPORTED_TEMPLATE);
    CHECK(failure.message().size() > 10);
    const engine_part text = text_part("hi");
    CHECK(submit(host, request_params(&text, 1), failure) == ENGINE_OK);
}

TEST_CASE("a load stops where the progress callback says so") {
    for (int stop_at = 0; stop_at < 4; stop_at++) {
        struct Stopper {
            int left;
        } stopper{stop_at};
        engine_model_params params = model_params();
        params.progress_user = &stopper;
        params.progress = [](void* user, uint64_t done, uint64_t total) -> int32_t {
            CHECK(done <= total);
            return static_cast<Stopper*>(user)->left-- > 0;
        };
        engine_model* model = nullptr;
        Failure failure;
        CHECK(engine_model_load_memory(tiny_file().data(), tiny_file().size(), &params, &model, failure) ==
              ENGINE_STOPPED);
        CHECK(model == nullptr);
    }
}

TEST_CASE("a read callback that fails, and one that works") {
    const auto read = [](void* user, uint64_t offset, void* destination, size_t size) -> int32_t {
        if (offset >= *static_cast<uint64_t*>(user)) return 5;
        std::memcpy(destination, tiny_file().data() + offset, size);
        return 0;
    };
    const engine_model_params params = model_params();
    engine_model* model = nullptr;
    Failure failure;
    for (uint64_t good : {uint64_t{0}, uint64_t{100}, uint64_t{20000}}) {
        CHECK(engine_model_load_callback(read, &good, tiny_file().size(), &params, &model, failure) ==
              ENGINE_IO);
        CHECK(failure.names("5"));
    }
    uint64_t all = UINT64_MAX;
    CHECK(engine_model_load_callback(read, &all, tiny_file().size(), &params, &model, failure) == ENGINE_OK);
    engine_model_free(model);
}

TEST_CASE("parameters of models and engines out of range are named") {
    Failure failure;
    engine_model* model = nullptr;
    const auto try_model = [&](auto change) {
        engine_model_params params = model_params();
        change(params);
        return engine_model_load_memory(tiny_file().data(), tiny_file().size(), &params, &model, failure);
    };
    CHECK(try_model([](auto& p) { p.threads = -1; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("threads is -1"));
    CHECK(try_model([](auto& p) { p.threads = 1 << 20; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(try_model([](auto& p) { p.cpu_code = 99; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("cpu_code is 99"));
    CHECK(try_model([](auto& p) { p.cpu_code = ENGINE_CPU_AVX2_VNNI + 1; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(try_model([](auto& p) {
              p.alloc = [](void*, size_t, size_t, int32_t) -> void* { return nullptr; };
          }) == ENGINE_INVALID_ARGUMENT);
    CHECK(try_model([](auto& p) { p.struct_size = 0; }) == ENGINE_STRUCT_SIZE);
    CHECK(try_model([](auto& p) { p.struct_size = 3; }) == ENGINE_STRUCT_SIZE);
    CHECK(try_model([](auto& p) { p.struct_size = UINT32_MAX; }) == ENGINE_STRUCT_SIZE);

    Host host;
    engine* e = nullptr;
    const auto try_engine = [&](auto change) {
        engine_params params = small_engine_params();
        change(params);
        return engine_create(host.model, &params, &e, failure);
    };
    CHECK(try_engine([](auto& p) { p.max_sequences = 0; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("max_sequences is 0"));
    CHECK(try_engine([](auto& p) { p.max_sequences = 100000; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(try_engine([](auto& p) { p.max_batch_tokens = -5; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("max_batch_tokens is -5"));
    CHECK(try_engine([](auto& p) { p.max_batch_tokens = INT32_MAX; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(try_engine([](auto& p) { p.max_requests = 0; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(try_engine([](auto& p) { p.context_length = 257; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("257"));
    CHECK(try_engine([](auto& p) { p.context_length = -1; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(try_engine([](auto& p) { p.kv_blocks = -1; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(try_engine([](auto& p) { p.kv_blocks = INT32_MAX; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(try_engine([](auto& p) { p.memory_policy = 7; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("memory_policy is 7"));
    CHECK(try_engine([](auto& p) { p.watermark_blocks = -2; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("watermark_blocks is -2"));
    CHECK(try_engine([](auto& p) { p.prefix_cache_blocks = -2; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("prefix_cache_blocks is -2"));
    CHECK(try_engine([](auto& p) { p.itl_target_us = -1; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("itl_target_us is -1"));
    CHECK(try_engine([](auto& p) { p.itl_target_us = INT64_MAX; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(e == nullptr);
}

TEST_CASE("structs of other sizes: shorter ones get defaults, longer ones need a zero tail") {
    struct Longer {
        engine_step_params known;
        uint64_t later;
    } longer = {};
    Host host;
    REQUIRE(engine_step_params_init(&longer.known, sizeof longer) == ENGINE_OK);
    CHECK(longer.known.struct_size == sizeof longer);
    CHECK(engine_step(host.e, &longer.known, nullptr) == ENGINE_OK);
    longer.later = 1;
    CHECK(engine_step(host.e, &longer.known, nullptr) == ENGINE_STRUCT_SIZE);

    struct {
        engine_stats known;
        uint64_t later[3];
    } stats;
    std::memset(static_cast<void*>(&stats), 0xff, sizeof stats);
    stats.known.struct_size = sizeof stats;
    REQUIRE(engine_get_stats(host.e, &stats.known) == ENGINE_OK);
    for (const uint64_t tail : stats.later) CHECK(tail == 0);
    uint32_t shorter[6] = {12, 9, 9, 9, 9, 9};  // an engine_stats of 12 bytes
    REQUIRE(engine_get_stats(host.e, reinterpret_cast<engine_stats*>(shorter)) == ENGINE_OK);
    CHECK(shorter[0] == 12);
    CHECK(shorter[1] == 0);
    CHECK(shorter[3] == 9);

    engine_params old = small_engine_params();
    old.struct_size = 8;  // knows max_sequences only
    old.max_batch_tokens = -77;
    engine* e = nullptr;
    CHECK(engine_create(host.model, &old, &e, nullptr) == ENGINE_OK);
    engine_destroy(e);

    for (const size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{1} << 20}) {
        engine_error error;
        CHECK(engine_error_init(&error, size) == ENGINE_STRUCT_SIZE);
        engine_request_params params;
        CHECK(engine_request_params_init(&params, size) == ENGINE_STRUCT_SIZE);
    }
}

TEST_CASE("requests out of range are named and refused") {
    Host host;
    Failure failure;
    const engine_part part = text_part("hello");
    const auto attempt = [&](auto change) {
        engine_request_params params = request_params(&part, 1);
        change(params);
        return submit(host, params, failure);
    };
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinite = std::numeric_limits<float>::infinity();
    CHECK(attempt([](auto& p) { p.max_tokens = 0; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("max_tokens is 0"));
    CHECK(attempt([](auto& p) { p.max_tokens = -2; }) == ENGINE_INVALID_ARGUMENT);
    for (const float bad : {nan, -nan, infinite, -infinite, -0.5f}) {
        CHECK(attempt([&](auto& p) { p.temperature = bad; }) == ENGINE_INVALID_ARGUMENT);
        CHECK(failure.names("temperature"));
        CHECK(attempt([&](auto& p) { p.top_p = bad; }) == ENGINE_INVALID_ARGUMENT);
        CHECK(failure.names("top_p"));
        CHECK(attempt([&](auto& p) { p.min_p = bad; }) == ENGINE_INVALID_ARGUMENT);
        CHECK(failure.names("min_p"));
    }
    CHECK(attempt([](auto& p) { p.top_p = 0; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(attempt([](auto& p) { p.top_p = 1.5f; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(attempt([](auto& p) { p.min_p = 1; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(attempt([](auto& p) { p.top_k = -1; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("top_k"));
    CHECK(attempt([](auto& p) { p.logprobs = 21; }) != ENGINE_OK);
    CHECK(failure.names("logprobs"));
    CHECK(attempt([](auto& p) { p.logprobs = -1; }) != ENGINE_OK);
    CHECK(attempt([](auto& p) { p.part_count = 0; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(attempt([](auto& p) { p.parts = nullptr; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(attempt([](auto& p) { p.part_count = SIZE_MAX; }) == ENGINE_LIMIT);
    CHECK(attempt([](auto& p) { p.part_size = 0; }) == ENGINE_STRUCT_SIZE);
    CHECK(attempt([](auto& p) { p.part_size = 3; }) == ENGINE_STRUCT_SIZE);
    CHECK(attempt([](auto& p) { p.struct_size = 1; }) == ENGINE_STRUCT_SIZE);
    CHECK(attempt([](auto& p) { p.stop_string_count = 3; }) == ENGINE_INVALID_ARGUMENT);
    CHECK(attempt([](auto& p) { p.stop_token_count = 3; }) == ENGINE_INVALID_ARGUMENT);
    const std::vector<int32_t> many(300, 1);
    CHECK(attempt([&](auto& p) { p.stop_tokens = many.data(), p.stop_token_count = 300; }) == ENGINE_LIMIT);
    const int32_t beyond = 320;
    CHECK(attempt([&](auto& p) { p.stop_tokens = &beyond, p.stop_token_count = 1; }) ==
          ENGINE_TOKEN_OUT_OF_RANGE);
    const engine_text empty = {"", ENGINE_ZERO_TERMINATED};
    CHECK(attempt([&](auto& p) { p.stop_strings = &empty, p.stop_string_count = 1; }) ==
          ENGINE_INVALID_ARGUMENT);
    const engine_text broken = {"\xff", ENGINE_ZERO_TERMINATED};
    CHECK(attempt([&](auto& p) { p.stop_strings = &broken, p.stop_string_count = 1; }) ==
          ENGINE_INVALID_UTF8);
    const std::string long_word(5000, 'w');
    const engine_text too_long = {long_word.c_str(), ENGINE_ZERO_TERMINATED};
    CHECK(attempt([&](auto& p) { p.stop_strings = &too_long, p.stop_string_count = 1; }) == ENGINE_LIMIT);
    const std::vector<engine_text> stops(65, engine_text{"x", 1});
    CHECK(attempt([&](auto& p) { p.stop_strings = stops.data(), p.stop_string_count = 65; }) == ENGINE_LIMIT);

    host.run();
    CHECK(host.stories.empty());
    CHECK(host.step().free_blocks == 64);
}

TEST_CASE("prompts that can't be: kinds, null, broken UTF-8, ids, too long") {
    Host host;
    Failure failure;
    const auto attempt = [&](engine_part part) { return submit(host, request_params(&part, 1), failure); };
    engine_part part = text_part("x");
    part.kind = 9;
    CHECK(attempt(part) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("kind is 9"));
    part = text_part(nullptr);
    CHECK(attempt(part) == ENGINE_INVALID_ARGUMENT);
    part = text_part("abc\xff");
    CHECK(attempt(part) == ENGINE_INVALID_UTF8);
    CHECK(failure.names("3"));
    part = text_part("");
    CHECK(attempt(part) == ENGINE_INVALID_ARGUMENT);
    part = message_part(nullptr, "x");
    CHECK(attempt(part) == ENGINE_INVALID_ARGUMENT);
    part = message_part("us\ner", "x");
    CHECK(attempt(part) == ENGINE_INVALID_ARGUMENT);
    for (const int32_t id : {-1, 320, INT32_MAX, INT32_MIN}) {
        const std::vector<int32_t> ids = {5, id};
        CHECK(attempt(tokens_part(ids)) == ENGINE_TOKEN_OUT_OF_RANGE);
        CHECK(failure.names(std::to_string(id).c_str()));
    }
    part = tokens_part({});
    part.token_count = -4;
    CHECK(attempt(part) == ENGINE_INVALID_ARGUMENT);
    part.token_count = 4;
    part.tokens = nullptr;
    CHECK(attempt(part) == ENGINE_INVALID_ARGUMENT);

    const std::vector<int32_t> context(256, 5);
    CHECK(attempt(tokens_part(context)) == ENGINE_PROMPT_TOO_LONG);
    CHECK(failure.names("256"));
    engine_params small = small_engine_params();
    small.kv_blocks = 4;
    Host tight(small);
    const std::vector<int32_t> pool(64, 5);
    const engine_part full = tokens_part(pool);
    CHECK(submit(tight, request_params(&full, 1), failure) == ENGINE_POOL_TOO_SMALL);
    CHECK(failure.names("64"));
    const engine_part small_part = text_part("next");
    engine_request_params next = request_params(&small_part, 1);
    next.max_tokens = 2;
    CHECK(submit(tight, next, failure) == ENGINE_OK);  // the refused one blocks nobody
    tight.run();

    const engine_part mixed[] = {text_part("a"), message_part("user", "b")};
    CHECK(submit(host, request_params(mixed, 2), failure) == ENGINE_INVALID_ARGUMENT);
}

TEST_CASE("a poll with no room takes nothing and loses nothing") {
    Host host;
    const engine_request id = host.submit_text("poll", 10);
    for (int i = 0; i < 4; i++) host.step();
    size_t count = 9, used = 9, needed = 9;
    CHECK(engine_poll_tokens(host.e, nullptr, sizeof(engine_event), 0, &count, nullptr, 0, &used, &needed) ==
          ENGINE_OK);
    CHECK(count == 0);
    CHECK(used == 0);
    engine_event events[4];
    engine_status status = ENGINE_OK;
    int polled = 0;
    bool refused = false;
    for (int i = 0; i < 20; i++) {  // without bytes: events with text stay
        status = engine_poll_tokens(host.e, events, sizeof events[0], 1, &count, nullptr, 0, &used, &needed);
        if (status == ENGINE_BUFFER_TOO_SMALL) {
            CHECK(count == 0);
            CHECK(needed >= 8);
            CHECK(needed % 8 == 0);
            refused = true;
            break;
        }
        CHECK(status == ENGINE_OK);
        polled += static_cast<int>(count);
    }
    CHECK(refused);
    host.run();
    CHECK(host.stories[id].finished == 1);
    CHECK(static_cast<int>(host.stories[id].tokens.size()) + polled == 10);
    CHECK(engine_poll_tokens(host.e, nullptr, sizeof events[0], 4, &count, nullptr, 0, nullptr, nullptr) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(engine_poll_tokens(host.e, events, 2, 4, &count, nullptr, 0, nullptr, nullptr) ==
          ENGINE_STRUCT_SIZE);
    CHECK(engine_poll_tokens(host.e, events, sizeof events[0], 4, nullptr, nullptr, 64, nullptr, nullptr) ==
          ENGINE_INVALID_ARGUMENT);
}

TEST_CASE("a host that doesn't poll for 10,000 steps loses nothing and stops nobody") {
    Host expected_host;
    const engine_request reference = expected_host.submit_text("silence", 200);
    expected_host.run();
    Host host;
    const engine_request silent = host.submit_text("silence", 200);
    for (int i = 0; i < 10000; i++) host.step();
    engine_request_info info;
    engine_request_info_init(&info, sizeof info);
    REQUIRE(engine_request_get_info(host.e, silent, &info) == ENGINE_OK);
    CHECK(info.state == ENGINE_REQUEST_WAITING_POLL);
    CHECK(info.generated_tokens >= 64);
    CHECK(info.generated_tokens < 200);
    host.run();
    CHECK(host.stories[silent].tokens == expected_host.stories[reference].tokens);
    CHECK(host.stories[silent].text == expected_host.stories[reference].text);
}

TEST_CASE("stale and made-up ids") {
    Host host;
    engine_request_info info;
    engine_request_info_init(&info, sizeof info);
    const engine_request real = host.submit_text("x", 2);
    for (const engine_request id : {engine_request{0}, engine_request{1} << 63, UINT64_MAX, real + 1,
                                    real + (engine_request{1} << 32)}) {
        CHECK(engine_cancel(host.e, id) == ENGINE_STALE_ID);
        CHECK(engine_release(host.e, id) == ENGINE_STALE_ID);
        CHECK(engine_request_get_info(host.e, id, &info) == ENGINE_STALE_ID);
        size_t count = 0;
        CHECK(engine_sequence_tokens(host.e, id, 0, nullptr, 0, &count) == ENGINE_STALE_ID);
    }
    host.run();
}

TEST_CASE("a request whose logits are not numbers ends, and its neighbours don't notice") {
    TinyLlamaOptions options;
    options.tied_head = false;
    GgufWriter writer = tiny_llama(42, options);
    Host healthy(small_engine_params(), model_params(), writer.bytes());
    GgufWriter::Tensor* embedding = writer.find_tensor("token_embd.weight");
    REQUIRE(embedding != nullptr);
    const uint32_t nan = 0x7fc00000;  // in one token's embedding: only prompts with that token are ill
    const size_t row_bytes = embedding->data.size() / 320;
    std::memcpy(embedding->data.data() + 300 * row_bytes, &nan, sizeof nan);
    Host host(small_engine_params(), model_params(), writer.bytes());
    const std::vector<int32_t> ids = {5, 300, 6};
    const engine_part part = tokens_part(ids);
    engine_request_params params = request_params(&part, 1);
    params.keep = 1;
    const engine_request neighbour = host.submit_text("abc", 20);
    const engine_request id = host.submit(params);
    host.run();
    CHECK(host.stories[id].finish_reason == ENGINE_FINISH_ERROR);
    CHECK(host.stories[id].status == ENGINE_NOT_A_NUMBER);
    engine_request_info info;
    engine_request_info_init(&info, sizeof info);
    REQUIRE(engine_request_get_info(host.e, id, &info) == ENGINE_OK);
    CHECK(info.status == ENGINE_NOT_A_NUMBER);
    CHECK(std::strlen(info.message) > 10);
    CHECK(engine_release(host.e, id) == ENGINE_OK);
    const engine_request alone = healthy.submit_text("abc", 20);
    healthy.run();
    CHECK(host.stories[neighbour].tokens == healthy.stories[alone].tokens);
}
