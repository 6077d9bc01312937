// SmolLM2-135M-Instruct saved after every token of an answer, and restored in another engine: the same tokens, the same text.
// TREADLE_TEST_MODEL names the file.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/session.h"
#include "engine_harness.h"

using namespace treadle;
using namespace treadle::test;

namespace {

class NoteEvents final : public EventSink {
public:
    bool take(const EventNode& event, std::span<const TokenLogprob>) override {
        std::string text(event.text_bytes, '\0');
        event.sequence->room.copy_oldest_text(text.data());
        texts[event.sequence->request->id] += text;
        if (event.kind == EventKind::token)
            tokens[event.sequence->request->id].emplace_back(event.token, event.logprob);
        return true;
    }
    std::map<uint64_t, std::string> texts;
    std::map<uint64_t, std::vector<std::pair<int32_t, float>>> tokens;
};

struct Host {
    explicit Host(const LoadedModel& model) {
        EngineParams params;
        params.context_length = 512;
        params.kv_blocks = 128;
        engine = make_engine_over(model, memory, params);
    }
    bool step(size_t polls) {
        StepReport report;
        REQUIRE(engine->step({}, &report) == Status::OK);
        engine->poll(sink, polls);
        return report.next_step_us == 0;
    }

    TestAllocator allocator;
    MemorySet memory{allocator.hooks()};
    Owned<Engine> engine;
    NoteEvents sink;
};

}  // namespace

TEST_CASE("SmolLM2 restored after every token says what it would have said") {
    const char* path = std::getenv("TREADLE_TEST_MODEL");
    INFO("TREADLE_TEST_MODEL must name the SmolLM2-135M-Instruct file");
    REQUIRE(path != nullptr);
    const std::unique_ptr<LoadedModel> model = load_path(path);
    for (const float temperature : {0.0f, 1.2f}) {
        Host from(*model), into(*model);
        RequestParams asked(&from.memory.other);
        asked.sampling.temperature = temperature;
        asked.sampling.top_p = 0.95f;
        asked.sampling.seed = 11;
        asked.sampling.logprobs = 1;
        asked.keep = true;
        std::pmr::vector<int32_t> prompt(&from.memory.other);
        const std::string_view question =
            "<|im_start|>user\nSay something with emoji \xf0\x9f\x98\x80 in it."
            "<|im_end|>\n<|im_start|>assistant\n";
        const TextSegment segment = {question, true};
        REQUIRE(model->vocabulary().tokenize({&segment, 1}, prompt, &from.memory.other, nullptr) ==
                Status::OK);
        const size_t prompt_tokens = prompt.size();
        uint64_t id = 0;
        REQUIRE(from.engine->submit(std::move(asked), std::move(prompt), 24, &id, nullptr) == Status::OK);

        struct Saved {
            uint64_t restored;
            size_t tokens;
            std::string polled;
        };
        std::vector<Saved> all;
        const auto save = [&] {
            SessionState state(&from.memory.other), read(&into.memory.other);
            REQUIRE(from.engine->save_session(id, 0, {}, &state, nullptr) == Status::OK);
            std::vector<std::byte> bytes(session_bytes(state));
            REQUIRE(encode_session(state, bytes, nullptr) == Status::OK);
            CHECK(bytes.size() < 600);
            REQUIRE(decode_session(bytes, &read, nullptr) == Status::OK);
            uint64_t restored = 0;
            REQUIRE(into.engine->restore_session(read, {}, &restored, nullptr) == Status::OK);
            all.push_back({restored, state.tokens.size() - prompt_tokens, from.sink.texts[id]});
        };
        for (size_t i = 0; from.step(i % 3); i++) save();
        save();
        while (into.step(SIZE_MAX)) {
        }
        from.engine->poll(from.sink, SIZE_MAX);
        const std::string& text = from.sink.texts[id];
        const auto& tokens = from.sink.tokens[id];
        CHECK(tokens.size() > 8);
        for (const Saved& saved : all) {
            CAPTURE(saved.tokens);
            CHECK(saved.polled + into.sink.texts[saved.restored] == text);
            const std::vector<std::pair<int32_t, float>> rest(
                tokens.begin() + static_cast<std::ptrdiff_t>(saved.tokens), tokens.end());
            CHECK((into.sink.tokens[saved.restored] == rest));
        }
        CHECK(into.engine->stats().figures.counters.prompt_tokens_cached > 0);
    }
}
