// Beam search through the whole engine, over the fake model: a search written from scratch over its logits says what must come
// out, alone, in company, preempted again and again, found in the cache, cut anywhere.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "support/fake_beam_search.h"
#include "support/fake_model.h"
#include "test_memory.h"

using namespace treadle;
using namespace treadle::test;

namespace {

struct Search {
    std::vector<int32_t> prompt;
    int32_t max_tokens = 12;
    int32_t width = 4;
    int32_t samples = 4;
    float penalty = 1;
    std::vector<int32_t> stop_tokens;
    std::vector<std::string> stop_strings;
    int32_t generated_tail = 0;
    bool is_private = false;
};

struct Answer {
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
    float score = -std::numeric_limits<float>::infinity();
    FinishReason reason = FinishReason::length;
    std::string text;
    bool operator==(const Answer&) const = default;
};

// ---- The reference

class Reference {
public:
    Reference(const FakeModel& model, const Search& search) : model_(model), search_(search) {}

    std::vector<Answer> run() const {
        const BeamOutcome outcome =
            search_beams(model_, {search_.prompt, search_.max_tokens, search_.width, search_.penalty},
                         [this](const BeamHypothesis& one) { return end_of(one); });
        std::vector<Answer> answers;
        for (const BeamHypothesis& one : outcome.best)
            answers.push_back({one.tokens, one.logprobs, one.score, one.reason, text_of(one)});
        answers.resize(static_cast<size_t>(search_.samples));
        return answers;
    }

private:
    std::string bytes_of(const std::vector<int32_t>& tokens) const {
        std::string bytes;
        for (const int32_t token : tokens)
            if (!model_.vocabulary().is_control(token)) bytes += model_.vocabulary().token_bytes(token);
        return bytes;
    }

    FinishReason end_of(const BeamHypothesis& one) const {
        const int32_t token = one.tokens.back();
        const auto& stops = search_.stop_tokens;
        if (token == FakeModel::end_token || std::find(stops.begin(), stops.end(), token) != stops.end())
            return FinishReason::end;
        const std::string bytes = bytes_of(one.tokens);
        for (const std::string& stop : search_.stop_strings)
            if (bytes.find(stop) != std::string::npos) return FinishReason::stop_string;
        return FinishReason::none;
    }

    std::string text_of(BeamHypothesis one) const {
        if (one.reason == FinishReason::end) one.tokens.pop_back();
        std::string bytes = bytes_of(one.tokens);
        for (const std::string& stop : search_.stop_strings) bytes = bytes.substr(0, bytes.find(stop));
        return bytes;
    }

    const FakeModel& model_;
    Search search_;
};

// ---- The engine

struct Rig {
    explicit Rig(EngineParams asked = roomy(), const FakeModelOptions& options = models()) {
        model.emplace(memory, options);
        control.clock = &clock;
        params = asked;
        params.clock = clock.hook();
        Error error;
        Owned<Backend> backend = make_owned<FakeBackend>(&memory.other, *model, control);
        REQUIRE_MESSAGE(
            make_engine(memory, {&model->program(), &model->rope(), &model->vocabulary()}, model->context(),
                        params, std::move(backend), &engine, &error) == Status::OK,
            error.message);
    }
    static EngineParams roomy() {
        EngineParams params;
        params.max_sequences = 40;
        params.max_batch_tokens = 256;
        params.kv_blocks = 512;
        return params;
    }
    static FakeModelOptions models() {
        FakeModelOptions options;
        options.end_period = 9;
        return options;
    }

    RequestParams params_of(const Search& search) {
        RequestParams asked(&memory.other);
        asked.sampling.temperature = 0;
        asked.beam_width = search.width;
        asked.samples = search.samples;
        asked.length_penalty = search.penalty;
        asked.generated_tail = search.generated_tail;
        asked.stop_tokens.assign(search.stop_tokens.begin(), search.stop_tokens.end());
        const std::vector<std::string_view> stops(search.stop_strings.begin(), search.stop_strings.end());
        REQUIRE(asked.stops.build(stops, nullptr) == Status::OK);
        asked.scope.is_private = search.is_private;
        asked.keep = true;
        return asked;
    }
    Status try_submit(RequestParams&& asked, const std::vector<int32_t>& prompt, int32_t max_tokens,
                      uint64_t* id, Error* error = nullptr) {
        std::pmr::vector<int32_t> tokens(prompt.begin(), prompt.end(), &memory.other);
        return engine->submit(std::move(asked), std::move(tokens), max_tokens, id, error);
    }
    uint64_t submit(const Search& search) {
        uint64_t id = 0;
        REQUIRE(try_submit(params_of(search), search.prompt, search.max_tokens, &id) == Status::OK);
        return id;
    }
    uint64_t submit_plain(const std::vector<int32_t>& prompt, int32_t max_tokens, Priority priority) {
        RequestParams asked(&memory.other);
        asked.sampling.temperature = 0;
        asked.ignore_end = true;
        asked.priority = priority;
        uint64_t id = 0;
        REQUIRE(try_submit(std::move(asked), prompt, max_tokens, &id) == Status::OK);
        return id;
    }

    StepReport step(int64_t budget_us = 0) {
        StepReport report;
        REQUIRE(engine->step({budget_us, 0}, &report) == Status::OK);
        REQUIRE(engine->consistent());
        return report;
    }
    void poll(size_t capacity = SIZE_MAX) {
        struct Sink final : EventSink {
            explicit Sink(Rig* owner) : rig(owner) {}
            bool take(const EventNode& event, std::span<const TokenLogprob>) override {
                const Sequence& sequence = *event.sequence;
                if (sequence.request->params.beam_width == 1) return true;
                std::vector<Answer>& answers = rig->told[sequence.request->id];
                answers.resize(static_cast<size_t>(sequence.request->params.samples));
                REQUIRE(sequence.index < sequence.request->params.samples);
                Answer& answer = answers[static_cast<size_t>(sequence.index)];
                std::string text(event.text_bytes, '\0');
                sequence.room.copy_oldest_text(text.data());
                answer.text += text;
                if (event.kind == EventKind::token) {
                    CHECK(event.position ==
                          sequence.given_tokens + static_cast<int32_t>(answer.tokens.size()));
                    answer.tokens.push_back(event.token);
                    answer.logprobs.push_back(event.logprob);
                }
                if (event.kind == EventKind::finished) {
                    answer.score = event.logprob;
                    answer.reason = sequence.finish_reason;
                    rig->finals++;
                    CHECK(event.last == (sequence.index + 1 == sequence.request->params.samples));
                }
                return true;
            }
            Rig* rig;
        } sink(this);
        engine->poll(sink, capacity);
    }
    void run(int64_t budget_us = 0) {
        for (int32_t i = 0; i < 200000; i++) {
            const StepReport report = step(budget_us);
            peak_blocks = std::max(peak_blocks, engine->stats().figures.gauges.blocks_held);
            poll();
            if (report.next_step_us != 0 && report.waiting_poll == 0) return;
        }
        FAIL("the engine does not come to an end");
    }
    uint64_t preemptions() { return engine->stats().figures.counters.preemptions; }
    void check_clean() {
        CHECK(control.violations == 0);
        CHECK(control.first_violation == "");
        CHECK(engine->stats().figures.gauges.blocks_held == 0);
    }

    TestAllocator allocator;
    MemorySet memory{allocator.hooks()};
    std::optional<FakeModel> model;
    FakeControl control;
    VirtualClock clock;
    EngineParams params;
    Owned<Engine> engine;
    std::map<uint64_t, std::vector<Answer>> told;
    int32_t finals = 0;
    int32_t peak_blocks = 0;
};

std::vector<int32_t> some_prompt(uint64_t seed, size_t count) {
    Random random(seed);
    std::vector<int32_t> prompt(count);
    for (int32_t& token : prompt) token = 4 + static_cast<int32_t>(random.below(90));
    return prompt;
}

// Searches of all kinds; some prompts begin alike, some end in the middle of a block, some at its end.
std::vector<Search> some_searches() {
    std::vector<Search> searches;
    const float penalties[] = {1, 0, 0.6f, -1, 2};
    for (int32_t i = 0; i < 20; i++) {
        Search search;
        search.prompt = some_prompt(static_cast<uint64_t>(i / 4), static_cast<size_t>(13 + 3 * i));
        search.width = i % 5 == 0 ? 2 : i % 5 == 1 ? 7 : 2 + i % 4;
        search.samples = 1 + i % search.width;
        search.penalty = penalties[i % 5];
        search.max_tokens = i == 3 ? 1 : 5 + (i * 7) % 30;
        if (i % 3 == 0) search.stop_tokens = {static_cast<int32_t>(10 + i), 50, 51};
        if (i % 4 == 1) search.stop_strings = {"e", "q", "ab"};
        search.is_private = i % 6 == 5;
        searches.push_back(search);
    }
    return searches;
}

// A hypothesis may say half a character; what becomes of it is the text stream's matter and tested there.
bool says_halves(const Answer& answer) {
    return std::any_of(answer.tokens.begin(), answer.tokens.end(),
                       [](int32_t token) { return token == 2 || token == 3; });
}

void check_answers(std::vector<Answer> told, std::vector<Answer> expected) {
    REQUIRE(told.size() == expected.size());
    for (size_t i = 0; i < told.size(); i++) {
        CAPTURE(i);
        CHECK(told[i].tokens == expected[i].tokens);
        CHECK(told[i].logprobs == expected[i].logprobs);
        CHECK(told[i].score == expected[i].score);
        CHECK(told[i].reason == expected[i].reason);
        if (!says_halves(expected[i])) CHECK(told[i].text == expected[i].text);
    }
}

}  // namespace

TEST_CASE("beams: the engine finds what a plain search over all tokens finds, alone and in any company") {
    const std::vector<Search> searches = some_searches();
    std::vector<std::vector<Answer>> expected;
    int32_t ended = 0, by_text = 0, full = 0;
    {
        Rig alone;
        for (const Search& search : searches) {
            expected.push_back(Reference(*alone.model, search).run());
            for (const Answer& answer : expected.back()) {
                ended += answer.reason == FinishReason::end;
                by_text += answer.reason == FinishReason::stop_string;
                full += answer.reason == FinishReason::length;
            }
            const uint64_t id = alone.submit(search);
            alone.run();
            CAPTURE(expected.size());
            check_answers(alone.told[id], expected.back());
        }
        alone.check_clean();
    }
    CHECK(ended > 5);
    CHECK(by_text > 5);
    CHECK(full > 2);

    for (int32_t company = 0; company < 6; company++) {
        CAPTURE(company);
        EngineParams params = Rig::roomy();
        params.max_sequences = company == 1 ? 7 : 24;
        params.max_batch_tokens = company == 2 ? 3 : company == 3 ? 40 : 256;
        params.kv_blocks = company == 4 ? 34 : company == 5 ? 60 : 512;
        params.memory_policy = company == 5 ? MemoryPolicy::reserve : MemoryPolicy::preempt;
        params.prefix_cache = company != 3;
        Rig rig(params);
        const int64_t budget_us = company == 3 ? 150 : 0;  // a pass is cut many times
        std::vector<uint64_t> ids;
        for (size_t i = 0; i < searches.size(); i++) {
            ids.push_back(rig.submit(searches[i]));
            if (company == 4) {  // one that takes the blocks of whatever search runs
                rig.submit_plain(some_prompt(i, 300 + i), 2, Priority::interactive);
            } else if (i % 3 == 0) {
                rig.submit_plain(some_prompt(i, 20 + i), 60,
                                 i % 2 == 0 ? Priority::interactive : Priority::bulk);
            }
            for (int32_t steps = 0; steps < (company == 4 ? 4 : 1); steps++) rig.step(budget_us);
        }
        rig.run(budget_us);
        for (size_t i = 0; i < ids.size(); i++) {
            CAPTURE(i);
            check_answers(rig.told[ids[i]], expected[i]);
        }
        if (company == 4) CHECK(rig.preemptions() >= 5);
        rig.check_clean();
    }
}

TEST_CASE("beams: a search that is preempted or paused all the time finds the same") {
    uint64_t preemptions = 0;
    for (const bool paused : {false, true})
        for (const bool cached : {false, true})
            for (const int32_t every : {2, 3, 5, 9}) {
                CAPTURE(every);
                EngineParams params = Rig::roomy();
                params.max_sequences = 8;
                params.kv_blocks = 40;
                params.prefix_cache_blocks = cached ? 40 : 0;
                FakeModelOptions options = Rig::models();
                options.end_period = 0;
                Rig rig(params, options);
                Search search;
                search.prompt = some_prompt(8, 37);
                search.max_tokens = 40;
                search.is_private = !cached;
                const uint64_t id = rig.submit(search);
                // Long enough between two interruptions to compute again what was lost, and one token more.
                const int32_t pause = cached ? every : every + 8;
                uint64_t other = 0;
                int32_t since = 0;
                for (int32_t i = 1; i < 3000 && rig.finals == 0; i++) {
                    RequestInfo info;
                    const bool alone = rig.engine->request_info(other, &info) == Status::STALE_ID;
                    since = alone ? since + 1 : 0;
                    if (since == pause) {
                        since = 0;
                        if (paused) {
                            REQUIRE(rig.engine->set_priority(id, Priority::paused) == Status::OK);
                            rig.step();
                            REQUIRE(rig.engine->set_priority(id, Priority::normal) == Status::OK);
                        } else {
                            other = rig.submit_plain(some_prompt(static_cast<uint64_t>(i), 600), 1,
                                                     Priority::interactive);
                        }
                    }
                    rig.step();
                    rig.poll();
                }
                rig.run();
                CHECK(rig.finals == 4);
                check_answers(rig.told[id], Reference(*rig.model, search).run());
                if (!paused) CHECK(rig.preemptions() >= 2);
                preemptions += rig.preemptions();
                rig.check_clean();
            }
    MESSAGE("preemptions: " << preemptions);
    CHECK(preemptions >= 40);
}

TEST_CASE(
    "beams: a beginning from the cache changes nothing, whatever its length, nor does a generated tail") {
    const std::vector<int32_t> whole = some_prompt(5, 64);
    for (size_t count = 1; count <= whole.size(); count++) {
        Rig warm;
        Search search;
        search.prompt = whole;
        search.max_tokens = 6;
        static_cast<void>(warm.submit(search));
        warm.run();
        search.prompt.assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(count));
        search.generated_tail = count % 3 == 0 ? 2 : 0;
        const uint64_t id = warm.submit(search);
        warm.run();
        RequestInfo info;
        REQUIRE(warm.engine->request_info(id, &info) == Status::OK);
        CHECK(info.cached_tokens == static_cast<int32_t>(count) - search.generated_tail);
        check_answers(warm.told[id], Reference(*warm.model, search).run());
        warm.check_clean();
    }
}

TEST_CASE("beams: the best of a few is the first of many, and the search for it is no longer") {
    int64_t passes[2] = {0, 0};
    for (uint64_t seed = 0; seed < 30; seed++) {
        std::vector<Answer> best;
        for (const int32_t samples : {6, 1}) {
            Rig rig;
            Search search;
            search.prompt = some_prompt(seed, 20);
            search.width = 6;
            search.samples = samples;
            search.max_tokens = 60;
            search.penalty = 0;
            const uint64_t id = rig.submit(search);
            rig.run();
            passes[samples == 1] += rig.control.passes_done;
            best.push_back(rig.told[id][0]);
        }
        CHECK(best[0] == best[1]);
    }
    MESSAGE("passes for six answers: " << passes[0] << ", for the best: " << passes[1]);
    CHECK(passes[1] < passes[0]);
}

TEST_CASE("beams: four of a prompt of 512 tokens hold at most 45% of the blocks that copies would") {
    FakeModelOptions options = Rig::models();
    options.end_period = 0;
    Rig rig(Rig::roomy(), options);
    Search search;
    search.prompt = some_prompt(1, 512);
    search.max_tokens = 128;
    search.samples = 1;
    static_cast<void>(rig.submit(search));
    rig.run();
    const int32_t copies = 4 * blocks_of(positions_of(512 + 128));
    MESSAGE("blocks held at most: " << rig.peak_blocks << ", by copies: " << copies);
    CHECK(rig.peak_blocks > 40);
    CHECK(rig.peak_blocks * 100 <= copies * 45);
    rig.check_clean();
}

TEST_CASE("beams: polls that take little still get all, and a step allocates nothing") {
    FakeModelOptions options = Rig::models();
    options.end_period = 0;
    Rig rig(Rig::roomy(), options);
    Search search;
    search.prompt = some_prompt(2, 10);
    search.max_tokens = 300;  // far more than the room for events
    search.samples = 3;
    const uint64_t id = rig.submit(search);
    rig.step();
    const int64_t calls = rig.allocator.calls();
    for (int32_t i = 0; i < 400; i++) rig.step();
    CHECK(rig.told.empty());
    for (int32_t i = 0; i < 2000 && rig.finals < 3; i++) rig.poll(1);
    CHECK(rig.allocator.calls() == calls);
    check_answers(rig.told[id], Reference(*rig.model, search).run());
    CHECK(rig.engine->stats().figures.counters.generated_tokens == 900);
    rig.check_clean();
}

TEST_CASE("beams: cancelled, overdue or released in any state, a search tells no token and holds no block") {
    for (int32_t steps = 0; steps < 12; steps++)
        for (int32_t how = 0; how < 3; how++) {
            CAPTURE(steps);
            CAPTURE(how);
            EngineParams params = Rig::roomy();
            params.max_batch_tokens = 16;
            Rig rig(params);
            Search search;
            search.prompt = some_prompt(3, 40);
            search.max_tokens = 100;
            search.samples = 2;
            RequestParams asked = rig.params_of(search);
            asked.ignore_end = true;
            if (how == 1) asked.deadline_us = 1'000'000;
            uint64_t id = 0;
            REQUIRE(rig.try_submit(std::move(asked), search.prompt, 100, &id) == Status::OK);
            for (int32_t i = 0; i < steps; i++) rig.step(120);  // some end in the middle of a pass
            RequestInfo info;
            REQUIRE(rig.engine->request_info(id, &info) == Status::OK);
            CHECK(info.sequences == 2);
            CHECK(info.generated_tokens == 0);
            if (how == 0) REQUIRE(rig.engine->cancel(id) == Status::OK);
            if (how == 1) rig.clock.now_ns += 2'000'000'000;
            if (how == 2) REQUIRE(rig.engine->release(id) == Status::OK);
            rig.run();
            CHECK(rig.finals == (how == 2 ? 0 : 2));
            for (const Answer& answer : rig.told[id]) {
                CHECK(answer.tokens.empty());
                CHECK(std::isinf(answer.score));
                CHECK(answer.reason == (how == 0 ? FinishReason::cancelled : FinishReason::deadline));
            }
            rig.check_clean();
        }
}

TEST_CASE("beams: a kept hypothesis can be read and forked at any position, and searched on from") {
    Rig rig;
    Search search;
    search.prompt = some_prompt(4, 21);
    search.max_tokens = 15;
    search.samples = 3;
    const uint64_t id = rig.submit(search);
    uint64_t fork = 0;
    Error error;
    rig.step();
    rig.step();
    rig.step();
    CHECK(rig.engine->fork(id, 0, 22, nullptr, 4, &fork, &error) ==
          Status::INVALID_ARGUMENT);  // not told yet
    CHECK(rig.engine->fork(id, 3, 5, nullptr, 4, &fork, &error) == Status::INVALID_ARGUMENT);
    rig.run();
    const std::vector<Answer> expected = Reference(*rig.model, search).run();
    for (int32_t index = 0; index < 3; index++) {
        std::vector<int32_t> tokens(100);
        size_t count = 0;
        REQUIRE(rig.engine->sequence_tokens(id, index, tokens, &count, nullptr) == Status::OK);
        std::vector<int32_t> whole = search.prompt;
        const std::vector<int32_t>& own = expected[static_cast<size_t>(index)].tokens;
        whole.insert(whole.end(), own.begin(), own.end());
        CHECK(std::vector<int32_t>(tokens.begin(), tokens.begin() + static_cast<int32_t>(count)) == whole);
        for (int32_t position = 1; position <= static_cast<int32_t>(whole.size()); position += 5) {
            REQUIRE(rig.engine->fork(id, index, position, nullptr, 4, &fork, nullptr) == Status::OK);
            rig.run();
            RequestInfo info;
            REQUIRE(rig.engine->request_info(fork, &info) == Status::OK);
            CHECK(info.sequences == 1);
            REQUIRE(rig.engine->sequence_tokens(fork, 0, tokens, &count, nullptr) == Status::OK);
            const std::vector<int32_t> prefix(whole.begin(), whole.begin() + position);
            const std::vector<int32_t> more =
                expected_tokens(*rig.model, prefix, rig.params_of(search).sampling, 0, 4);
            CHECK(std::equal(more.begin(), more.end(), tokens.begin() + position));
            CHECK(count == prefix.size() + more.size());
        }
        Search on = search;
        on.prompt = whole;
        on.generated_tail = static_cast<int32_t>(own.size());
        RequestParams asked = rig.params_of(on);
        REQUIRE(rig.engine->fork(id, index, static_cast<int32_t>(whole.size()), &asked, on.max_tokens, &fork,
                                 nullptr) == Status::OK);
        rig.run();
        std::vector<Answer> further = Reference(*rig.model, on).run();
        REQUIRE(rig.told[fork].size() == further.size());
        for (size_t i = 0; i < further.size(); i++) CHECK(rig.told[fork][i].tokens == further[i].tokens);
    }
    CHECK(rig.engine->sequence_tokens(id, 3, {}, nullptr, &error) == Status::INVALID_ARGUMENT);
    rig.check_clean();
}

TEST_CASE("beams: what can never fit is refused with the numbers, and what just fits is found") {
    EngineParams params = Rig::roomy();
    params.max_sequences = 4;
    params.kv_blocks = 2 + 4 * 3;  // 32 tokens of the prompt, and 2 more blocks of each and one to copy to
    Rig rig(params);
    Search search;
    search.prompt = some_prompt(6, 33);
    search.max_tokens = 32;
    uint64_t id = rig.submit(search);
    rig.submit_plain(some_prompt(7, 60), 60, Priority::normal);
    rig.run();
    check_answers(rig.told[id], Reference(*rig.model, search).run());

    Error error;
    search.max_tokens = 33;
    CHECK(rig.try_submit(rig.params_of(search), search.prompt, 33, &id, &error) == Status::POOL_TOO_SMALL);
    CHECK(std::string(error.message).find("18 blocks") != std::string::npos);
    search.width = 5;
    CHECK(rig.try_submit(rig.params_of(search), search.prompt, 2, &id, &error) == Status::INVALID_ARGUMENT);
    CHECK(std::string(error.message).find("beam_width is 5") != std::string::npos);

    search.width = 4;  // as many as fit
    search.max_tokens = 32;
    CHECK(rig.try_submit(rig.params_of(search), search.prompt, -1, &id, &error) == Status::OK);
    rig.run();
    check_answers(rig.told[id], Reference(*rig.model, search).run());
    rig.check_clean();
}

TEST_CASE("beams: a row that holds a NaN ends its search and nobody else's") {
    FakeModelOptions options = Rig::models();
    options.nan_period = 30;
    Rig rig({Rig::roomy()}, options);
    std::vector<uint64_t> ids;
    for (uint64_t i = 0; i < 12; i++) {
        Search search;
        search.prompt = some_prompt(i, 18);
        search.samples = 2;
        ids.push_back(rig.submit(search));
    }
    rig.run();
    int32_t failed = 0;
    for (const uint64_t id : ids) {
        RequestInfo info;
        REQUIRE(rig.engine->request_info(id, &info) == Status::OK);
        if (info.failure.status == Status::OK) continue;
        failed++;
        CHECK(info.failure.status == Status::NOT_A_NUMBER);
        for (const Answer& answer : rig.told[id]) CHECK(answer.tokens.empty());
    }
    CHECK(failed > 0);
    CHECK(failed < 12);
    rig.check_clean();
}
