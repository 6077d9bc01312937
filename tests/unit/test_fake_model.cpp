// The fake model and its backend: rows as the CPU's kernel reports them, a chain of hashes that doesn't depend on how it was cut,
// and a violation for each kind of fault that a cache can have.
#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "cpu/vector.h"
#include "support/fake_model.h"
#include "test_memory.h"

using namespace treadle;
using namespace treadle::test;

namespace {

constexpr int32_t blocks = 8;

// A backend with one pass at a time, told row by row.
struct Rig {
    explicit Rig(FakeControl::Checking checking = FakeControl::Checking::all) {
        control.checking = checking;
        control.clock = &clock;
        backend.emplace(model, control);
        REQUIRE(backend->kv_create(model.program(), blocks, nullptr) == Status::OK);
        REQUIRE(backend->build(model.program(), {64, 8}, nullptr) == Status::OK);
    }

    // Adds `tokens` from position `first` of a sequence with this block table; the last of them has logits.
    void add(const std::vector<int32_t>& tokens, int32_t first, const std::vector<int32_t>& table,
             bool write = true) {
        work.push_back({static_cast<int32_t>(ids.size()), static_cast<int32_t>(tokens.size()), first,
                        static_cast<int32_t>(tables.size())});
        tables.insert(tables.end(), table.begin(), table.end());
        for (const int32_t token : tokens) {
            ids.push_back(token);
            positions.push_back(first);
            slots.push_back(write ? table[static_cast<size_t>(first / 16)] * 16 + first % 16 : -1);
            first++;
        }
        logit_rows.push_back(static_cast<int32_t>(ids.size()) - 1);
        temperatures.push_back(1);
    }

    // Runs what was added; returns the violations that it made.
    int64_t run(const std::vector<BlockCopy>& copies = {}) {
        const int64_t before = control.violations;
        const GroupInput group = {slots, tables, work, copies};
        const PassInput input = {ids, positions, {&group, 1}, logit_rows, temperatures, {}};
        REQUIRE(backend->begin(input, {static_cast<int32_t>(ids.size()),
                                       static_cast<int32_t>(logit_rows.size())}) == Status::OK);
        while (backend->advance(clock.now_ns + 1, 1).state != PassState::done) calls++;
        rows.clear();
        for (const RowResult& row : backend->results().rows) rows.push_back(row.best[0]);
        ids.clear(), positions.clear(), slots.clear(), tables.clear(), work.clear();
        logit_rows.clear(), temperatures.clear();
        return control.violations - before;
    }

    TestAllocator allocator;
    MemorySet memory{allocator.hooks()};
    FakeModel model{memory, {}};
    FakeControl control;
    VirtualClock clock;
    std::optional<FakeBackend> backend;
    std::vector<int32_t> ids, positions, slots, tables, logit_rows;
    std::vector<float> temperatures;
    std::vector<AttentionWork> work;
    std::vector<Candidate> rows;  // the best of each row of logits
    int64_t calls = 0;
};

std::vector<int32_t> some_tokens(int32_t count, int32_t salt = 0) {
    std::vector<int32_t> tokens;
    tokens.reserve(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; i++) tokens.push_back(4 + (i * 7 + salt) % 90);
    return tokens;
}

// A prompt of 40 tokens in blocks 3, 1, 6.
void fill(Rig& rig) {
    rig.add(some_tokens(40), 0, {3, 1, 6});
    REQUIRE(rig.run() == 0);
}

}  // namespace

TEST_CASE("the fake model's rows are what the CPU's kernel reports") {
    TestAllocator allocator;
    MemorySet memory(allocator.hooks());
    for (const int32_t vocabulary : {16, 97, 300, 9000}) {
        CAPTURE(vocabulary);
        FakeModelOptions options;
        options.vocabulary = vocabulary;
        options.nan_period = 9;
        const FakeModel model(memory, options);
        CHECK(model.vocabulary().size() == vocabulary);
        std::vector<float> logits(static_cast<size_t>(vocabulary));
        int32_t unusable = 0;
        for (uint64_t i = 0; i < 40; i++) {
            model.logits(FakeModel::extend(i, 5), logits.data());
            for (const float inverse_temperature : {1.0f, 0.37f, 3.0f}) {
                RowResult expected;
                RowResult given;
                cpu::scalar::kernels.candidates(logits.data(), vocabulary, inverse_temperature, &expected);
                model.result(logits.data(), inverse_temperature, &given);
                // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): the bytes are what is promised
                CHECK(std::memcmp(&expected, &given, sizeof given) == 0);
                unusable += given.usable == 0 ? 1 : 0;
            }
        }
        CHECK(unusable > 0);
    }
}

TEST_CASE("a run alone goes on from any of its own tokens as if it had never stopped") {
    TestAllocator allocator;
    MemorySet memory(allocator.hooks());
    const FakeModel model(memory, {});
    const std::vector<int32_t> prompt = some_tokens(20);
    for (uint64_t seed = 0; seed < 20; seed++) {
        SoloParams params;
        params.sampling.seed = seed;
        params.limit = 80;
        params.stop_strings = {"zz", "\u00e9", "abc"};
        SoloSequence whole(model, params, prompt, &memory.other);
        std::vector<std::string> texts;
        while (!whole.over()) {
            whole.advance();
            texts.push_back(whole.text());
        }
        CHECK(expected_tokens(model, prompt, params.sampling, 0, 60).size() + 20 >= whole.tokens().size());
        const auto generated = static_cast<int32_t>(texts.size());
        for (int32_t at = 0; at < generated; at++) {
            params.generated_tail = at;
            const std::span<const int32_t> begun(whole.tokens().data(), 20 + static_cast<size_t>(at));
            SoloSequence rest(model, params, begun, &memory.other);
            for (int32_t i = at; i < generated; i++) {
                REQUIRE(!rest.over());
                rest.advance();
                CHECK(rest.text() == texts[static_cast<size_t>(i)]);
            }
            CHECK(rest.tokens() == whole.tokens());
            CHECK(rest.reason() == whole.reason());
        }
    }
}

TEST_CASE(
    "the fake backend gives the same row however a prompt is cut, and says so where it writes nothing") {
    Rig whole;
    fill(whole);
    const Candidate expected = whole.rows.at(0);
    CHECK(whole.calls > 3);  // 40 tokens take more than one tile
    const std::vector<int32_t> tokens = some_tokens(40);
    for (const int32_t cut : {1, 15, 16, 17, 39}) {
        CAPTURE(cut);
        Rig rig;
        rig.add({tokens.begin(), tokens.begin() + cut}, 0, {7, 0, 2});
        CHECK(rig.run() == 0);
        rig.add({tokens.begin() + cut, tokens.end()}, cut, {7, 0, 2});
        CHECK(rig.run() == 0);
        CHECK(rig.rows.at(0).token == expected.token);
        rig.add({tokens[39]}, 39, {7, 0, 2}, false);
        CHECK(rig.run() == 0);
        CHECK(rig.rows.at(0).token == expected.token);
        CHECK(rig.control.rows_without_write == 1);
        rig.add({tokens[38]}, 39, {7, 0, 2}, false);
        CHECK(rig.run() == 1);
    }
}

TEST_CASE("the fake backend finds blocks that are unwritten, foreign, moved, poisoned or wrongly copied") {
    const std::vector<int32_t> next = {9};
    Rig rig;
    fill(rig);
    SUBCASE("good") {
        rig.add(next, 40, {3, 1, 6});
        CHECK(rig.run() == 0);
    }
    SUBCASE("unwritten") {
        rig.add(next, 40, {3, 0, 6});
        CHECK(rig.run() == 1);
        CHECK(rig.control.first_violation.find("never written") != std::string::npos);
    }
    SUBCASE("a hole: positions 40 to 42 were skipped") {
        rig.add(next, 43, {3, 1, 6});
        CHECK(rig.run() == 1);
    }
    SUBCASE("foreign, of the same positions") {
        rig.add(some_tokens(20, 1), 0, {4, 5});
        CHECK(rig.run() == 0);
        rig.add(next, 20, {4, 1});
        CHECK(rig.run() == 1);
        CHECK(rig.control.first_violation.find("continue") != std::string::npos);
    }
    SUBCASE("in another order") {
        rig.add(next, 40, {1, 3, 6});
        CHECK(rig.run() == 1);
    }
    SUBCASE("poisoned") {
        rig.backend->poison(1);
        rig.add(next, 40, {3, 1, 6});
        CHECK(rig.run() == 1);
        CHECK(rig.control.first_violation.find("position 16, block 1") != std::string::npos);
    }
    SUBCASE("a copy goes on alone, the original too") {
        rig.add(next, 40, {3, 1, 6});
        rig.add({10}, 40, {3, 1, 7});
        CHECK(rig.run({{{6, 7}}}) == 0);
        CHECK(rig.control.copies == 1);
        rig.add(next, 41, {3, 1, 6});
        rig.add(next, 41, {3, 1, 7});
        CHECK(rig.run() == 0);
    }
    SUBCASE("a shared block is written by two, without a copy") {
        rig.add(next, 40, {3, 1, 6});
        rig.add({10}, 40, {3, 1, 6});
        CHECK(rig.run() >= 1);
    }
    SUBCASE("one writes what another reads") {
        rig.add({5}, 39, {3, 1, 6});
        rig.add(next, 40, {3, 1, 6});
        CHECK(rig.run() >= 1);
    }
    SUBCASE("copies: out of range, onto themselves, into two tables") {
        for (const BlockCopy copy :
             {BlockCopy{-1, 2}, BlockCopy{6, blocks}, BlockCopy{6, 6}, BlockCopy{0, 1}}) {
            rig.add(next, 40, {3, 1, 6});
            rig.add(next, 40, {3, 1, 7});
            CHECK(rig.run({copy}) >= 1);
        }
    }
    SUBCASE("a slot that is not the table's") {
        rig.add(next, 40, {3, 1, 6});
        rig.slots[0] = 2 * 16 + 8;
        CHECK(rig.run() == 1);
    }
}
