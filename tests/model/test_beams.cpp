// Beam search on SmolLM2-135M-Instruct: each hypothesis, computed alone token by token, has the same log-probabilities and score
// to the last bit, and a search that is preempted over and over finds the same ones. TREADLE_TEST_MODEL names the file.
#include <doctest/doctest.h>

#include <cstdlib>
#include <vector>

#include "base/math.h"
#include "cpu/vector.h"
#include "engine_harness.h"
#include "sampling/beam.h"

using namespace treadle;
using namespace treadle::test;

namespace {

struct Row {
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
    float score = 0;
    bool operator==(const Row&) const = default;
};

class TellRows final : public EventSink {
public:
    explicit TellRows(std::vector<Row>* rows) : rows_(rows) {}
    bool take(const EventNode& event, std::span<const TokenLogprob>) override {
        if (event.sequence->request->params.beam_width == 1) return true;
        Row& row = (*rows_)[static_cast<size_t>(event.sequence->index)];
        if (event.kind == EventKind::token) {
            row.tokens.push_back(event.token);
            row.logprobs.push_back(event.logprob);
        }
        if (event.kind == EventKind::finished) row.score = event.logprob;
        return true;
    }

private:
    std::vector<Row>* rows_;
};

const LoadedModel& model() {
    const char* path = std::getenv("TREADLE_TEST_MODEL");
    INFO("TREADLE_TEST_MODEL must name the SmolLM2-135M-Instruct file");
    REQUIRE(path != nullptr);
    static const std::unique_ptr<LoadedModel> loaded = load_path(path);
    return *loaded;
}

std::vector<int32_t> some_prompt() {
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 37; i++) prompt.push_back(1000 + i * 131 % 4001);
    return prompt;
}

// Searches with four beams. Every `hog_every` steps something urgent takes the whole cache; 0: never.
std::vector<Row> search(int32_t hog_every, int32_t chunk, uint64_t* preemptions) {
    TestAllocator allocator;
    MemorySet memory(allocator.hooks());
    EngineParams params;
    params.max_sequences = 8;
    params.max_batch_tokens = chunk;
    params.kv_blocks = 22;
    params.threads = 2;
    const Owned<Engine> engine = make_engine_over(model(), memory, params);
    const auto submit = [&](int32_t width, size_t tokens, int32_t max_tokens, Priority priority) {
        RequestParams asked(&memory.other);
        asked.sampling.temperature = 0;
        asked.beam_width = asked.samples = width;
        asked.ignore_end = true;
        asked.priority = priority;
        std::pmr::vector<int32_t> prompt(&memory.other);
        const std::vector<int32_t> some = some_prompt();
        for (size_t i = 0; i < tokens; i++) prompt.push_back(some[i % some.size()] + (width == 1 ? 7 : 0));
        uint64_t id = 0;
        REQUIRE(engine->submit(std::move(asked), std::move(prompt), max_tokens, &id, nullptr) == Status::OK);
        return id;
    };
    std::vector<Row> rows(4);
    TellRows sink(&rows);
    const uint64_t id = submit(4, some_prompt().size(), 24, Priority::normal);
    uint64_t hog = 0;
    RequestInfo info;
    for (int32_t since = 0; engine->request_info(id, &info) == Status::OK;) {
        since = engine->request_info(hog, &info) == Status::OK ? 0 : since + 1;
        if (hog_every > 0 && since == hog_every) {
            hog = submit(1, 340, 1, Priority::interactive);
            since = 0;
        }
        StepReport report;
        REQUIRE(engine->step({}, &report) == Status::OK);
        engine->poll(sink, SIZE_MAX);
    }
    *preemptions = engine->stats().figures.counters.preemptions;
    return rows;
}

}  // namespace

TEST_CASE("beams on SmolLM2: hypotheses computed alone agree by bytes, and preemption changes none") {
    uint64_t preemptions = 0;
    const std::vector<Row> straight = search(0, 512, &preemptions);
    CHECK(preemptions == 0);
    const auto vocabulary = static_cast<size_t>(model().program().vocabulary);
    for (const Row& row : straight) {
        REQUIRE(row.tokens.size() == 24);
        std::vector<int32_t> whole = some_prompt();
        const size_t prompt = whole.size();
        whole.insert(whole.end(), row.tokens.begin(), row.tokens.end());
        const std::vector<float> logits = logits_of(model(), whole, 16);
        float sum = 0;
        for (size_t i = 0; i < row.tokens.size(); i++) {
            RowResult result;
            const float* at = logits.data() + (prompt + i - 1) * vocabulary;
            cpu::scalar::kernels.candidates(at, static_cast<int32_t>(vocabulary), 1, &result);
            const float logprob = log_probability(result, at[row.tokens[i]]);
            CHECK(logprob == row.logprobs[i]);
            sum += logprob;
        }
        CHECK(row.score == static_cast<float>(static_cast<double>(sum) / math::pow(24, 1)));
    }
    for (size_t i = 1; i < straight.size(); i++) {
        CHECK(straight[i].score <= straight[i - 1].score);
        CHECK(straight[i].tokens != straight[0].tokens);
    }
    CHECK(search(5, 512, &preemptions) == straight);
    MESSAGE("preempted " << preemptions << " times");
    CHECK(preemptions >= 3);
    CHECK(search(0, 7, &preemptions) == straight);
}
