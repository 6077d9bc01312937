// Beam search through engine.h: its fields and their ranges, the events that tell the best hypotheses, and their scores.
#include <cmath>

#include "session_fixture.h"

using namespace treadle::test;

namespace {

struct Told {
    std::vector<int32_t> tokens;
    std::string text;
    double sum = 0;
    float score = 0;
    int32_t reason = ENGINE_FINISH_NONE;
    int32_t generated = -1;
    int32_t last = -1;
};

// Runs until the request is over; its sequences in order.
std::vector<Told> tell(Host& host, engine_request id, size_t sequences, size_t capacity = 5) {
    std::vector<Told> told(sequences);
    std::vector<engine_event> events(capacity);
    alignas(8) char bytes[1 << 12];
    for (int turn = 0; turn < 20000; turn++) {
        size_t count = 0, used = 0, needed = 0;
        REQUIRE(engine_poll_tokens(host.e, events.data(), sizeof events[0], capacity, &count, bytes,
                                   sizeof bytes, &used, &needed) == ENGINE_OK);
        for (size_t i = 0; i < count; i++) {
            const engine_event& event = events[i];
            if (event.request != id || event.kind == ENGINE_EVENT_PROGRESS) continue;
            REQUIRE(static_cast<size_t>(event.sequence) < sequences);
            Told& one = told[static_cast<size_t>(event.sequence)];
            one.text.append(bytes + event.text_offset, event.text_bytes);
            if (event.kind == ENGINE_EVENT_TOKEN) {
                one.tokens.push_back(event.token);
                one.sum += static_cast<double>(event.logprob);
                CHECK(event.score == 0);
            }
            if (event.kind != ENGINE_EVENT_FINISHED) continue;
            one.score = event.score;
            one.reason = event.finish_reason;
            one.generated = event.generated_tokens;
            one.last = event.last;
            if (event.last != 0) return told;
        }
        if (count == 0) host.step();
    }
    FAIL("the search does not come to an end");
    return told;
}

engine_request_params beams(const engine_part* part, int32_t width, int32_t samples) {
    engine_request_params params = request_params(part, 1);
    params.beam_width = width;
    params.samples = samples;
    params.max_tokens = 10;
    params.ignore_end = 1;
    return params;
}

}  // namespace

TEST_CASE("beam search: the defaults are off, and a width of 1 changes nothing") {
    engine_request_params params;
    REQUIRE(engine_request_params_init(&params, sizeof params) == ENGINE_OK);
    CHECK(params.beam_width == 1);
    CHECK(params.length_penalty == 1);
    Host host;
    const engine_part part = text_part("once upon a time");
    params = request_params(&part, 1);
    params.max_tokens = 12;
    const Story plain = host.answer(params);
    params.length_penalty = -2;  // has no meaning
    CHECK(host.answer(params).tokens == plain.tokens);
}

TEST_CASE("beam search: each field out of its range, or that has no meaning with beams, is named") {
    Host host;
    const engine_part part = text_part("once upon a time");
    engine_request id = 0;
    const auto refused = [&](const char* word, auto change) {
        engine_request_params params = beams(&part, 3, 2);
        change(params);
        Failure failure;
        INFO(word);
        CHECK(engine_submit(host.e, &params, &id, failure) == ENGINE_INVALID_ARGUMENT);
        CHECK_MESSAGE(failure.names(word), failure.message());
    };
    for (const int32_t width : {0, -1, 33, INT32_MIN, INT32_MAX})
        refused("beam_width", [&](engine_request_params& params) { params.beam_width = width; });
    refused("beam_width",
            [](engine_request_params& params) { params.beam_width = 5; });  // max_sequences is 4
    for (const float penalty : {-4.01f, 4.01f, HUGE_VALF, -HUGE_VALF, NAN}) {
        refused("length_penalty", [&](engine_request_params& params) { params.length_penalty = penalty; });
        refused("length_penalty", [&](engine_request_params& params) {
            params.length_penalty = penalty;
            params.beam_width = params.samples = 1;
        });
    }
    refused("temperature", [](engine_request_params& params) { params.temperature = 0.5f; });
    refused("top_k", [](engine_request_params& params) { params.top_k = 3; });
    refused("top_p", [](engine_request_params& params) { params.top_p = 0.5f; });
    refused("min_p", [](engine_request_params& params) { params.min_p = 0.5f; });
    refused("logprobs", [](engine_request_params& params) { params.logprobs = 1; });
    refused("samples", [](engine_request_params& params) { params.samples = 4; });
    CHECK(host.step().running == 0);  // nothing was taken in

    engine_params small = small_engine_params();
    small.kv_blocks = 15;
    Host cramped(small);
    engine_request_params params = beams(&part, 4, 2);
    params.max_tokens = 60;
    Failure failure;
    CHECK(engine_submit(cramped.e, &params, &id, failure) == ENGINE_POOL_TOO_SMALL);
    CHECK_MESSAGE(failure.names("beam_width is 4"), failure.message());
    params.max_tokens = -1;  // as many as fit
    const std::vector<Told> told = tell(cramped, cramped.submit(params), 2);
    CHECK(told[0].tokens.size() > 10);
}

TEST_CASE("beam search: the best are told in order, with their texts and scores, however small the polls") {
    Host host;
    const engine_part part = text_part("once upon a time there was");
    for (const size_t capacity : {1, 64})
        for (const float penalty : {0.0f, 1.0f, -1.0f}) {
            engine_request_params params = beams(&part, 4, 3);
            params.length_penalty = penalty;
            params.max_tokens = 90;  // more than the room for events
            const engine_request id = host.submit(params);
            const std::vector<Told> told = tell(host, id, 3, capacity);
            for (size_t i = 0; i < told.size(); i++) {
                CHECK(told[i].tokens.size() == 90);
                CHECK(told[i].generated == 90);
                CHECK(told[i].reason == ENGINE_FINISH_LENGTH);
                CHECK(told[i].last == (i == 2 ? 1 : 0));
                const double expected = told[i].sum / std::pow(90.0, static_cast<double>(penalty));
                CHECK(static_cast<double>(told[i].score) == doctest::Approx(expected).epsilon(1e-5));
                if (i > 0) CHECK(told[i].score <= told[i - 1].score);
                for (size_t j = 0; j < i; j++) CHECK(told[i].tokens != told[j].tokens);
            }
        }
}

TEST_CASE("beam search: ends by stop strings and stop tokens, whose text is not delivered") {
    Host host;
    const engine_part part = text_part("once upon a time there was");
    engine_request_params params = beams(&part, 4, 4);
    const std::vector<Told> plain = tell(host, host.submit(params), 4);
    const int32_t stop = plain[1].tokens[4];
    params.stop_tokens = &stop;
    params.length_penalty = -1;  // for short ones
    params.stop_token_count = 1;
    bool stopped = false;
    for (const Told& one : tell(host, host.submit(params), 4)) {
        const auto place = std::find(one.tokens.begin(), one.tokens.end(), stop);
        CHECK((place == one.tokens.end() || place + 1 == one.tokens.end()));
        CHECK(one.reason == (place == one.tokens.end() ? ENGINE_FINISH_LENGTH : ENGINE_FINISH_END));
        stopped |= place != one.tokens.end();
    }
    CHECK(stopped);

    params.stop_token_count = 0;
    engine_text strings[26] = {};
    const std::string letters = "abcdefghijklmnopqrstuvwxyz";
    for (size_t i = 0; i < letters.size(); i++) strings[i] = {letters.data() + i, 1};
    params.stop_strings = strings;
    params.stop_string_count = 26;
    params.max_tokens = 40;
    stopped = false;
    for (const Told& one : tell(host, host.submit(params), 4)) {
        CHECK(one.text.find_first_of(letters) == std::string::npos);
        stopped |= one.reason == ENGINE_FINISH_STOP_STRING;
    }
    CHECK(stopped);
}

TEST_CASE("beam search: before its end only the prompt is seen; after it, hypotheses are read and forked") {
    Host host;
    const engine_part part = text_part("once upon a time there was");
    const std::vector<int32_t> prompt = host.tokenize({part});
    engine_request_params params = beams(&part, 3, 2);
    params.keep = 1;
    const engine_request id = host.submit(params);
    for (int i = 0; i < 4; i++) host.step();
    engine_request_info info;
    REQUIRE(engine_request_info_init(&info, sizeof info) == ENGINE_OK);
    REQUIRE(engine_request_get_info(host.e, id, &info) == ENGINE_OK);
    CHECK(info.generated_tokens == 0);
    int32_t tokens[256];
    size_t count = 0;
    REQUIRE(engine_sequence_tokens(host.e, id, 1, tokens, 256, &count) == ENGINE_OK);
    CHECK(count == prompt.size());
    CHECK(engine_sequence_tokens(host.e, id, 2, tokens, 256, &count) == ENGINE_INVALID_ARGUMENT);

    const std::vector<Told> told = tell(host, id, 2);
    REQUIRE(engine_sequence_tokens(host.e, id, 1, tokens, 256, &count) == ENGINE_OK);
    std::vector<int32_t> whole = prompt;
    whole.insert(whole.end(), told[1].tokens.begin(), told[1].tokens.end());
    CHECK(std::vector<int32_t>(tokens, tokens + count) == whole);
    engine_request fork = 0;
    Failure failure;
    REQUIRE(engine_fork(host.e, id, 1, static_cast<int32_t>(prompt.size()) + 3, nullptr, &fork, failure) ==
            ENGINE_OK);
    const std::vector<Told> on = tell(host, fork, 1);
    CHECK(on[0].score == 0);  // a plain request
    CHECK_FALSE(on[0].tokens.empty());
    CHECK(engine_release(host.e, id) == ENGINE_OK);
}

TEST_CASE("beam search: cancelled, it tells one end for each sequence and no token") {
    Host host;
    const engine_part part = text_part("once upon a time there was");
    const engine_request_params params = beams(&part, 4, 2);
    for (int steps = 0; steps < 5; steps++) {
        const engine_request id = host.submit(params);
        for (int i = 0; i < steps; i++) host.step();
        CHECK(engine_cancel(host.e, id) == ENGINE_OK);
        for (const Told& one : tell(host, id, 2)) {
            CHECK(one.tokens.empty());
            CHECK(one.generated == 0);
            CHECK(one.reason == ENGINE_FINISH_CANCELLED);
            CHECK(std::isinf(one.score));
        }
    }
}

TEST_CASE("a search is saved as sessions when it is over, one of each told hypothesis") {
    Host host;
    const engine_part part = text_part("save the best");
    engine_request_params params = beams(&part, 4, 2);
    params.keep = 1;
    const engine_request id = host.submit(params);
    for (int i = 0; i < 4; i++) host.step();
    size_t size = 0;
    Failure failure;
    CHECK(engine_session_save(host.e, id, 0, -1, nullptr, 0, &size, failure) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("beam search"));
    CHECK(size == 0);

    const std::vector<Told> told = tell(host, id, 2);
    for (int32_t sequence = 0; sequence < 2; sequence++) {
        const Told& best = told[static_cast<size_t>(sequence)];
        const SessionBytes whole = save(host.e, id, sequence);
        engine_session_params kept = session_params();
        kept.keep = 1;
        Host other;
        const engine_request restored = restore(other.e, whole, &kept);
        other.run();
        CHECK(other.stories[restored].finish_reason == best.reason);
        CHECK(other.stories[restored].text.empty());  // all of it was delivered before
        std::vector<int32_t> tokens(256);
        size_t count = 0;
        REQUIRE(engine_sequence_tokens(other.e, restored, 0, tokens.data(), tokens.size(), &count) ==
                ENGINE_OK);
        CHECK(count > best.tokens.size());
        tokens.resize(count);
        CHECK(std::equal(best.tokens.rbegin(), best.tokens.rend(), tokens.rbegin()));
    }
    CHECK(engine_session_save(host.e, id, 2, -1, nullptr, 0, &size, failure) == ENGINE_INVALID_ARGUMENT);
}
