// Speed of attention and of writing the cache in each of its formats, per tier, on the shape of SmolLM2-135M (9 heads, 3 KV
// heads, head_dim 64). GMAC/s counts two multiply-adds per row, head, position and dimension.
//
// Decoding reads every layer's cache once a token, so that long contexts come from memory: the bench goes round through 30
// layers, too.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "base/float_mode.h"
#include "bench_tiers.h"
#include "cpu/attention.h"
#include "support/kv_test_cache.h"

using namespace treadle;
using namespace treadle::cpu;

namespace {

constexpr AttentionShape smol{9, 3, 64};

struct Pair {
    KvType keys;
    KvType values;
};

std::vector<float> random_floats(size_t count) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
}

std::vector<int32_t> blocks_in_order(int32_t blocks, bool shuffled) {
    std::vector<int32_t> table(static_cast<size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    std::mt19937 random(7);
    if (shuffled) std::shuffle(table.begin(), table.end(), random);
    return table;
}

// `rows` rows that end at position `context` - 1, all KV heads of the next layer.
template <CpuTier tier>
void attend(benchmark::State& state, Pair pair, bool shuffled) {
    if (!bench::can_run(tier, state)) return;
    const FloatMode mode;
    const auto context = static_cast<int32_t>(state.range(0));
    const auto rows = static_cast<int32_t>(state.range(1));
    const auto layers = static_cast<size_t>(state.range(2));
    const int32_t blocks = (context + 15) / 16;
    test::KvTestCache filled(smol.kv_heads, smol.head_dim, blocks, pair.keys, pair.values);
    const std::vector<float> floats =
        random_floats(static_cast<size_t>(2 * smol.kv_heads * smol.head_dim + context));
    for (int32_t slot = 0; slot < blocks * 16; slot++) {
        const float* keys = floats.data() + std::min(slot, context - 1);
        kernels_of(best_tier()).write_kv(filled.layer(), keys, keys + smol.kv_heads * smol.head_dim, slot);
    }
    std::vector<test::KvTestCache> caches(layers, filled);
    const std::vector<int32_t> table = blocks_in_order(blocks, shuffled);
    const size_t row_floats = static_cast<size_t>(smol.heads) * smol.head_dim;
    std::vector<float> queries = random_floats(static_cast<size_t>(rows) * row_floats), out(queries.size());
    for (float& query : queries) query *= 1.44f / 8;
    std::vector<float> scratch(attention_scratch_bytes(smol, context) / sizeof(float) + 16);
    void* aligned =
        reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~uintptr_t{63});
    size_t next = 0;
    for (auto _ : state) {
        const LayerCache layer = caches[next].layer();
        next = (next + 1) % layers;
        for (int32_t head = 0; head < smol.kv_heads; head++)
            kernels_of(tier).attend(smol, layer, table.data(), context - rows, rows, head, queries.data(),
                                    row_floats, out.data(), row_floats, aligned);
    }
    const double macs = 2.0 * rows * smol.heads * smol.head_dim * context;
    state.counters["GMAC/s"] = benchmark::Counter(macs * 1e-9 * static_cast<double>(state.iterations()),
                                                  benchmark::Counter::kIsRate);
}

template <CpuTier tier>
void write(benchmark::State& state, Pair pair) {
    if (!bench::can_run(tier, state)) return;
    const FloatMode mode;
    test::KvTestCache cache(smol.kv_heads, smol.head_dim, 1, pair.keys, pair.values);
    const std::vector<float> keys = random_floats(2 * smol.kv_heads * smol.head_dim);
    for (auto _ : state)
        kernels_of(tier).write_kv(cache.layer(), keys.data(), keys.data() + keys.size() / 2, 5);
}

void contexts(benchmark::internal::Benchmark* bench) {
    for (const int64_t rows : {1, 8})
        for (const int64_t context : {128, 512, 2048, 8192}) bench->Args({context, rows, 1});
    for (const int64_t context : {4096, 32768}) bench->Args({context, 1, 30});
    bench->ArgNames({"context", "rows", "layers"});
}

void register_tier(const char* tier, void (*attend)(benchmark::State&, Pair, bool),
                   void (*write)(benchmark::State&, Pair)) {
    constexpr Pair pairs[] = {{KvType::f16, KvType::f16},
                              {KvType::q8_0, KvType::q8_0},
                              {KvType::q8_0, KvType::tbq4},
                              {KvType::tbq4x, KvType::tbq4},
                              {KvType::tbq4, KvType::tbq4}};
    for (const Pair pair : pairs) {
        const std::string name =
            std::string(kv_type_name(pair.keys)) + "-" + kv_type_name(pair.values) + "/" + tier;
        contexts(benchmark::RegisterBenchmark(("attend " + name).c_str(), attend, pair, false));
        contexts(benchmark::RegisterBenchmark(("attend_shuffled " + name).c_str(), attend, pair, true));
        benchmark::RegisterBenchmark(("write_kv " + name).c_str(), write, pair);
    }
}

}  // namespace

int main(int argc, char** argv) {
#define TREADLE_BENCH_TIER(tier) register_tier(#tier, attend<CpuTier::tier>, write<CpuTier::tier>);
    TREADLE_CPU_TIERS(TREADLE_BENCH_TIER)
#undef TREADLE_BENCH_TIER
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    benchmark::RunSpecifiedBenchmarks();
}
