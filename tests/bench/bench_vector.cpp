// Speed of attention and the vector kernels at the sizes of SmolLM2-135M (9 heads, 3 KV heads, head_dim 64, hidden 576, 49,152
// tokens), per tier. GMAC/s counts two multiply-adds per row, head, position and dimension.

#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/float16.h"
#include "base/float_mode.h"
#include "bench_tiers.h"
#include "cpu/attention.h"
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

// One layer, all KV heads: `rows` rows that end at position `context` - 1; blocks lie in reverse order.
template <CpuTier tier>
void attention(benchmark::State& state) {
    if (!bench::can_run(tier, state)) return;
    const FloatMode mode;
    const int32_t context = static_cast<int32_t>(state.range(0)), rows = static_cast<int32_t>(state.range(1));
    const size_t block_halves = static_cast<size_t>(smol.kv_heads) * smol.head_dim * 16;
    const int32_t blocks = (context + 15) / 16;
    std::vector<uint16_t> cache;
    for (const float value : random_floats(2 * block_halves * blocks)) cache.push_back(f16_from_f32(value));
    std::vector<int32_t> block_table(blocks);
    for (int32_t i = 0; i < blocks; i++) block_table[i] = blocks - 1 - i;
    const size_t row_floats = static_cast<size_t>(smol.heads) * smol.head_dim;
    std::vector<float> queries = random_floats(rows * row_floats), out(rows * row_floats);
    for (float& query : queries) query *= 1.44f / 8;
    std::vector<float> scratch(attention_scratch_bytes(smol, context) / sizeof(float) + 16);
    void* aligned =
        reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~uintptr_t{63});
    uint16_t* const planes[] = {cache.data(), cache.data() + block_halves};
    const LayerCache layer{&planes[0], &planes[1], 2 * block_halves, 24};  // all in one slab
    for (auto _ : state)
        for (int32_t head = 0; head < smol.kv_heads; head++)
            kernels_of(tier).attend(smol, layer, block_table.data(), context - rows, rows, head,
                                    queries.data(), row_floats, out.data(), row_floats, aligned);
    const double macs = 2.0 * rows * smol.heads * smol.head_dim * context;
    state.counters["GMAC/s"] = benchmark::Counter(macs * 1e-9 * static_cast<double>(state.iterations()),
                                                  benchmark::Counter::kIsRate);
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
    const size_t block_halves = static_cast<size_t>(smol.kv_heads) * smol.head_dim * 16;
    std::vector<uint16_t> cache(2 * block_halves);
    const std::vector<float> angles = random_floats(32);
    std::vector<float> cos_sin;
    for (const float angle : angles) {
        cos_sin.push_back(std::cos(angle));
        cos_sin.push_back(std::sin(angle));
    }
    std::vector<float> qkv = random_floats((smol.heads + 2 * smol.kv_heads) * smol.head_dim);
    uint16_t* const planes[] = {cache.data(), cache.data() + block_halves};
    for (auto _ : state)
        kernels_of(tier).rope_write(smol, {PairOrder::adjacent, 64, 1.0f}, cos_sin.data(), qkv.data(), 5,
                                    {&planes[0], &planes[1], 2 * block_halves, 24});
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

void contexts(benchmark::internal::Benchmark* bench) {
    for (const int64_t rows : {1, 8})
        for (const int64_t context : {128, 512, 2048, 8192}) bench->Args({context, rows});
    bench->ArgNames({"context", "rows"});
}

}  // namespace

#define TREADLE_BENCH_TIER(tier)                                                 \
    BENCHMARK(attention<CpuTier::tier>)->Name("attend/" #tier)->Apply(contexts); \
    BENCHMARK(norm<CpuTier::tier>)->Name("add_norm/" #tier);                     \
    BENCHMARK(rope<CpuTier::tier>)->Name("rope_write/" #tier);                   \
    BENCHMARK(silu<CpuTier::tier>)->Name("gate/" #tier);                         \
    BENCHMARK(best<CpuTier::tier>)->Name("candidates/" #tier)->Arg(49152)->Arg(262144);

TREADLE_CPU_TIERS(TREADLE_BENCH_TIER)
