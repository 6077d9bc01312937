// Orders that arrive in the middle of a step, and what events carry and leave out.
#include <algorithm>
#include <functional>

#include "api_fixture.h"

using namespace treadle::test;

namespace {

// A clock that calls back into the engine at the nth time it is read: a host whose other threads are quick.
struct Interruption {
    int64_t now_us = 0;
    int left = -1;  // reads until it happens
    std::function<void()> act;

    static int64_t read(void* user) {
        auto* self = static_cast<Interruption*>(user);
        if (self->left >= 0 && self->left-- == 0) self->act();
        return ++self->now_us * 1000;
    }
    engine_params params() {
        engine_params small = small_engine_params();
        small.clock = read;
        small.clock_user = this;
        return small;
    }
};

// The text that whole characters and U+FFFD for ill-formed pieces give, of what ends after `from`. As the Unicode standard
// says it (table 3-7, maximal subparts); a piece cut off at the end counts as ill-formed.
std::string decoded(const std::string& bytes, size_t from) {
    std::string text;
    for (size_t i = 0; i < bytes.size();) {
        const auto at = [&](size_t k) {
            return k < bytes.size() ? static_cast<unsigned char>(bytes[k]) : 0u;
        };
        const unsigned lead = at(i);
        size_t length = 1;
        size_t wanted = lead < 0x80                  ? 1
                        : lead < 0xc2 || lead > 0xf4 ? 0
                        : lead < 0xe0                ? 2
                        : lead < 0xf0                ? 3
                                                     : 4;
        for (; length < wanted; length++) {
            unsigned low = 0x80, high = 0xbf;
            if (length == 1 && lead == 0xe0) low = 0xa0;
            if (length == 1 && lead == 0xf0) low = 0x90;
            if (length == 1 && lead == 0xed) high = 0x9f;
            if (length == 1 && lead == 0xf4) high = 0x8f;
            if (at(i + length) < low || at(i + length) > high) break;
        }
        if (i + length > from) text += length == wanted ? bytes.substr(i, length) : "\xef\xbf\xbd";
        i += length;
    }
    return text;
}

}  // namespace

TEST_CASE("a cancel or release that meets the last pass of its request reaches nobody else") {
    for (const bool release : {false, true}) {
        for (int read = 0; read < 12; read++) {
            CAPTURE(release);
            CAPTURE(read);
            Interruption interruption;
            Host host(interruption.params(), params_with_malloc());
            const engine_request victim = host.submit_text("victim", 1);
            interruption.act = [&] {
                CHECK((release ? engine_release : engine_cancel)(host.e, victim) == ENGINE_OK);
            };
            interruption.left = read;
            host.step();
            interruption.left = -1;
            host.poll();
            CHECK(host.stories.count(victim) == (release ? 0 : 1));
            std::vector<engine_request> others;
            for (int i = 0; i < 8; i++) others.push_back(host.submit_text("victim", 1));
            host.run();
            for (const engine_request other : others)
                CHECK(host.stories[other].finish_reason == ENGINE_FINISH_LENGTH);
            CHECK(host.step().free_blocks == 64);
        }
    }
}

TEST_CASE("log-probabilities are left out unless asked for") {
    Host host;
    const engine_part part = text_part("none");
    engine_request_params params = request_params(&part, 1);
    params.max_tokens = 5;
    params.ignore_end = 1;
    for (const float logprob : host.answer(params).logprobs) CHECK(logprob == 0.0f);
    params.logprobs = 1;
    bool any = false;
    for (const float logprob : host.answer(params).logprobs) any |= logprob != 0.0f;
    CHECK(any);
}

TEST_CASE(
    "a character that the prompt begins is completed by the answer, and what the prompt breaks is not "
    "repeated") {
    Host host;
    int completed = 0;
    for (uint64_t seed = 0; seed < 12; seed++) {
        const engine_part part = text_part("bytes");
        engine_request_params params = request_params(&part, 1);
        params.max_tokens = 200;
        params.ignore_end = 1;
        params.temperature = 2;
        params.seed = seed;
        const Story whole = host.answer(params);
        const std::vector<int32_t> prompt = host.tokenize({part});
        std::vector<std::string> texts;
        for (const int32_t token : whole.tokens) {
            char bytes[64];
            size_t count = 0;
            REQUIRE(engine_detokenize(host.model, &token, 1, 0, bytes, sizeof bytes, &count, nullptr) ==
                    ENGINE_OK);
            texts.emplace_back(bytes, count);
        }
        std::string bytes;
        for (const std::string& text : texts) bytes += text;
        CHECK(whole.text == decoded(bytes, 0));
        size_t from = 0;
        for (size_t i = 0; i < whole.tokens.size(); i++) {
            const bool inside = from > 0 && static_cast<unsigned char>(bytes[from - 1]) >= 0xc2;
            if (inside || i % 37 == 0) {
                std::vector<int32_t> tokens = prompt;
                tokens.insert(tokens.end(), whole.tokens.begin(),
                              whole.tokens.begin() + static_cast<std::ptrdiff_t>(i));
                const engine_part begun = tokens_part(tokens);
                params.parts = &begun;
                params.max_tokens = std::min(12, static_cast<int32_t>(whole.tokens.size() - i));
                const Story rest = host.answer(params);
                REQUIRE(std::equal(rest.tokens.begin(), rest.tokens.end(),
                                   whole.tokens.begin() + static_cast<std::ptrdiff_t>(i)));
                std::string seen = bytes.substr(0, from);
                for (size_t k = i; k < i + rest.tokens.size(); k++) seen += texts[k];
                CHECK(rest.text == decoded(seen, from));
                completed += rest.text.substr(0, 3) != "\xef\xbf\xbd" && !rest.text.empty() &&
                             static_cast<unsigned char>(rest.text[0]) >= 0x80;
                params.parts = &part;
            }
            from += texts[i].size();
        }
    }
    CHECK(completed > 0);
}

TEST_CASE("a prompt that breaks off in a character says nothing by itself") {
    Host host;
    const std::vector<int32_t> begun = [&] {
        std::vector<int32_t> tokens = host.tokenize({text_part("a\xc3\xa9")});
        tokens.pop_back();  // the second byte of the last character
        return tokens;
    }();
    const engine_part part = tokens_part(begun);
    engine_request_params params = request_params(&part, 1);
    const engine_request id = host.submit(params);
    CHECK(engine_cancel(host.e, id) == ENGINE_OK);
    host.run();
    CHECK(host.stories[id].finish_reason == ENGINE_FINISH_CANCELLED);
    CHECK(host.stories[id].text.empty());
}

TEST_CASE("a second thread's report is left alone") {
    Interruption interruption;
    Host host(interruption.params());
    host.submit_text("busy", 1);
    engine_step_report inner;
    REQUIRE(engine_step_report_init(&inner, sizeof inner) == ENGINE_OK);
    inner.next_step_us = inner.tokens_produced = 77;
    engine_status nested = ENGINE_OK;
    interruption.act = [&] { nested = engine_step(host.e, nullptr, &inner); };
    interruption.left = 2;
    host.step();
    CHECK(nested == ENGINE_BUSY);
    CHECK(inner.next_step_us == 77);
    CHECK(inner.tokens_produced == 77);
}

TEST_CASE("a budget holds wherever the clock stands") {
    for (const int64_t start_us : {int64_t{0}, INT64_MAX / 1000 - 100000, -INT64_MAX / 1001}) {
        CAPTURE(start_us);
        Interruption clock;
        Host host(clock.params());
        clock.now_us = start_us;
        const engine_request id = host.submit_text("some prompt that takes more than one tile", 30);
        const engine_step_report report = host.step(1);
        CHECK(report.tokens_produced == 0);
        CHECK(report.next_step_us == 0);
        CHECK(report.time_us < 50);
        host.run();
        CHECK(host.stories[id].generated_tokens == 30);
    }
}
