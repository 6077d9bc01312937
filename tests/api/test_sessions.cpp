// A session goes on as if nothing had happened: saved at every moment and every position, restored in another engine, what was
// polled before and what is polled after are together what an undisturbed request delivers, by bytes.
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>

#include "session_fixture.h"

using namespace treadle::test;

namespace {

struct Case {
    const char* name;
    uint64_t seed;
    float temperature;
    int32_t samples;
    int32_t max_tokens;
    bool stops;     // strings that the answer meets in its middle, and others that it nearly does
    bool ends;      // the model's end tokens end it
    int32_t polls;  // events polled after each step; 0: none at all
};

constexpr Case cases[] = {
    {"greedy, polled", 1, 0, 1, 40, false, false, 8},
    {"bytes of characters, polled late", 2, 3, 3, 60, false, false, 2},
    {"never polled", 3, 2, 2, 50, false, false, 0},
    {"stop strings, polled", 4, 2, 2, 60, true, false, 8},
    {"stop strings, polled late", 5, 3, 2, 60, true, false, 1},
    {"an end token, never polled", 6, 2, 3, 60, false, true, 0},
};

// The parts of a request's parameters that must stay alive.
struct Asked {
    explicit Asked(const Case& of) {
        static const engine_part part = text_part("a session: na\xc3\xafve \xe2\x82\xac");
        params = request_params(&part, 1);
        params.seed = of.seed;
        params.temperature = of.temperature;
        params.samples = of.samples;
        params.first_sample = 5;
        params.max_tokens = of.max_tokens;
        params.logprobs = 3;
        params.ignore_end = of.ends ? 0 : 1;
        params.keep = 1;
        if (of.ends)
            for (int32_t token = 40; token < 44; token++) stop_tokens.push_back(token);
        params.stop_tokens = stop_tokens.data();
        params.stop_token_count = stop_tokens.size();
    }
    void stop_at(const std::vector<std::string>& wanted) {
        strings = wanted;
        for (const std::string& text : strings) texts.push_back({text.data(), text.size()});
        params.stop_strings = texts.data();
        params.stop_string_count = texts.size();
    }
    std::vector<int32_t> stop_tokens;
    std::vector<std::string> strings;
    std::vector<engine_text> texts;
    engine_request_params params;
};

size_t next_character(const std::string& text, size_t at) {
    do at++;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
    return at;
}

// Two characters from the middle of each answer, and strings that begin as many pieces of it do.
std::vector<std::string> stops_in(const std::vector<std::string>& answers) {
    std::vector<std::string> stops;
    for (const std::string& text : answers) {
        size_t middle = text.size() / 2;
        while (middle < text.size() && (static_cast<unsigned char>(text[middle]) & 0xc0) == 0x80) middle++;
        stops.push_back(text.substr(middle, next_character(text, next_character(text, middle)) - middle));
        for (size_t at = 0; at < text.size() && stops.size() < 30; at = next_character(text, at))
            stops.push_back(text.substr(at, next_character(text, at) - at) + "\xe2\x98\x83 never");
    }
    return stops;
}

Asked asked_of(const Case& of) {
    Asked asked(of);
    if (!of.stops) return asked;
    Host host;
    Teller teller;
    const engine_request id = host.submit(asked.params);
    teller.run(host.e);
    std::vector<std::string> answers;
    for (int32_t i = 0; i < of.samples; i++) answers.push_back(teller.of(id, i).text);
    asked.stop_at(stops_in(answers));
    return asked;
}

engine_params many_requests() {
    engine_params params = small_engine_params();
    params.max_requests = 4096;
    params.max_sequences = 16;
    params.kv_blocks = 256;
    return params;
}

// What was known when a session was saved.
struct Saved {
    int32_t sequence;
    std::string polled;  // text
    size_t tokens;       // generated, as the session has them
    engine_request restored;
};

// The undisturbed answers, and what a session of this request must give.
struct Expected {
    std::vector<Tale> tales;  // per sequence

    void check(const Saved& saved, const Tale& tale) const {
        const Tale& whole = tales[static_cast<size_t>(saved.sequence)];
        CHECK(saved.polled + tale.text == whole.text);
        CHECK(tale.finish_reason == whole.finish_reason);
        CHECK(tale.prompt_tokens == whole.prompt_tokens);
        CHECK(tale.generated_tokens == whole.generated_tokens);
        REQUIRE(saved.tokens <= whole.tokens.size());
        CHECK(tale.tokens ==
              std::vector<int32_t>(whole.tokens.begin() + static_cast<std::ptrdiff_t>(saved.tokens),
                                   whole.tokens.end()));
        REQUIRE(tale.logprobs.size() <= whole.logprobs.size());
        CHECK(tale.logprobs == whole.logprobs.substr(whole.logprobs.size() - tale.logprobs.size()));
        CHECK((tale.logprobs.empty() == tale.tokens.empty()));
    }
};

Expected undisturbed(const Asked& asked) {
    Host host;
    Teller teller;
    const engine_request id = host.submit(asked.params);
    teller.run(host.e);
    Expected expected;
    for (int32_t i = 0; i < asked.params.samples; i++) expected.tales.push_back(teller.of(id, i));
    return expected;
}

}  // namespace

TEST_CASE("a session saved at any moment goes on in another engine as if nothing had happened") {
    size_t in_characters = 0, held_back = 0, told_again = 0, over = 0;
    for (const Case& one : cases) {
        CAPTURE(std::string(one.name));
        Asked asked = asked_of(one);
        const Expected expected = undisturbed(asked);
        std::set<int32_t> reasons;
        for (const Tale& tale : expected.tales) reasons.insert(tale.finish_reason);
        CHECK(reasons.count(one.stops  ? ENGINE_FINISH_STOP_STRING
                            : one.ends ? ENGINE_FINISH_END
                                       : ENGINE_FINISH_LENGTH) == 1);

        engine_model_params two_threads = model_params();
        two_threads.threads = 2;
        Host from, into(many_requests(), two_threads);
        Teller polled, after;
        const engine_request id = from.submit(asked.params);
        std::vector<Saved> all;
        const auto save_all = [&] {
            for (int32_t i = 0; i < one.samples; i++) {
                const size_t tokens = tokens_of(from.e, id, i).size();
                const size_t prompt = static_cast<size_t>(expected.tales[0].prompt_tokens);
                all.push_back(
                    {i, polled.of(id, i).text, tokens - prompt, restore(into.e, save(from.e, id, i))});
            }
        };
        save_all();
        for (int step = 0; step < 200; step++) {
            engine_step_report report = from.step(step % 3 == 0 ? 0 : 20);
            if (one.polls > 0) polled.poll(from.e, static_cast<size_t>(one.polls));
            save_all();
            if (report.next_step_us != 0) break;
        }
        while (one.polls > 0 && polled.poll(from.e, 1)) save_all();

        after.run(into.e);
        for (const Saved& saved : all) {
            CAPTURE(saved.tokens);
            CAPTURE(saved.sequence);
            const Tale& tale = after.of(saved.restored);
            expected.check(saved, tale);
            over += tale.tokens.empty() ? 1 : 0;
            told_again += tale.told_again.empty() ? 0 : 1;
            if (tale.tokens.empty()) continue;
            // The first token's text has more in it than the token when something was held back.
            const Tale& whole = expected.tales[static_cast<size_t>(saved.sequence)];
            const std::string& before = saved.tokens > 0 ? whole.texts[saved.tokens - 1] : whole.texts[0];
            if (before.empty()) (one.stops ? held_back : in_characters)++;
        }
        // The saved one did not notice.
        while (polled.poll(from.e, 16)) {
        }
        for (int32_t i = 0; i < one.samples; i++) {
            CHECK(polled.of(id, i).text == expected.tales[static_cast<size_t>(i)].text);
            CHECK(polled.of(id, i).tokens == expected.tales[static_cast<size_t>(i)].tokens);
            CHECK(polled.of(id, i).logprobs == expected.tales[static_cast<size_t>(i)].logprobs);
        }
    }
    CHECK(in_characters > 20);
    CHECK(held_back > 20);
    CHECK(told_again > 100);
    CHECK(over > 20);
}

TEST_CASE("the first tokens of a sequence go on from any position, into the prompt too") {
    for (const bool polled : {false, true}) {
        const Case one = {"", 8, 3, 1, 50, false, false, 0};
        Asked asked(one);
        const Expected expected = undisturbed(asked);
        const Tale& whole = expected.tales[0];
        const auto prompt = static_cast<size_t>(whole.prompt_tokens);
        Host from, into(many_requests());
        Teller before, after;
        const engine_request id = from.submit(asked.params);
        if (polled) before.run(from.e);
        while (!polled && from.step().next_step_us == 0) {
        }
        const std::vector<int32_t> tokens = tokens_of(from.e, id);
        std::vector<engine_request> restored;
        for (size_t position = prompt; position <= tokens.size(); position++)
            restored.push_back(restore(into.e, save(from.e, id, 0, static_cast<int32_t>(position))));
        after.run(into.e);
        std::string told;  // by the tokens before the position
        for (size_t i = 0; i < restored.size(); i++) {
            CAPTURE(i);
            if (i > 0) told += whole.texts[i - 1];
            expected.check({0, polled ? told : "", i, restored[i]}, after.of(restored[i]));
        }
        // Into the prompt: the limit stays where it was, as with a fork.
        for (int32_t position = 1; position < whole.prompt_tokens; position++) {
            const engine_request cut = restore(into.e, save(from.e, id, 0, position));
            after.run(into.e);
            CHECK(after.of(cut).prompt_tokens == position);
            CHECK(after.of(cut).generated_tokens == static_cast<int32_t>(tokens.size()) - position);
        }
    }
}

TEST_CASE("a session of a session goes on too, and so does one of a fork") {
    const Case one = {"", 9, 3, 1, 60, false, false, 0};
    Asked asked(one);
    const Expected expected = undisturbed(asked);
    Random random(4);
    for (int round = 0; round < 20; round++) {
        std::vector<std::string> told;
        std::string text;
        auto host = std::make_unique<Host>();
        engine_request id = host->submit(asked.params);
        Tale last;
        for (int hop = 0; hop < 4; hop++) {
            Teller teller;
            for (auto steps = random.below(14); steps > 0; steps--) {
                host->step();
                if (random.below(2) == 0) teller.poll(host->e, random.below(5));
            }
            text += teller.of(id).text;
            const SessionBytes bytes = save(host->e, id);
            host = std::make_unique<Host>();
            id = restore(host->e, bytes);
        }
        Teller teller;
        teller.run(host->e);
        CHECK(text + teller.of(id).text == expected.tales[0].text);
        CHECK(teller.of(id).generated_tokens == expected.tales[0].generated_tokens);
    }

    Host from, into;
    Teller told, after;
    const engine_request parent = from.submit(asked.params);
    told.run(from.e);
    engine_request fork = 0;
    REQUIRE(engine_fork(from.e, parent, 0, expected.tales[0].prompt_tokens + 20, nullptr, &fork, nullptr) ==
            ENGINE_OK);
    for (int i = 0; i < 5; i++) from.step();
    told.poll(from.e, 3);
    const std::string polled = told.of(fork).text;
    const engine_request restored = restore(into.e, save(from.e, fork));
    told.run(from.e);
    after.run(into.e);
    CHECK(polled + after.of(restored).text == told.of(fork).text);
    CHECK(after.of(restored).generated_tokens == told.of(fork).generated_tokens);
}

TEST_CASE("a fork of a restored session draws as the saved one's next fork would have") {
    const Case one = {"", 13, 3, 2, 40, false, false, 0};
    Asked asked(one);
    Host from, into;
    Teller told, after;
    const engine_request id = from.submit(asked.params);
    told.run(from.e);
    const auto position = static_cast<int32_t>(tokens_of(from.e, id, 1).size()) - 30;
    const auto forked = [&](Host& host, engine_request parent, int32_t sequence, Teller& teller) {
        engine_request fork = 0;
        REQUIRE(engine_fork(host.e, parent, sequence, position, nullptr, &fork, nullptr) == ENGINE_OK);
        teller.run(host.e);
        return tokens_of(host.e, fork);
    };
    const std::vector<int32_t> earlier = forked(from, id, 1, told);
    engine_session_params kept = session_params();
    kept.keep = 1;
    const engine_request restored = restore(into.e, save(from.e, id, 1), &kept);
    after.run(into.e);
    std::set<std::vector<int32_t>> all = {earlier};
    for (int i = 0; i < 2; i++) {
        const std::vector<int32_t> next = forked(from, id, 1, told);
        CHECK(forked(into, restored, 0, after) == next);
        all.insert(next);
    }
    CHECK(all.size() == 3);
}

TEST_CASE("a session of a sequence that had ended is over at once, and can be gone on from") {
    struct Way {
        const char* stop;
        bool cancelled;
        int32_t reason;
    };
    for (const Way way :
         {Way{nullptr, false, ENGINE_FINISH_LENGTH}, Way{"", false, ENGINE_FINISH_STOP_STRING},
          Way{nullptr, true, ENGINE_FINISH_CANCELLED}}) {
        Asked asked({"", 10, 2, 1, 30, false, false, 0});
        if (way.stop != nullptr) {
            const std::string text = undisturbed(asked).tales[0].text;
            asked.stop_at({stops_in({text})[0]});
        }
        Host from, into;
        Teller told, after;
        const engine_request id = from.submit(asked.params);
        for (int i = 0; i < 10; i++) from.step();
        told.poll(from.e, 4);
        if (way.cancelled) REQUIRE(engine_cancel(from.e, id) == ENGINE_OK);
        while (from.step().next_step_us == 0) {
        }
        engine_session_params params = session_params();
        params.keep = 1;
        params.user_data = 99;
        const engine_request restored = restore(into.e, save(from.e, id), &params);
        engine_request_info info;
        REQUIRE(engine_request_info_init(&info, sizeof info) == ENGINE_OK);
        REQUIRE(engine_request_get_info(into.e, restored, &info) == ENGINE_OK);
        CHECK(info.state == ENGINE_REQUEST_FINISHED);
        CHECK(info.finish_reason == way.reason);
        CHECK(info.prompt_tokens_done == info.prompt_tokens);
        while (after.poll(into.e, 3)) {
        }  // no step was needed
        const std::string polled = told.of(id).text;
        while (told.poll(from.e, 16)) {
        }
        CHECK(polled + after.of(restored).text == told.of(id).text);
        CHECK(after.of(restored).finish_reason == way.reason);
        CHECK(after.of(restored).user_data == 99);
        CHECK(after.of(restored).tokens.empty());
        CHECK(tokens_of(into.e, restored) == tokens_of(from.e, id));

        // What was fully polled says nothing again.
        const engine_request again = restore(into.e, save(from.e, id), &params);
        while (after.poll(into.e, 3)) {
        }
        CHECK(after.of(again).text.empty());
        CHECK(after.of(again).finish_reason == way.reason);

        // A next turn: both go on alike.
        engine_request_params next = asked.params;
        next.part_count = 0;
        next.parts = nullptr;
        engine_request forks[2] = {};
        const auto length = static_cast<int32_t>(tokens_of(from.e, id).size());
        REQUIRE(engine_fork(from.e, id, 0, length, &next, &forks[0], nullptr) == ENGINE_OK);
        REQUIRE(engine_fork(into.e, restored, 0, length, &next, &forks[1], nullptr) == ENGINE_OK);
        told.run(from.e);
        after.run(into.e);
        CHECK(told.of(forks[0]).text == after.of(forks[1]).text);
        CHECK(told.of(forks[0]).tokens == after.of(forks[1]).tokens);
        CHECK(engine_release(into.e, restored) == ENGINE_OK);
        CHECK(engine_release(into.e, again) == ENGINE_OK);
        CHECK(engine_release(into.e, forks[1]) == ENGINE_OK);
        CHECK(into.step().free_blocks == 64);
    }
}

TEST_CASE("a restored session may wait, be hurried, be cancelled, and has the host's own settings") {
    Asked asked({"", 11, 2, 1, 30, false, false, 0});
    const Expected expected = undisturbed(asked);
    Host from, into;
    Teller told, after;
    const engine_request id = from.submit(asked.params);
    for (int i = 0; i < 10; i++) from.step();
    while (told.poll(from.e, 16)) {
    }
    const Saved saved = {0, told.of(id).text, told.of(id).tokens.size(), 0};
    const SessionBytes bytes = save(from.e, id);
    engine_session_params params = session_params();
    params.priority = ENGINE_PRIORITY_PAUSED;
    params.user_data = 7;
    params.prefix_cache = 0;
    const engine_request paused = restore(into.e, bytes, &params);
    after.run(into.e);
    CHECK(after.of(paused).text.empty());
    REQUIRE(engine_set_priority(into.e, paused, ENGINE_PRIORITY_BULK) == ENGINE_OK);
    after.run(into.e);
    expected.check(saved, after.of(paused));
    CHECK(after.of(paused).user_data == 7);

    params = session_params();
    params.logprobs = 0;
    const engine_request quiet = restore(into.e, bytes, &params);
    after.run(into.e);
    CHECK(saved.polled + after.of(quiet).text == expected.tales[0].text);
    CHECK(after.of(quiet).logprobs == std::string(after.of(quiet).tokens.size() * sizeof(float), '\0'));

    params.deadline_us = 1;
    const engine_request late = restore(into.e, bytes, &params);
    after.run(into.e);
    CHECK(after.of(late).finish_reason == ENGINE_FINISH_DEADLINE);
    const engine_request cancelled = restore(into.e, bytes);
    REQUIRE(engine_cancel(into.e, cancelled) == ENGINE_OK);
    after.run(into.e);
    CHECK(after.of(cancelled).finish_reason == ENGINE_FINISH_CANCELLED);
    CHECK(into.step().free_blocks == 64);
}

TEST_CASE("sequences are saved and restored while another thread steps") {
    Asked asked({"", 12, 2, 2, 60, false, false, 0});
    const Expected expected = undisturbed(asked);
    Host host;
    Host into(many_requests());
    const engine_request id = host.submit(asked.params);
    std::atomic<bool> saving{true};
    std::atomic<int> failures{0};
    std::vector<std::vector<engine_request>> restored(2);
    std::vector<std::thread> threads;
    for (int32_t i = 0; i < 2; i++)
        threads.emplace_back([&, i] {
            SessionBytes bytes(1 << 16);
            for (int round = 0; round < 60; round++) {
                size_t size = 0;
                engine_request copy = 0;
                const int32_t position = round % 3 == 0 ? 10 : -1;
                if (engine_session_save(host.e, id, i, position, bytes.data(), bytes.size(), &size,
                                        nullptr) != ENGINE_OK ||
                    engine_session_restore(into.e, bytes.data(), size, nullptr, &copy, nullptr) != ENGINE_OK)
                    failures++;
                if (position < 0) restored[static_cast<size_t>(i)].push_back(copy);
                std::this_thread::yield();
            }
        });
    std::thread stepper([&] {
        while (saving)
            if (engine_step(host.e, nullptr, nullptr) != ENGINE_OK ||
                engine_step(into.e, nullptr, nullptr) != ENGINE_OK)
                failures++;
    });
    for (std::thread& thread : threads) thread.join();
    saving = false;
    stepper.join();
    CHECK(failures == 0);
    Teller after;
    after.run(into.e);
    for (size_t i = 0; i < 2; i++)
        for (const engine_request copy : restored[i]) {
            CHECK(after.of(copy).text == expected.tales[i].text);  // nothing had been polled
            CHECK(after.of(copy).generated_tokens == expected.tales[i].generated_tokens);
        }
}
