// Where features meet: forks and sessions behind stop strings, beam searches that are saved before they are polled, limits that
// follow a conversation into another engine, deadlines at the end of time, and thousands of orders at once.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/session.h"
#include "support/fake_model.h"
#include "test_memory.h"

using namespace treadle;
using namespace treadle::test;

namespace {

struct Told {
    std::vector<int32_t> tokens;
    std::vector<std::string> texts;  // one for each token
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
        if (event.kind == EventKind::token) {
            told.tokens.push_back(event.token);
            told.texts.push_back(text);
        }
        if (event.kind == EventKind::finished) told.reason = event.sequence->finish_reason;
        return true;
    }
    std::map<uint64_t, Told> stories;
};

struct Host {
    explicit Host(int32_t max_requests = 64) : model(model_memory, {.seed = 7, .end_period = 0}) {
        control.checking = FakeControl::Checking::some;
        EngineParams params;
        params.max_sequences = 8;
        params.max_requests = max_requests;
        params.kv_blocks = 256;
        params.clock = clock.hook();
        Error error;
        REQUIRE(make_engine(memory, {&model.program(), &model.rope(), &model.vocabulary()}, model.context(),
                            params, make_owned<FakeBackend>(&memory.other, model, control), &engine,
                            &error) == Status::OK);
    }
    RequestParams asked(const std::vector<std::string>& stops = {}) {
        RequestParams params(&memory.other);
        params.keep = true;
        params.sampling.temperature = 0;
        const std::vector<std::string_view> views(stops.begin(), stops.end());
        REQUIRE(params.stops.build(views, nullptr) == Status::OK);
        return params;
    }
    uint64_t submit(RequestParams&& params, const std::vector<int32_t>& prompt, int32_t max_tokens) {
        std::pmr::vector<int32_t> tokens(prompt.begin(), prompt.end(), &memory.other);
        uint64_t id = 0;
        REQUIRE(engine->submit(std::move(params), std::move(tokens), max_tokens, &id, nullptr) == Status::OK);
        return id;
    }
    uint64_t fork(uint64_t parent, int32_t position, RequestParams* params = nullptr,
                  int32_t max_tokens = 0) {
        uint64_t id = 0;
        REQUIRE(engine->fork(parent, 0, position, params, max_tokens, &id, nullptr) == Status::OK);
        return id;
    }
    SessionState save(uint64_t id, std::optional<int32_t> position = {}) {
        SessionState state(&memory.other);
        REQUIRE(engine->save_session(id, 0, position, &state, nullptr) == Status::OK);
        return state;
    }
    uint64_t restore(const SessionState& state) {
        RestoreParams params;
        params.keep = true;
        uint64_t id = 0;
        Error error;
        const Status status = engine->restore_session(state, params, &id, &error);
        CAPTURE(error.message);
        REQUIRE(status == Status::OK);
        return id;
    }
    StepReport step() {
        StepReport report;
        REQUIRE(engine->step({}, &report) == Status::OK);
        return report;
    }
    Told& run(uint64_t id) {
        do engine->poll(sink, SIZE_MAX);
        while (step().next_step_us == 0);
        engine->poll(sink, SIZE_MAX);
        CHECK(control.violations == 0);
        return sink.stories[id];
    }
    int32_t length(uint64_t id) {
        std::vector<int32_t> out(4096);
        size_t count = 0;
        REQUIRE(engine->sequence_tokens(id, 0, out, &count, nullptr) == Status::OK);
        return static_cast<int32_t>(count);
    }

    TestAllocator model_allocator, allocator;
    MemorySet model_memory{model_allocator.hooks()};
    MemorySet memory{allocator.hooks()};
    FakeModel model;
    FakeControl control;
    VirtualClock clock;
    NoteEvents sink;
    Owned<Engine> engine;
};

const std::vector<int32_t> prompt = {10, 11, 12, 13, 14};

// What three tokens of an answer say: long enough not to come again by chance.
std::string text_of_three(const Told& told, size_t first) {
    return told.texts[first] + told.texts[first + 1] + told.texts[first + 2];
}

}  // namespace

TEST_CASE("a stop string among the tokens that a fork begins with doesn't end what it says") {
    Host host;
    const uint64_t parent = host.submit(host.asked(), prompt, 20);
    const Told said = host.run(parent);
    REQUIRE(said.tokens.size() == 20);
    const int32_t length = host.length(parent);
    RequestParams plain = host.asked();
    const Told expected = host.run(host.fork(parent, length, &plain, 12));
    REQUIRE(expected.tokens.size() == 12);
    for (const size_t first : {2, 10, 17}) {  // the last one ends just where the fork begins
        CAPTURE(first);
        RequestParams stopping = host.asked({text_of_three(said, first)});
        const Told told = host.run(host.fork(parent, length, &stopping, 12));
        CHECK(told.tokens == expected.tokens);
        CHECK(told.text == expected.text);
        CHECK(told.reason == FinishReason::length);
    }
    // One that is completed by the fork's own tokens does end it.
    RequestParams stopping = host.asked({text_of_three(said, 5), text_of_three(expected, 4)});
    const Told told = host.run(host.fork(parent, length, &stopping, 12));
    CHECK(told.tokens.size() == 7);
    CHECK(told.reason == FinishReason::stop_string);
}

TEST_CASE("an answer that a stop string ended goes on from its last token, forked or saved") {
    Host plain;
    const Told expected = plain.run(plain.submit(plain.asked(), prompt, 30));
    Host host;
    const uint64_t parent = host.submit(host.asked({text_of_three(expected, 6)}), prompt, 30);
    const Told first_part = host.run(parent);
    REQUIRE(first_part.reason == FinishReason::stop_string);
    const int32_t length = host.length(parent);
    const SessionState state = host.save(parent, length);
    Host other;
    const Told restored = other.run(other.restore(state));
    const Told forked = host.run(host.fork(parent, length));
    std::string rest;
    for (size_t i = first_part.tokens.size(); i < 30; i++) rest += expected.texts[i];
    for (const Told& told : {restored, forked}) {
        CHECK(told.tokens == std::vector<int32_t>(expected.tokens.begin() +
                                                      static_cast<std::ptrdiff_t>(first_part.tokens.size()),
                                                  expected.tokens.end()));
        CHECK(told.text == rest);
        CHECK(told.reason == FinishReason::length);
    }
    // As it is, it stays over.
    Host third;
    const uint64_t over = third.restore(host.save(parent));
    CHECK(third.run(over).reason == FinishReason::stop_string);
    CHECK(third.sink.stories[over].text.empty());
}

TEST_CASE("a stop token's text is never told, also by who goes on behind it") {
    Host plain;
    const Told expected = plain.run(plain.submit(plain.asked(), prompt, 60));
    for (const bool holds_back : {false, true}) {  // what comes before it, for a stop string
        CAPTURE(holds_back);
        Host host;
        RequestParams asked = host.asked();
        if (holds_back) asked = host.asked({expected.texts[11] + "?!"});
        asked.stop_tokens = {expected.tokens[12]};
        const uint64_t parent = host.submit(std::move(asked), prompt, 60);
        const Told first_part = host.run(parent);
        REQUIRE(first_part.reason == FinishReason::end);
        REQUIRE(first_part.tokens.size() == 13);
        REQUIRE_FALSE(expected.texts[12].empty());
        Host other, third;
        const uint64_t restored = other.restore(host.save(parent, host.length(parent)));
        const Told told = other.run(restored);
        REQUIRE(told.tokens.size() > 1);
        std::string rest;
        for (size_t i = 0; i < told.tokens.size(); i++) {
            CHECK(told.tokens[i] == expected.tokens[13 + i]);
            if (told.tokens[i] != expected.tokens[12]) rest += expected.texts[13 + i];
        }
        CHECK(told.text == rest);
        CHECK(host.run(host.fork(parent, host.length(parent))).text == rest);
        // Nor when it is saved once more, with all told, or nothing of what came after it.
        CHECK(third.run(third.restore(other.save(restored))).text.empty());
        SessionState untold = other.save(restored);
        untold.delivered_bytes = first_part.text.size();
        CHECK(third.run(third.restore(untold)).text == rest);
    }
}

TEST_CASE("a fork of what was restored gets as long as a fork of the original") {
    Host plain;
    const Told expected = plain.run(plain.submit(plain.asked(), prompt, 40));
    Host host;
    RequestParams asked = host.asked();
    asked.stop_tokens = {expected.tokens[12]};
    const uint64_t original = host.submit(std::move(asked), prompt, 40);
    REQUIRE(host.run(original).reason == FinishReason::end);
    const SessionState state = host.save(original);
    Host other;
    const uint64_t restored = other.restore(state);
    REQUIRE(other.run(restored).reason == FinishReason::end);
    const int32_t length = host.length(original);
    for (const int32_t position : {6, length - 1, length}) {
        CAPTURE(position);
        const uint64_t a = host.fork(original, position), b = other.fork(restored, position);
        CHECK(host.run(a).tokens == other.run(b).tokens);
        CHECK(host.sink.stories[a].text == other.sink.stories[b].text);
        CHECK(host.sink.stories[a].reason == other.sink.stories[b].reason);
    }
}

TEST_CASE("a beam search that is over is saved and restored, however little of it was polled") {
    Host host;
    RequestParams asked = host.asked();
    asked.beam_width = 3;
    asked.samples = 2;
    const uint64_t id = host.submit(std::move(asked), prompt, 900);
    while (host.step().next_step_us == 0) {
    }
    std::vector<SessionState> states;
    states.push_back(host.save(id));
    NoteEvents some;
    host.engine->poll(some, 20);
    states.push_back(host.save(id));
    const std::string polled = some.stories[id].text;
    Told rest;
    const auto first_only = [&] {  // the second hypothesis' events come after the first one's
        while (rest.reason == FinishReason::none) {
            NoteEvents one;
            host.engine->poll(one, 1);
            rest.text += one.stories[id].text;
            rest.reason = one.stories[id].reason;
        }
    };
    first_only();
    for (size_t i = 0; i < states.size(); i++) {
        CAPTURE(i);
        Host other;
        const uint64_t restored = other.restore(states[i]);
        const Told& told = other.run(restored);
        CHECK((i == 0 ? told.text : polled + told.text) == polled + rest.text);
        CHECK(told.reason == rest.reason);
        CHECK(other.length(restored) == host.length(id));
    }
}

TEST_CASE("a deadline at the end of time is no hurry") {
    Host host;
    RequestParams asked = host.asked();
    asked.priority = Priority::paused;
    asked.deadline_us = INT64_MAX / 1000;
    static_cast<void>(host.submit(std::move(asked), prompt, 4));
    CHECK(host.step().next_step_us >= INT64_MAX / 1000);
}

TEST_CASE("who ended before it was taken in doesn't count as waiting") {
    constexpr int32_t count = 1000, at_once = 256, cancelled = 200;
    Host host(count);
    std::vector<uint64_t> ids;
    int32_t waiting = 0;  // in the mailbox, after a step that has time to look at its first requests only
    for (int32_t i = 0; i < count; i++) {
        RequestParams asked = host.asked();
        if (i % 3 == 1) asked.samples = 2;
        if (i % 3 == 2) asked.beam_width = 3;
        if (i >= at_once && i < count - cancelled) waiting += i % 3 + 1;
        asked.priority = Priority::paused;
        ids.push_back(host.submit(std::move(asked), prompt, 1));
    }
    for (int32_t i = count - cancelled; i < count; i++)
        REQUIRE(host.engine->cancel(ids[static_cast<size_t>(i)]) == Status::OK);
    host.clock.read_cost_ns = 2000;
    StepReport report;
    REQUIRE(host.engine->step({.budget_us = 1}, &report) == Status::OK);
    CHECK(report.waiting == waiting);
    host.step();
    CHECK(host.step().waiting == 0);
}

TEST_CASE("many that wait change their priority, or end, in a moment") {
    constexpr int32_t count = 60000;
    Host host(count);
    std::vector<uint64_t> ids;
    for (int32_t i = 0; i < count; i++) {
        RequestParams asked = host.asked();
        asked.keep = false;
        asked.priority = i % 2 == 0 ? Priority::bulk : Priority::paused;
        ids.push_back(host.submit(std::move(asked), prompt, 1));
    }
    host.step();
    for (int32_t i = 1; i < count; i += 2)  // each between two that wait already
        REQUIRE(host.engine->set_priority(ids[static_cast<size_t>(i)], Priority::bulk) == Status::OK);
    host.step();  // a search of each one's place from one end takes a minute here, as does the step below
    RequestInfo info;
    REQUIRE(host.engine->request_info(ids[20001], &info) == Status::OK);
    const int32_t place = info.queue_place;
    REQUIRE(host.engine->request_info(ids[20000], &info) == Status::OK);
    CHECK(place == info.queue_place + 1);
    for (const uint64_t id : ids) static_cast<void>(host.engine->cancel(id));
    host.step();
    CHECK(host.step().waiting == 0);
}
