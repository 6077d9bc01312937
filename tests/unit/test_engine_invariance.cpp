// The one promise, over random tiny models and workloads, by bytes of logits and tokens: alone = in a batch
// = chunked at every size = cut after every tile = in any order of submission = on any number of threads or
// the host's = on every tier.
#include <doctest/doctest.h>

#include <xmmintrin.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "cpu/kernels.h"
#include "engine_harness.h"
#include "tiers.h"

using namespace treadle;
using namespace treadle::test;

namespace {

TinyLlamaOptions random_model(Random& random) {
    static constexpr TensorType types[] = {
        TensorType::F32,  TensorType::F16,  TensorType::BF16, TensorType::Q4_0,   TensorType::Q4_1,
        TensorType::Q5_0, TensorType::Q5_1, TensorType::Q8_0, TensorType::IQ4_NL, TensorType::MXFP4};
    const auto type = [&] { return types[random.below(std::size(types))]; };
    TinyLlamaOptions options;
    options.layers = 1 + random.below(3);
    options.kv_heads = 1 + random.below(3);
    options.heads = options.kv_heads * (1 + random.below(3));
    options.head_dim = 16 * (1 + random.below(3));
    options.hidden = 32 * (1 + random.below(4));
    options.feed_forward = 32 * (1 + random.below(6));
    options.vocabulary = 288 + random.below(300);
    options.tied_head = random.below(2) == 0;
    options.embedding = type();
    options.attention_q = type();
    options.attention_k = type();
    options.attention_v = type();
    options.attention_output = type();
    options.gate = type();
    options.up = type();
    options.down = type();
    options.output = type();
    return options;
}

std::vector<Job> random_jobs(Random& random, uint32_t vocabulary) {
    std::vector<Job> jobs(1 + random.below(16));
    for (Job& job : jobs) {
        job.prompt.resize(1 + random.below(70));
        for (int32_t& token : job.prompt) token = static_cast<int32_t>(random.below(vocabulary));
        job.max_tokens = static_cast<int32_t>(1 + random.below(20));
        job.sampling.temperature =
            random.below(3) == 0 ? 0.0f : static_cast<float>(0.2 + random.uniform() * 2);
        job.sampling.top_k = random.below(2) == 0 ? 0 : static_cast<int32_t>(1 + random.below(400));
        job.sampling.top_p = random.below(2) == 0 ? 1.0f : static_cast<float>(0.5 + random.uniform() / 2);
        job.sampling.min_p = random.below(2) == 0 ? 0.0f : static_cast<float>(random.uniform() / 10);
        job.sampling.seed = random.next();
        job.first_sample = random.below(3);
    }
    return jobs;
}

void check_same(const Outcome& expected, const Outcome& got, const std::string& what) {
    CAPTURE(what);
    CHECK(got.tokens == expected.tokens);
    CHECK(got.rows == expected.rows);
}

// A host that runs bodies one after another, last first, in the worst floating-point mode.
void backwards_on_caller(void*, void (*body)(void*, int32_t), void* context, int32_t count) {
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(0x1F80 | 0x8000 | 0x0040 | 0x2000);  // flush to zero, denormals are zero, round down
    for (int32_t i = count - 1; i >= 0; i--) body(context, i);
    _mm_setcsr(mode);
}

// A host with threads of its own, likewise in another mode.
void on_threads(void*, void (*body)(void*, int32_t), void* context, int32_t count) {
    std::vector<std::thread> threads;
    for (int32_t i = 0; i < count; i++)
        threads.emplace_back([=] {
            _mm_setcsr(0x1F80 | 0x8000 | 0x0040 | 0x2000);
            body(context, i);
        });
    for (std::thread& thread : threads) thread.join();
}

Outcome alone(const LoadedModel& model, const std::vector<Job>& jobs) {
    Outcome all;
    for (const Job& job : jobs) {
        Outcome one = run_jobs(model, {job}, {});
        all.tokens.push_back(one.tokens[0]);
        all.rows.insert(all.rows.end(), one.rows.begin(), one.rows.end());
    }
    std::sort(all.rows.begin(), all.rows.end());
    return all;
}

struct KvTypes {
    KvType keys = KvType::f16;
    KvType values = KvType::f16;
};

std::unique_ptr<LoadedModel> load_with(const Bytes& file, cpu::CpuTier tier, KvTypes types) {
    auto model = load_bytes(file, tier);
    model->keep_kv_as(types.keys, types.values);
    return model;
}

void check_invariance(Random& random, const TinyLlamaOptions& options, KvTypes types) {
    const Bytes file = tiny_llama(random.next(), options).bytes();
    const auto model = load_with(file, cpu::CpuTier::scalar, types);
    const std::vector<Job> jobs = random_jobs(random, options.vocabulary);
    const Outcome expected = alone(*model, jobs);

    Setting all;
    all.max_sequences = 16;
    check_same(expected, run_jobs(*model, jobs, all), "in one batch");
    for (const int32_t chunk : {1, 2, 7, 15, 16, 17, 33}) {
        Setting setting = all;
        setting.max_batch_tokens = chunk;
        check_same(expected, run_jobs(*model, jobs, setting), "batches of " + std::to_string(chunk));
    }
    Setting ordered = all;
    ordered.max_sequences = 5;
    ordered.backwards = true;
    ordered.submit_every = 3;
    check_same(expected, run_jobs(*model, jobs, ordered), "backwards, one every three steps");
    Setting scarce = all;
    scarce.kv_blocks = 8;
    check_same(expected, run_jobs(*model, jobs, scarce), "with a small pool");
    Setting cut = all;
    cut.cut_each_tile = true;
    cut.max_batch_tokens = 24;
    check_same(expected, run_jobs(*model, jobs, cut), "cut after each tile");
    for (const int32_t threads : {2, 3}) {
        Setting setting = all;
        setting.threads = threads;
        check_same(expected, run_jobs(*model, jobs, setting), std::to_string(threads) + " threads");
        setting.cut_each_tile = true;
        check_same(expected, run_jobs(*model, jobs, setting), std::to_string(threads) + " threads, cut");
    }
    for (const auto run : {backwards_on_caller, on_threads}) {
        Setting setting = all;
        setting.threads = 3;
        setting.parallel_for = {nullptr, run};
        setting.max_batch_tokens = 64;
        check_same(expected, run_jobs(*model, jobs, setting), "the host's parallel_for");
    }
    for (const cpu::CpuTier tier : test::runnable_tiers()) {
        if (tier == cpu::CpuTier::scalar) continue;
        const auto fast = load_with(file, tier, types);
        check_same(expected, run_jobs(*fast, jobs, all), cpu::kernels_of(tier).tier);
        check_same(expected, run_jobs(*fast, jobs, cut), cpu::kernels_of(tier).tier);
    }
}

}  // namespace

TEST_CASE("tokens and logits do not depend on neighbours, chunks, cuts, order, threads or code") {
    for (uint64_t seed = 1; seed <= 6; seed++) {
        CAPTURE(seed);
        Random random(seed);
        const TinyLlamaOptions options = random_model(random);
        check_invariance(random, options, {});
    }
}

TEST_CASE("nor do they with any format of the cache") {
    constexpr KvTypes all[] = {{KvType::q8_0, KvType::q8_0},
                               {KvType::q8_0, KvType::tbq4},
                               {KvType::tbq4x, KvType::tbq4},
                               {KvType::tbq4, KvType::tbq4},
                               {KvType::f16, KvType::tbq4}};
    uint64_t seed = 100;
    for (const KvTypes types : all) {
        CAPTURE(std::string(kv_type_name(types.keys)) + "/" + kv_type_name(types.values));
        Random random(seed++);
        TinyLlamaOptions options = random_model(random);
        options.head_dim = seed % 3 == 0 ? 128 : 64;
        check_invariance(random, options, types);
    }
}

TEST_CASE("every type of model file runs, and all tiers agree on it") {
    for (const TensorType type :
         {TensorType::F32, TensorType::F16, TensorType::BF16, TensorType::Q4_0, TensorType::Q4_1,
          TensorType::Q5_0, TensorType::Q5_1, TensorType::Q8_0, TensorType::Q2_K, TensorType::Q3_K,
          TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K, TensorType::IQ4_NL, TensorType::IQ4_XS,
          TensorType::MXFP4}) {
        CAPTURE(static_cast<int>(type));
        TinyLlamaOptions options;
        options.layers = 1;
        options.hidden = options.feed_forward = 256;
        options.heads = 4;
        options.head_dim = 64;
        options.tied_head = false;
        options.set_all(type);
        const Bytes file = tiny_llama(99, options).bytes();
        const std::vector<Job> jobs = {{{5, 6, 7, 8, 9}, 6, {}, 0}, {{200}, 9, {}, 1}};
        Setting both;
        both.max_sequences = 2;
        const Outcome expected = run_jobs(*load_bytes(file, cpu::CpuTier::scalar), jobs, both);
        CHECK(expected.statuses == std::vector<Status>(2, Status::OK));
        CHECK(expected.rows.size() == 15);
        for (const cpu::CpuTier tier : test::runnable_tiers())
            check_same(expected, run_jobs(*load_bytes(file, tier), jobs, both), cpu::kernels_of(tier).tier);
    }
}
