// What the tests of sessions share: saving into bytes, restoring from them, and a record of what each sequence told.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "api_fixture.h"

namespace treadle::test {

using SessionBytes = std::vector<unsigned char>;

inline SessionBytes save(engine* e, engine_request id, int32_t sequence = 0, int32_t position = -1) {
    size_t size = 0;
    Failure failure;
    const engine_status asked = engine_session_save(e, id, sequence, position, nullptr, 0, &size, failure);
    REQUIRE_MESSAGE(asked == ENGINE_BUFFER_TOO_SMALL, failure.message());
    SessionBytes bytes(size);
    REQUIRE(engine_session_save(e, id, sequence, position, bytes.data(), bytes.size(), &size, failure) ==
            ENGINE_OK);
    CHECK(size == bytes.size());
    return bytes;
}

inline engine_request restore(engine* e, const SessionBytes& bytes,
                              const engine_session_params* params = nullptr) {
    engine_request id = 0;
    Failure failure;
    const engine_status status = engine_session_restore(e, bytes.data(), bytes.size(), params, &id, failure);
    REQUIRE_MESSAGE(status == ENGINE_OK, failure.message());
    return id;
}

inline engine_session_params session_params() {
    engine_session_params params;
    REQUIRE(engine_session_params_init(&params, sizeof params) == ENGINE_OK);
    return params;
}

// What a sequence's events said.
struct Tale {
    std::vector<int32_t> tokens;
    std::vector<std::string> texts;  // of each token's event
    std::string told_again;          // text events before the first token
    std::string text;                // all
    std::string logprobs;            // bytes of all log-probabilities, and of the tokens' own
    int32_t finish_reason = ENGINE_FINISH_NONE;
    int32_t prompt_tokens = 0;
    int32_t generated_tokens = 0;
    uint64_t user_data = 0;
};

class Teller {
public:
    using Key = std::pair<engine_request, int32_t>;

    // At most `capacity` events; true if there were any.
    bool poll(engine* e, size_t capacity) {
        std::vector<engine_event> events(capacity);
        alignas(8) char bytes[1 << 13];
        size_t count = 0, used = 0, needed = 0;
        REQUIRE(engine_poll_tokens(e, events.data(), sizeof events[0], capacity, &count, bytes, sizeof bytes,
                                   &used, &needed) == ENGINE_OK);
        for (size_t i = 0; i < count; i++) tell(events[i], bytes);
        return count > 0;
    }
    void run(engine* e) {
        engine_step_report report;
        REQUIRE(engine_step_report_init(&report, sizeof report) == ENGINE_OK);
        do {
            REQUIRE(engine_step(e, nullptr, &report) == ENGINE_OK);
            while (poll(e, 16)) {
            }
        } while (report.next_step_us == 0 || report.waiting_poll > 0);
    }
    Tale& of(engine_request id, int32_t sequence = 0) { return tales[{id, sequence}]; }

    std::map<Key, Tale> tales;

private:
    void tell(const engine_event& event, const char* bytes) {
        Tale& tale = of(event.request, event.sequence);
        CHECK(tale.finish_reason == ENGINE_FINISH_NONE);
        const std::string text(bytes + event.text_offset, event.text_bytes);
        tale.text += text;
        tale.user_data = event.user_data;
        if (event.kind == ENGINE_EVENT_TEXT && tale.tokens.empty()) tale.told_again += text;
        if (event.kind == ENGINE_EVENT_TOKEN) {
            tale.tokens.push_back(event.token);
            tale.texts.push_back(text);
            tale.logprobs.append(reinterpret_cast<const char*>(&event.logprob), sizeof event.logprob);
            tale.logprobs.append(bytes + event.logprobs_offset,
                                 static_cast<size_t>(event.logprob_count) * sizeof(engine_logprob));
        }
        if (event.kind != ENGINE_EVENT_FINISHED) return;
        tale.finish_reason = event.finish_reason;
        tale.prompt_tokens = event.prompt_tokens;
        tale.generated_tokens = event.generated_tokens;
    }
};

inline std::vector<int32_t> tokens_of(engine* e, engine_request id, int32_t sequence = 0) {
    std::vector<int32_t> tokens(4096);
    size_t count = 0;
    REQUIRE(engine_sequence_tokens(e, id, sequence, tokens.data(), tokens.size(), &count) == ENGINE_OK);
    tokens.resize(count);
    return tokens;
}

}  // namespace treadle::test
