// What the tests of the C interface share: a tiny model in memory, an engine over it, and a loop that steps and polls. Everything
// goes through engine.h, so the same tests run against the shared and the static library.
#pragma once

#include <doctest/doctest.h>
#include <engine.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "support/gguf_writer.h"
#include "test_memory.h"

namespace treadle::test {

// Tokens of the tiny model: see gguf_writer.h.
constexpr int32_t end_of_text = 0, im_start = 1, im_end = 2, first_byte = 3;

inline const Bytes& tiny_file() {
    static const Bytes file = tiny_llama(42).bytes();
    return file;
}

struct Failure {
    engine_error error;
    Failure() { engine_error_init(&error, sizeof error); }
    operator engine_error*() { return &error; }  // NOLINT: that is what it is for
    std::string message() const { return error.message; }
    bool names(const char* word) const { return message().find(word) != std::string::npos; }
};

inline engine_model_params model_params() {
    engine_model_params params;
    REQUIRE(engine_model_params_init(&params, sizeof params) == ENGINE_OK);
    params.threads = 1;
    return params;
}

// Memory of the C library, so that a sanitizer sees what is used after it was freed.
inline engine_model_params params_with_malloc() {
    engine_model_params params = model_params();
    params.alloc = [](void*, size_t size, size_t alignment, int32_t) -> void* {
        alignment = std::max(alignment, alignof(std::max_align_t));
        return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    };
    params.free = [](void*, void* pointer, size_t, size_t, int32_t) { std::free(pointer); };
    return params;
}

// Memory through a counting allocator.
inline engine_model_params params_with(TestAllocator& allocator) {
    engine_model_params params = model_params();
    const AllocatorHooks hooks = allocator.hooks();
    params.alloc = hooks.alloc;
    params.free = hooks.free;
    params.alloc_user = hooks.user;
    return params;
}

inline engine_stats stats_of(engine* e) {
    engine_stats stats;
    REQUIRE(engine_stats_init(&stats, sizeof stats) == ENGINE_OK);
    REQUIRE(engine_get_stats(e, &stats) == ENGINE_OK);
    return stats;
}

// Tokens of single bytes.
inline std::vector<int32_t> some_tokens(uint32_t seed, size_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) {
        seed = seed * 1664525 + 1013904223;
        token = first_byte + static_cast<int32_t>(seed >> 16) % 250;
    }
    return tokens;
}

inline engine_params small_engine_params() {
    engine_params params;
    REQUIRE(engine_params_init(&params, sizeof params) == ENGINE_OK);
    params.max_sequences = 4;
    params.max_batch_tokens = 32;
    params.kv_blocks = 64;
    return params;
}

inline engine_part text_part(const char* text, int32_t kind = ENGINE_PART_TEXT) {
    engine_part part;
    REQUIRE(engine_part_init(&part, sizeof part) == ENGINE_OK);
    part.kind = kind;
    part.text = text;
    return part;
}

inline engine_part message_part(const char* role, const char* text) {
    engine_part part = text_part(text, ENGINE_PART_CHAT_MESSAGE);
    part.role = role;
    return part;
}

inline engine_part tokens_part(const std::vector<int32_t>& tokens) {
    engine_part part = text_part(nullptr, ENGINE_PART_TOKENS);
    part.text_bytes = 0;
    part.tokens = tokens.data();
    part.token_count = static_cast<int32_t>(tokens.size());
    return part;
}

inline engine_request_params request_params(const engine_part* parts, size_t count) {
    engine_request_params params;
    REQUIRE(engine_request_params_init(&params, sizeof params) == ENGINE_OK);
    params.parts = parts;
    params.part_count = count;
    return params;
}

// What one request's events said.
struct Story {
    std::vector<int32_t> tokens;  // generated ones
    std::vector<float> logprobs;
    std::vector<std::vector<engine_logprob>> best;
    std::string text;
    int32_t finish_reason = ENGINE_FINISH_NONE;
    engine_status status = ENGINE_OK;
    int finished = 0;
    int progress = 0;
    int32_t prompt_tokens = 0;
    int32_t generated_tokens = 0;
    int32_t cached_tokens = 0;
    uint64_t user_data = 0;
};

// A model and an engine; destroyed in the right order.
class Host {
public:
    explicit Host(const engine_params& params = small_engine_params(),
                  const engine_model_params& of_model = model_params(), const Bytes& file = tiny_file()) {
        Failure failure;
        INFO("engine_model_load_memory");
        REQUIRE_MESSAGE(
            engine_model_load_memory(file.data(), file.size(), &of_model, &model, failure) == ENGINE_OK,
            failure.message());
        REQUIRE_MESSAGE(engine_create(model, &params, &e, failure) == ENGINE_OK, failure.message());
    }
    ~Host() {
        engine_destroy(e);
        engine_model_free(model);
    }
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;

    engine_request submit(const engine_request_params& params) {
        engine_request id = 0;
        Failure failure;
        REQUIRE_MESSAGE(engine_submit(e, &params, &id, failure) == ENGINE_OK, failure.message());
        CHECK(id != 0);
        return id;
    }
    engine_request submit_text(const char* text, int32_t max_tokens = 8) {
        const engine_part part = text_part(text);
        engine_request_params params = request_params(&part, 1);
        params.max_tokens = max_tokens;
        params.ignore_end = 1;
        return submit(params);
    }

    // Polls everything there is into the stories.
    void poll() {
        engine_event events[7];
        alignas(8) char bytes[1 << 12];
        size_t count = 0, used = 0, needed = 0;
        do {
            REQUIRE(engine_poll_tokens(e, events, sizeof events[0], 7, &count, bytes, sizeof bytes, &used,
                                       &needed) == ENGINE_OK);
            for (size_t i = 0; i < count; i++) tell(events[i], bytes);
        } while (count > 0);
    }

    engine_step_report step(int64_t budget_us = 0) {
        engine_step_params params;
        engine_step_report report;
        REQUIRE(engine_step_params_init(&params, sizeof params) == ENGINE_OK);
        REQUIRE(engine_step_report_init(&report, sizeof report) == ENGINE_OK);
        params.budget_us = budget_us;
        REQUIRE(engine_step(e, &params, &report) == ENGINE_OK);
        return report;
    }

    // Until there is nothing left to do.
    void run() {
        for (int i = 0; i < 100000; i++) {
            const engine_step_report report = step();
            poll();
            if (report.next_step_us != 0 && report.waiting_poll == 0) return;
        }
        FAIL("the engine does not come to an end");
    }

    Story answer(const engine_request_params& params) {
        const engine_request id = submit(params);
        run();
        return stories[id];
    }

    std::vector<int32_t> tokenize(const std::vector<engine_part>& parts) {
        std::vector<int32_t> tokens(4096);
        size_t count = 0;
        Failure failure;
        REQUIRE_MESSAGE(engine_tokenize(model, parts.data(), sizeof(engine_part), parts.size(), tokens.data(),
                                        tokens.size(), &count, failure) == ENGINE_OK,
                        failure.message());
        tokens.resize(count);
        return tokens;
    }

    engine_model* model = nullptr;
    engine* e = nullptr;
    std::map<engine_request, Story> stories;

private:
    void tell(const engine_event& event, const char* bytes) {
        Story& story = stories[event.request];
        CHECK(story.finished == 0);  // a final event is the last
        story.user_data = event.user_data;
        story.text.append(bytes + event.text_offset, event.text_bytes);
        CHECK(event.text_offset % 8 == 0);
        if (event.kind == ENGINE_EVENT_TOKEN) {
            story.tokens.push_back(event.token);
            story.logprobs.push_back(event.logprob);
            std::vector<engine_logprob> best(static_cast<size_t>(event.logprob_count));
            if (!best.empty())
                std::memcpy(best.data(), bytes + event.logprobs_offset, best.size() * sizeof best[0]);
            story.best.push_back(best);
        }
        if (event.kind == ENGINE_EVENT_PROGRESS) story.progress++;
        if (event.kind != ENGINE_EVENT_FINISHED) return;
        story.finished++;
        story.finish_reason = event.finish_reason;
        story.status = event.status;
        story.prompt_tokens = event.prompt_tokens;
        story.generated_tokens = event.generated_tokens;
        story.cached_tokens = event.cached_tokens;
    }
};

}  // namespace treadle::test
