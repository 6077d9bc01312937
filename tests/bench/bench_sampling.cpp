// Speed of sampling: from a row of logits to a token, what the backend keeps of the row included, per tier and vocabulary. "walk"
// goes past the candidates that the backend keeps, over all of a flat row.

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "base/float_mode.h"
#include "bench_tiers.h"
#include "cpu/kernels.h"
#include "sampling/sampler.h"

using namespace treadle;
using namespace treadle::cpu;

namespace {

struct Case {
    SamplingParams params;
    float spread;  // of the logits: of a model that knows what it says, or of one that doesn't
};

constexpr Case greedy{{.temperature = 0}, 4};
constexpr Case temperature{{.temperature = 0.8f}, 4};
constexpr Case top_k{{.temperature = 0.8f, .top_k = 40}, 4};
constexpr Case top_p{{.temperature = 0.8f, .top_p = 0.95f}, 4};
constexpr Case min_p{{.temperature = 0.8f, .min_p = 0.05f}, 4};
constexpr Case walk{{.temperature = 2}, 0.01f};
constexpr Case sorted{{.temperature = 2, .top_p = 0.95f}, 0.01f};

template <CpuTier tier, const Case& what>
void sampling(benchmark::State& state) {
    if (!bench::can_run(tier, state)) return;
    const FloatMode mode;
    const auto vocabulary = static_cast<int32_t>(state.range(0));
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, what.spread);
    std::vector<float> logits(static_cast<size_t>(vocabulary));
    for (float& logit : logits) logit = normal(random);
    std::vector<Candidate> scratch(sampling_scratch_candidates(vocabulary));
    RowResult row;
    TokenLogprob token{};
    int32_t position = 0;
    for (auto _ : state) {
        kernels_of(tier).candidates(logits.data(), vocabulary, inverse_temperature(what.params), &row);
        if (sample(what.params, 0, position++, row, logits.data(), vocabulary, scratch, &token) !=
            Status::OK) {
            state.SkipWithError("no token");
            break;
        }
        benchmark::DoNotOptimize(token);
    }
}

}  // namespace

#define TREADLE_BENCH_SAMPLING(tier, what) \
    BENCHMARK(sampling<CpuTier::tier, what>)->Name("sample " #what "/" #tier)->Arg(49152)->Arg(262144)
#define TREADLE_BENCH_TIER(tier)               \
    TREADLE_BENCH_SAMPLING(tier, greedy);      \
    TREADLE_BENCH_SAMPLING(tier, temperature); \
    TREADLE_BENCH_SAMPLING(tier, top_k);       \
    TREADLE_BENCH_SAMPLING(tier, top_p);       \
    TREADLE_BENCH_SAMPLING(tier, min_p);       \
    TREADLE_BENCH_SAMPLING(tier, walk);        \
    TREADLE_BENCH_SAMPLING(tier, sorted);

TREADLE_CPU_TIERS(TREADLE_BENCH_TIER)
