// Speed of the vector kernels at the sizes of SmolLM2-135M (9 heads, 3 KV heads, head_dim 64, hidden 576, 49,152 tokens), per
// tier.

#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/float_mode.h"
#include "bench_tiers.h"
#include "cpu/vector.h"

using namespace treadle;
using namespace treadle::cpu;

namespace {

constexpr AttentionShape smol{9, 3, 64};

std::vector<float> random_floats(size_t count) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
}

template <CpuTier tier>
void norm(benchmark::State& state) {
    if (!bench::can_run(tier, state)) return;
    const FloatMode mode;
    const std::vector<float> delta(576, 1e-9f), gain = random_floats(576);
    std::vector<float> residual = random_floats(576), out(576);
    for (auto _ : state)
        kernels_of(tier).add_norm(residual.data(), delta.data(), gain.data(), 1e-5f, 576, out.data());
}

template <CpuTier tier>
void rope(benchmark::State& state) {
    if (!bench::can_run(tier, state)) return;
    const FloatMode mode;
    const std::vector<float> angles = random_floats(32);
    std::vector<float> cos_sin;
    for (const float angle : angles) {
        cos_sin.push_back(std::cos(angle));
        cos_sin.push_back(std::sin(angle));
    }
    std::vector<float> qkv = random_floats((smol.heads + 2 * smol.kv_heads) * smol.head_dim);
    for (auto _ : state)
        kernels_of(tier).rope(smol, {PairOrder::adjacent, 64, 1.0f}, cos_sin.data(), qkv.data());
}

template <CpuTier tier>
void silu(benchmark::State& state) {
    if (!bench::can_run(tier, state)) return;
    const FloatMode mode;
    const std::vector<float> gate_up = random_floats(2 * 1536);
    std::vector<float> out(1536);
    for (auto _ : state) kernels_of(tier).gate(GateKind::silu, gate_up.data(), 1536, out.data());
}

template <CpuTier tier>
void best(benchmark::State& state) {
    if (!bench::can_run(tier, state)) return;
    const FloatMode mode;
    std::vector<float> logits = random_floats(static_cast<size_t>(state.range(0)));
    for (float& logit : logits) logit *= 4;
    RowResult row;
    for (auto _ : state)
        kernels_of(tier).candidates(logits.data(), static_cast<int32_t>(logits.size()), 1.25f, &row);
}

}  // namespace

#define TREADLE_BENCH_TIER(tier)                             \
    BENCHMARK(norm<CpuTier::tier>)->Name("add_norm/" #tier); \
    BENCHMARK(rope<CpuTier::tier>)->Name("rope/" #tier);     \
    BENCHMARK(silu<CpuTier::tier>)->Name("gate/" #tier);     \
    BENCHMARK(best<CpuTier::tier>)->Name("candidates/" #tier)->Arg(49152)->Arg(262144);

TREADLE_CPU_TIERS(TREADLE_BENCH_TIER)
