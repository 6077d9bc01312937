// Speed of the linear kernels on one thread, at the shapes of SmolLM2-135M, per type and count of rows; and of
// the quantization before them. Weights are taken in turn from a set larger than the caches, as a pass does, so
// that one row measures memory and many rows measure arithmetic.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "../support/whole_weight.h"
#include "base/float16.h"
#include "base/float_mode.h"
#include "bench_tiers.h"
#include "cpu/linear.h"
#include "quant/types.h"

using namespace treadle;
using namespace treadle::cpu;

namespace {

constexpr size_t cold_bytes = 96 << 20;

void* allocate(void*, size_t size, size_t alignment, int32_t) {
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void release(void*, void* pointer, size_t, size_t, int32_t) { std::free(pointer); }

// A tensor of random blocks whose f16 fields, at most two, are small numbers.
struct RandomTensor : WeightShape {
    RandomTensor(TensorType tensor_type, int64_t row_count, int64_t column_count) {
        name = "random";
        type = static_cast<uint32_t>(tensor_type);
        rows = row_count;
        columns = column_count;
        const TypeInfo& info = type_info(tensor_type);
        bytes = static_cast<uint64_t>(rows * columns) / info.block_values * info.block_bytes;
        data.resize(bytes);
        std::mt19937 random(1);
        for (uint8_t& byte : data) byte = static_cast<uint8_t>(random() & 0x2f);  // halves below 0.125
    }
    std::vector<uint8_t> data;
};

struct Weights {
    Weights(TensorType type, int64_t rows, int64_t columns) {
        const RandomTensor tensor(type, rows, columns);
        const size_t copies = std::max<size_t>(1, cold_bytes / tensor.bytes);
        for (size_t i = 0; i < copies; ++i) {
            Error error;
            packed.emplace_back();
            if (test::pack_whole(tensor, WeightUse::matrix, tensor.data.data(), &memory.weights,
                                 &packed.back(), &error) != Status::OK)
                std::exit(1);
        }
    }
    MemorySet memory{{nullptr, allocate, release}};
    std::vector<test::WholeWeight> packed;
};

struct Activations {
    Activations(int32_t rows, int32_t columns)
        : f32(static_cast<size_t>(rows) * static_cast<size_t>(columns)), q(f32.size()),
          scale(f32.size() / 32), sum(f32.size() / 16) {
        std::mt19937 random(2);
        for (float& value : f32) value = static_cast<float>(random() % 2001) * 1e-3f - 1.0f;
        scalar::kernels.quantize(f32.data(), static_cast<int32_t>(f32.size()), q.data(), scale.data(),
                                 sum.data());
        act = {q.data(), scale.data(), sum.data(), f32.data(), columns};
    }
    std::vector<float> f32;
    std::vector<int8_t> q;
    std::vector<float> scale;
    std::vector<int32_t> sum;
    Act act;
};

template <CpuTier tier, TensorType type>
void matrix(benchmark::State& state) {
    if (!bench::can_run(tier, state)) return;
    const FloatMode mode;
    const auto outputs = static_cast<int32_t>(state.range(0));
    const auto columns = static_cast<int32_t>(state.range(1));
    const auto rows = static_cast<int32_t>(state.range(2));
    const Weights weights(type, outputs, columns);
    const Activations activations(rows, columns);
    std::vector<float> out(static_cast<size_t>(rows) * static_cast<size_t>(outputs));
    size_t turn = 0;
    for (auto _ : state) {
        const PackedMatrix& w = weights.packed[turn++ % weights.packed.size()].matrix;
        kernels_of(tier).linear(w, nullptr, activations.act, nullptr, rows, 0, w.panels(), out.data(),
                                static_cast<size_t>(outputs));
        benchmark::DoNotOptimize(out.data());
    }
    const auto calls = static_cast<double>(state.iterations());
    state.counters["GMAC/s"] =
        benchmark::Counter(1e-9 * rows * outputs * columns * calls, benchmark::Counter::kIsRate);
    state.counters["GB/s"] = benchmark::Counter(1e-9 * static_cast<double>(weights.packed[0].bytes) * calls,
                                                benchmark::Counter::kIsRate);
}

void smol_shapes(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"outputs", "columns", "rows"});
    for (const int64_t rows : {1, 2, 4, 8, 64}) {
        bench->Args({3072, 576, rows});
        bench->Args({576, 1536, rows});
    }
}

void block_256_shapes(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"outputs", "columns", "rows"});
    for (const int64_t rows : {1, 4, 64}) bench->Args({2048, 1024, rows});
}

template <CpuTier tier>
void quantization(benchmark::State& state) {
    if (!bench::can_run(tier, state)) return;
    const FloatMode mode;
    Activations a(1, 1536);
    for (auto _ : state) {
        kernels_of(tier).quantize(a.f32.data(), 1536, a.q.data(), a.scale.data(), a.sum.data());
        benchmark::DoNotOptimize(a.q.data());
    }
    state.counters["Gvalue/s"] = benchmark::Counter(1e-9 * 1536 * static_cast<double>(state.iterations()),
                                                    benchmark::Counter::kIsRate);
}

void head_shapes(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"outputs", "columns", "rows"});
    for (const int64_t rows : {1, 8}) bench->Args({49152, 576, rows});
}

}  // namespace

#define TREADLE_BENCH_LINEAR(tier, type, shapes) \
    BENCHMARK(matrix<CpuTier::tier, TensorType::type>)->Name("linear " #tier " " #type)->Apply(shapes)
#define TREADLE_BENCH_TIER(tier)                          \
    TREADLE_BENCH_LINEAR(tier, Q4_1, smol_shapes);        \
    TREADLE_BENCH_LINEAR(tier, Q4_0, smol_shapes);        \
    TREADLE_BENCH_LINEAR(tier, Q8_0, smol_shapes);        \
    TREADLE_BENCH_LINEAR(tier, Q8_0, head_shapes);        \
    TREADLE_BENCH_LINEAR(tier, Q2_K, block_256_shapes);   \
    TREADLE_BENCH_LINEAR(tier, Q3_K, block_256_shapes);   \
    TREADLE_BENCH_LINEAR(tier, Q4_K, block_256_shapes);   \
    TREADLE_BENCH_LINEAR(tier, Q5_K, block_256_shapes);   \
    TREADLE_BENCH_LINEAR(tier, Q6_K, block_256_shapes);   \
    TREADLE_BENCH_LINEAR(tier, IQ4_XS, block_256_shapes); \
    TREADLE_BENCH_LINEAR(tier, MXFP4, block_256_shapes);  \
    TREADLE_BENCH_LINEAR(tier, F16, block_256_shapes);    \
    TREADLE_BENCH_LINEAR(tier, F32, block_256_shapes);    \
    BENCHMARK(quantization<CpuTier::tier>)->Name("quantize " #tier " 1536");

TREADLE_CPU_TIERS(TREADLE_BENCH_TIER)
