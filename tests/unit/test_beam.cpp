// Selection of a beam search against the straightforward way to say it, and against the enumeration of everything.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "base/math.h"
#include "request/beam_group.h"
#include "sampling/beam.h"
#include "test_memory.h"

using namespace treadle;

namespace {

// A row as a backend reports it.
RowResult row_of(const std::vector<float>& logits) {
    RowResult row;
    std::memset(static_cast<void*>(&row), 0, sizeof row);
    std::vector<Candidate> order;
    for (size_t i = 0; i < logits.size(); i++) order.push_back({logits[i], static_cast<int32_t>(i)});
    std::stable_sort(order.begin(), order.end(),
                     [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
    row.usable = 1;
    row.count = std::min(static_cast<int32_t>(order.size()), limits::candidates_kept);
    row.max = order[0].logit;
    for (const float logit : logits) row.sum += math::exp2((logit - row.max) * math::log2e);
    row.sum_scaled = row.sum;
    std::copy(order.begin(), order.begin() + row.count, row.best);
    return row;
}

struct Continuation {
    float score, sum;
    size_t parent;
    int32_t token;
    bool ends;
};

// The rule as sampling/beam.h tells it, with nothing but lists and a sort.
std::vector<Continuation> reference(const std::vector<RowResult>& rows, const std::vector<float>& sums,
                                    int32_t width, int32_t ends_wanted, int32_t tokens, float penalty,
                                    const std::vector<bool>& ending) {
    std::vector<Continuation> all;
    for (size_t parent = 0; parent < rows.size(); parent++) {
        int32_t live = 0, ended = 0;
        for (int32_t i = 0; i < rows[parent].count; i++) {
            const Candidate& best = rows[parent].best[i];
            const float logprob = log_probability(rows[parent], best.logit);
            const bool ends = ending[static_cast<size_t>(best.token)];
            if (std::isinf(logprob) || live == width || (ends && ended == width)) continue;
            (ends ? ended : live)++;
            const float sum = sums[parent] + logprob;
            all.push_back({beam_score(sum, tokens, penalty), sum, parent, best.token, ends});
        }
    }
    std::sort(all.begin(), all.end(), [](const Continuation& a, const Continuation& b) {
        return std::make_tuple(-a.score, a.parent, a.token) < std::make_tuple(-b.score, b.parent, b.token);
    });
    std::vector<Continuation> chosen;
    int32_t live = 0, ended = 0;
    for (const Continuation& one : all) {
        if (live == width || ended == ends_wanted) break;
        (one.ends ? ended : live)++;
        chosen.push_back(one);
    }
    return chosen;
}

std::vector<BeamCandidate> candidates_of(const RowResult& row, int32_t width,
                                         const std::vector<bool>& ending) {
    std::vector<BeamCandidate> out(beam_candidates_max(width));
    const int32_t count = beam_candidates(
        row, width,
        [&](int32_t token) { return ending[static_cast<size_t>(token)] ? BeamEnd::by_token : BeamEnd::none; },
        out);
    out.resize(static_cast<size_t>(count));
    return out;
}

// A toy model: the logits after a sequence are a function of its tokens.
std::vector<float> logits_after(const std::vector<int32_t>& tokens, int32_t vocabulary) {
    uint32_t seed = 77;
    for (const int32_t token : tokens) seed = seed * 2654435761u + static_cast<uint32_t>(token) + 1;
    std::mt19937 random(seed);
    std::vector<float> logits(static_cast<size_t>(vocabulary));
    for (float& logit : logits) logit = static_cast<float>(random() % 4000) / 1000.0f;
    return logits;
}

struct Hypothesis {
    std::vector<int32_t> tokens;
    float sum = 0;
    float score = 0;
};

// All sequences that end, by token 0 or at `length`, by hand.
void enumerate(std::vector<int32_t>* tokens, float sum, int32_t vocabulary, int32_t length, float penalty,
               std::vector<Hypothesis>* out) {
    const RowResult row = row_of(logits_after(*tokens, vocabulary));
    for (int32_t i = 0; i < row.count; i++) {
        const float next = sum + log_probability(row, row.best[i].logit);
        tokens->push_back(row.best[i].token);
        const auto count = static_cast<int32_t>(tokens->size());
        if (row.best[i].token == 0 || count == length)
            out->push_back({*tokens, next, beam_score(next, count, penalty)});
        else
            enumerate(tokens, next, vocabulary, length, penalty, out);
        tokens->pop_back();
    }
}

// A beam search over the toy model, hypotheses best first.
std::vector<Hypothesis> search(int32_t vocabulary, int32_t length, int32_t width, float penalty) {
    std::vector<bool> ending(static_cast<size_t>(vocabulary));
    ending[0] = true;
    std::vector<Hypothesis> live(1), over;
    for (int32_t tokens = 1; tokens <= length && !live.empty(); tokens++) {
        std::vector<std::vector<BeamCandidate>> candidates;
        std::vector<BeamParent> parents;
        for (const Hypothesis& one : live)
            candidates.push_back(candidates_of(row_of(logits_after(one.tokens, vocabulary)), width, ending));
        for (size_t i = 0; i < live.size(); i++) parents.push_back({live[i].sum, candidates[i]});
        std::vector<BeamChoice> scratch(beam_choices_max(width));
        std::vector<Hypothesis> children;
        const auto wanted = width - static_cast<int32_t>(over.size());
        for (const BeamChoice& choice : select_beams(parents, width, wanted, tokens, penalty, scratch)) {
            Hypothesis child = live[static_cast<size_t>(choice.parent)];
            child.tokens.push_back(choice.token);
            child.sum = choice.sum;
            child.score = choice.score;
            (choice.ends() ? over : children).push_back(child);
        }
        if (static_cast<int32_t>(over.size()) == width) break;
        live = children;
    }
    if (static_cast<int32_t>(over.size()) < width) over.insert(over.end(), live.begin(), live.end());
    std::stable_sort(over.begin(), over.end(),
                     [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
    return over;
}

}  // namespace

TEST_CASE("a selection is what the plain rule says, with ties, ends and excluded tokens") {
    std::mt19937 random(1);
    const auto below = [&](uint32_t n) { return static_cast<int32_t>(random() % n); };
    for (int round = 0; round < 3000; round++) {
        const int32_t vocabulary = 1 + below(round % 10 == 0 ? 400 : 40);
        const int32_t width = 1 + below(9);
        const auto parents = static_cast<size_t>(1 + below(static_cast<uint32_t>(width)));
        std::vector<bool> ending(static_cast<size_t>(vocabulary));
        for (size_t i = 0; i < ending.size(); i++) ending[i] = below(5) == 0;
        std::vector<RowResult> rows;
        std::vector<float> sums;
        for (size_t i = 0; i < parents; i++) {
            std::vector<float> logits(static_cast<size_t>(vocabulary));
            for (float& logit : logits)
                logit = below(30) == 0 ? -HUGE_VALF : static_cast<float>(below(12)) / 4.0f;
            logits[static_cast<size_t>(below(static_cast<uint32_t>(vocabulary)))] = 1;
            rows.push_back(row_of(logits));
            sums.push_back(static_cast<float>(below(3)) * -0.5f);
        }
        const int32_t wanted = 1 + below(static_cast<uint32_t>(width));
        const float penalty = static_cast<float>(below(5)) - 1.5f;
        const int32_t tokens = 1 + below(50);
        const auto expected = reference(rows, sums, width, wanted, tokens, penalty, ending);

        std::vector<std::vector<BeamCandidate>> candidates;
        std::vector<BeamParent> with;
        for (const RowResult& row : rows) candidates.push_back(candidates_of(row, width, ending));
        for (size_t i = 0; i < parents; i++) with.push_back({sums[i], candidates[i]});
        std::vector<BeamChoice> scratch(beam_choices_max(width));
        const auto chosen = select_beams(with, width, wanted, tokens, penalty, scratch);
        REQUIRE(chosen.size() == expected.size());
        for (size_t i = 0; i < chosen.size(); i++) {
            CHECK(chosen[i].parent == static_cast<int32_t>(expected[i].parent));
            CHECK(chosen[i].token == expected[i].token);
            CHECK(chosen[i].ends() == expected[i].ends);
            CHECK(chosen[i].sum == expected[i].sum);
            CHECK(chosen[i].score == expected[i].score);
        }
    }
}

TEST_CASE("a score is the sum over the length to the power of the penalty") {
    for (const float penalty : {-4.0f, -1.0f, 0.0f, 0.6f, 1.0f, 4.0f})
        for (const int32_t tokens : {1, 2, 3, 100, 1 << 24}) {
            const double expected = -12.5 / std::pow(tokens, static_cast<double>(penalty));
            CHECK(static_cast<double>(beam_score(-12.5f, tokens, penalty)) ==
                  doctest::Approx(expected).epsilon(1e-7));
        }
    CHECK(beam_score(-3.25f, 1, 2.0f) == -3.25f);
    CHECK(beam_score(-3.25f, 77, 0.0f) == -3.25f);
}

TEST_CASE("a search that is wide enough finds the best of all sequences, in their order") {
    for (const float penalty : {-1.0f, 0.0f, 1.0f, 2.0f}) {
        std::vector<int32_t> tokens;
        std::vector<Hypothesis> all;
        enumerate(&tokens, 0, 4, 4, penalty, &all);
        std::stable_sort(all.begin(), all.end(),
                         [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
        CHECK(all.size() == 1 + 3 + 9 + 27 * 4);
        const std::vector<Hypothesis> found = search(4, 4, 200, penalty);
        REQUIRE(found.size() == all.size());
        for (size_t i = 0; i < all.size(); i++) CHECK(found[i].score == all[i].score);
        CHECK(found[0].tokens == all[0].tokens);
        for (const int32_t width : {1, 2, 5})  // narrower ones find no better one
            CHECK(search(4, 4, width, penalty)[0].score <= all[0].score);
    }
}

TEST_CASE("of more hypotheses than it is wide a group keeps the best, and ranks equals by age") {
    test::TestAllocator allocator;
    Memory memory(allocator.hooks(), MemoryKind::other);
    BeamGroup group(&memory, 3, 2, 0, 8, 0);
    const std::vector<int32_t> tokens = {5, 6};
    const auto keep = [&](float score, int32_t last) {
        group.live[0].sum = score;
        const BeamChoice end = {score, score, 0, last, -1, BeamEnd::by_token};
        group.keep(0, tokens, &end);
    };
    keep(-2, 1);
    keep(-1, 2);
    keep(-2, 3);
    CHECK(group.ends_wanted() == 0);
    group.live[0].sum = -2;
    group.keep(0, tokens, nullptr);  // no better than the worst
    group.live[0].sum = -1;
    group.live[0].logprobs = {-0.5f, -0.5f};
    group.keep(0, tokens, nullptr);
    group.rank();
    REQUIRE(group.best.size() == 2);  // the host wants no more
    const BeamGroup::Kept& first = group.kept[static_cast<size_t>(group.best[0])];
    const BeamGroup::Kept& second = group.kept[static_cast<size_t>(group.best[1])];
    CHECK(first.tokens.back() == 2);
    CHECK(first.end == BeamEnd::by_token);
    CHECK(first.logprobs.size() == 1);
    CHECK(second.end == BeamEnd::none);
    CHECK(second.tokens.size() == 2);
    CHECK(second.logprobs.size() == 2);
}
