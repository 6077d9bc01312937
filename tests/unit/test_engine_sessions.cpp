// Sessions inside the engine: what only a forged file can hold is refused, and what an engine's end leaves can still be saved.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "engine/session.h"
#include "engine_harness.h"
#include "test_backend_double.h"

using namespace treadle;
using namespace treadle::test;

namespace {

struct Told {
    std::vector<int32_t> tokens;
    std::vector<std::string> texts;  // of each event that has any
    std::string text;
    FinishReason reason = FinishReason::none;
};

class NoteEvents final : public EventSink {
public:
    bool take(const EventNode& event, std::span<const TokenLogprob>) override {
        Told& told = stories[event.sequence->request->id];
        std::string text(event.text_bytes, '\0');
        event.sequence->room.copy_oldest_text(text.data());
        told.text += text;
        if (!text.empty()) told.texts.push_back(text);
        if (event.kind == EventKind::token) told.tokens.push_back(event.token);
        if (event.kind == EventKind::finished) told.reason = event.sequence->finish_reason;
        return true;
    }
    std::map<uint64_t, Told> stories;
};

// An engine over the double of a backend.
struct Rig {
    explicit Rig(const LoadedModel& model) : store(model.model().weight_store(), plan) {
        EngineParams params;
        params.max_batch_tokens = 24;
        params.kv_blocks = 24;
        engine = make_engine_over(model, memory, params, &store);
    }
    uint64_t submit(const std::vector<int32_t>& prompt, int32_t max_tokens) {
        RequestParams asked(&memory.other);
        asked.sampling.temperature = 3;
        asked.sampling.seed = 3;
        asked.ignore_end = true;
        asked.keep = true;
        uint64_t id = 0;
        std::pmr::vector<int32_t> tokens(prompt.begin(), prompt.end(), &memory.other);
        REQUIRE(engine->submit(std::move(asked), std::move(tokens), max_tokens, &id, nullptr) == Status::OK);
        return id;
    }
    SessionState save(uint64_t id) {
        SessionState state(&memory.other);
        REQUIRE(engine->save_session(id, 0, {}, &state, nullptr) == Status::OK);
        return state;
    }
    Told& run(uint64_t id, int32_t steps = INT32_MAX) {
        StepReport report;
        for (int32_t i = 0; i < steps; i++) {
            REQUIRE(engine->step({}, &report) == Status::OK);
            engine->poll(sink, SIZE_MAX);
            if (report.next_step_us != 0) break;
        }
        return sink.stories[id];
    }
    Status restore(const SessionState& state, uint64_t* id, Error* error) {
        return engine->restore_session(state, {}, id, error);
    }

    TestAllocator allocator;
    tests::DoublePlan plan;
    NoteEvents sink;
    MemorySet memory{allocator.hooks()};
    tests::DoubleStore store;
    Owned<Engine> engine;
};

const std::vector<int32_t> prompt = {70, 71, 72, 73};

// A session whose answer has a character of two bytes, at bytes 1 and 2 of its text: "a" "é" "b" …
SessionState written(Rig& rig, const LoadedModel& model, int32_t repeats = 1) {
    SessionState state(&rig.memory.other);
    state.model_fingerprint = model.model().facts().fingerprint;
    std::strcpy(state.numerics_id, model.model().weight_store().numerics_id());
    state.tokens.assign(prompt.begin(), prompt.end());
    state.prompt_tokens = 4;
    state.max_tokens = 200;
    for (int32_t i = 0; i < repeats; i++)
        for (const unsigned char byte : std::string("a\xc3\xa9z")) {
            int32_t token = 3;
            while (model.vocabulary().token_bytes(token) !=
                   std::string_view(reinterpret_cast<const char*>(&byte), 1))
                token++;
            state.tokens.push_back(token);
        }
    return state;
}

}  // namespace

TEST_CASE("text that was not delivered is told first, and no more of it than there can be is believed") {
    const auto model = load_bytes(tiny_llama(31).bytes());
    for (uint64_t delivered = 0; delivered <= 4; delivered++) {
        CAPTURE(delivered);
        Rig rig(*model);
        SessionState state = written(rig, *model);
        state.delivered_bytes = delivered;
        uint64_t id = 0;
        Error error;
        const Status status = rig.restore(state, &id, &error);
        if (delivered == 2) {  // in the middle of a character
            CHECK(status == Status::CORRUPT);
            CHECK(std::strstr(error.message, "delivered_bytes is 2") != nullptr);
            CHECK(rig.engine->stats().figures.counters.requests_submitted == 0);
            continue;
        }
        REQUIRE(status == Status::OK);
        rig.engine->poll(rig.sink, SIZE_MAX);
        CHECK(rig.sink.stories[id].text == std::string("a\xc3\xa9z").substr(delivered));
        CHECK(rig.sink.stories[id].tokens.empty());
    }
    Rig rig(*model);
    SessionState state = written(rig, *model);
    state.delivered_bytes = 5;
    uint64_t id = 0;
    Error error;
    CHECK(rig.restore(state, &id, &error) == Status::CORRUPT);
    CHECK(std::strstr(error.message, "more than its text of 4") != nullptr);
    CHECK(id == 0);
}

TEST_CASE("undelivered text comes in pieces that any buffer for a token's text takes, or not at all") {
    const auto model = load_bytes(tiny_llama(31).bytes());
    TestAllocator allocator;
    Memory memory(allocator.hooks(), MemoryKind::other);
    const size_t longest = model->vocabulary().max_token_bytes();
    const size_t piece = TextStream::output_bytes_max(StopSet(&memory), longest);
    size_t pieces = 0;
    for (int32_t repeats = 10; repeats <= 55; repeats += 15) {
        Rig rig(*model);
        SessionState state = written(rig, *model, repeats);
        state.max_tokens = 4 * repeats + 2;
        uint64_t id = 0;
        REQUIRE(rig.restore(state, &id, nullptr) == Status::OK);
        const Told& told = rig.run(id);
        std::string expected;
        for (int32_t i = 0; i < repeats; i++) expected += "a\xc3\xa9z";
        CHECK(told.text.substr(0, expected.size()) == expected);
        CHECK(told.tokens.size() == 2);
        CHECK(told.reason == FinishReason::length);
        for (const std::string& text : told.texts) {
            CHECK(text.size() <= piece);
            CHECK((static_cast<unsigned char>(text[0]) & 0xc0) != 0x80);
        }
        pieces = told.texts.size();
    }
    CHECK(pieces > 5);

    Rig rig(*model);
    SessionState state = written(rig, *model);
    const int32_t token = model->vocabulary().size() - 1;  // "extra319"
    state.tokens.resize(200, token);
    const uint64_t token_bytes = model->vocabulary().token_bytes(token).size();
    uint64_t id = 0;
    Error error;
    CHECK(rig.restore(state, &id, &error) == Status::CORRUPT);
    CHECK(std::strstr(error.message, "more than an engine keeps") != nullptr);
    state.delivered_bytes = 4 + 191 * token_bytes;
    CHECK(rig.restore(state, &id, &error) == Status::OK);
}

TEST_CASE("what a broken engine held goes on in another one") {
    const auto model = load_bytes(tiny_llama(32).bytes());
    Rig whole(*model), broken(*model), next(*model);
    const Told expected = whole.run(whole.submit(prompt, 30));
    const uint64_t id = broken.submit(prompt, 30);
    static_cast<void>(broken.run(id, 12));
    broken.plan.fail_next_advance = Status::INTERNAL;
    StepReport report;
    REQUIRE(broken.engine->step({}, &report) == Status::INTERNAL);
    const std::string polled = broken.sink.stories[id].text;
    SessionState state = broken.save(id);
    CHECK(state.finish_reason == 0);
    uint64_t restored = 0;
    REQUIRE(next.restore(state, &restored, nullptr) == Status::OK);
    const Told& told = next.run(restored);
    CHECK(polled + told.text == expected.text);
    CHECK(told.tokens ==
          std::vector<int32_t>(expected.tokens.end() - static_cast<std::ptrdiff_t>(told.tokens.size()),
                               expected.tokens.end()));
    CHECK(broken.restore(state, &restored, nullptr) == Status::UNUSABLE);
}

TEST_CASE("what was asked comes back as it was, through any number of sessions") {
    const auto model = load_bytes(tiny_llama(33).bytes());
    Rig rig(*model);
    RequestParams asked(&rig.memory.other);
    const std::vector<std::string_view> stops = {"one", "two", "one", "three"};
    REQUIRE(asked.stops.build(stops, nullptr) == Status::OK);
    asked.stop_tokens = {5, 9, 5};
    asked.sampling = {0.5f, 7, 0.9f, 0.1f, 1234567890123, 4};
    asked.first_sample = 6;
    asked.samples = 2;
    asked.generated_tail = 2;
    uint64_t id = 0;
    std::pmr::vector<int32_t> tokens({60, 61, 62, 63, 64}, &rig.memory.other);
    REQUIRE(rig.engine->submit(std::move(asked), std::move(tokens), 1000000, &id, nullptr) == Status::OK);
    SessionState state(&rig.memory.other);
    REQUIRE(rig.engine->save_session(id, 1, {}, &state, nullptr) == Status::OK);
    CHECK(state.sample_index == 7);
    CHECK(state.prompt_tokens == 3);
    CHECK(state.max_tokens == 1000002);  // beyond this engine's context: another may have more room
    REQUIRE(state.stop_strings.size() == 4);
    for (size_t i = 0; i < stops.size(); i++) CHECK(state.stop_strings[i] == stops[i]);
    CHECK(state.stop_tokens == std::pmr::vector<int32_t>{5, 9, 5});
    CHECK(state.sampling.seed == 1234567890123);
    std::vector<std::byte> bytes(session_bytes(state));
    REQUIRE(encode_session(state, bytes, nullptr) == Status::OK);
    for (int hop = 0; hop < 3; hop++) {
        uint64_t restored = 0;
        REQUIRE(rig.restore(state, &restored, nullptr) == Status::OK);
        state = rig.save(restored);
        std::vector<std::byte> again(session_bytes(state));
        REQUIRE(encode_session(state, again, nullptr) == Status::OK);
        CHECK(again == bytes);
    }
}
