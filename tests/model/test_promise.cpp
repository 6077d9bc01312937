// SmolLM2-135M-Instruct itself: the golden hash of its logits, their distance from the outside oracle, the one promise for a few
// prompts, and the memory it takes. TREADLE_TEST_MODEL names the file.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cpu/kernels.h"
#include "engine_harness.h"
#include "oracle_golden.h"
#include "tiers.h"

using namespace treadle;
using namespace treadle::test;

namespace {

constexpr uint64_t golden_smollm2 = 10598008407489723559u;

std::unique_ptr<LoadedModel> load(cpu::CpuTier tier) {
    const char* path = std::getenv("TREADLE_TEST_MODEL");
    INFO("TREADLE_TEST_MODEL must name the SmolLM2-135M-Instruct file");
    REQUIRE(path != nullptr);
    return load_path(path, tier);
}

const LoadedModel& model() {
    static const std::unique_ptr<LoadedModel> best = load(cpu::CpuTier::automatic);
    return *best;
}

std::string beside(const char* name) {
    const std::string here = __FILE__;
    return here.substr(0, here.rfind('/') + 1) + name;
}

const OracleGolden& golden() {
    static const OracleGolden read(beside("gpl3_tokens.txt"), beside("smollm2_oracle.txt"));
    return read;
}

uint64_t hash_of(const std::vector<float>& logits) {
    return hash_bytes(logits.data(), logits.size() * sizeof(float));
}

std::vector<int32_t> first_tokens(size_t count) {
    REQUIRE(golden().chunks.size() == 4);
    return {golden().chunks[0].begin(), golden().chunks[0].begin() + static_cast<long>(count)};
}

// The limits of a pair of cache formats; quality_kl is what the pair costs in a float32 forward.
struct KvPair {
    KvType keys, values;
    double quality_kl;
    double same_top_min;
};

constexpr KvPair kv_pairs[] = {{KvType::f16, KvType::f16, 0, oracle_same_top_min},
                               {KvType::q8_0, KvType::q8_0, 0.0009, 0.95},
                               {KvType::q8_0, KvType::tbq4, 0.0076, 0.93},
                               {KvType::tbq4x, KvType::tbq4, 0.0199, 0.90},
                               {KvType::tbq4, KvType::tbq4, 0.083, 0.82}};

std::string name_of(const KvPair& pair) {
    return std::string(kv_type_name(pair.keys)) + "/" + kv_type_name(pair.values);
}

OracleComparison compare_with_oracle(const LoadedModel& loaded) {
    OracleComparison comparison;
    size_t next = 0;
    for (const std::vector<int32_t>& chunk : golden().chunks) {
        const std::vector<float> logits = logits_of(loaded, chunk, 128);
        const auto vocabulary = static_cast<size_t>(loaded.program().vocabulary);
        for (size_t i = 0; i < chunk.size(); i++, next++)
            comparison.add(golden().positions[next], {logits.data() + i * vocabulary, vocabulary});
    }
    return comparison;
}

void check_promise(const LoadedModel& loaded) {
    std::vector<Job> jobs(5);
    for (size_t i = 0; i < jobs.size(); i++) {
        const std::vector<int32_t>& chunk = golden().chunks[i % 4];
        jobs[i].prompt.assign(chunk.begin(), chunk.begin() + static_cast<long>(9 + 17 * i));
        jobs[i].max_tokens = 12;
        jobs[i].sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
        jobs[i].sampling.top_p = 0.95f;
        jobs[i].sampling.seed = i;
    }
    std::vector<std::vector<int32_t>> expected;
    for (const Job& job : jobs) expected.push_back(run_jobs(loaded, {job}, {}).tokens[0]);
    Setting setting;
    setting.max_sequences = 8;
    const Outcome together = run_jobs(loaded, jobs, setting);
    CHECK(together.tokens == expected);
    setting.threads = 2;
    setting.max_batch_tokens = 19;
    setting.backwards = true;
    Outcome other = run_jobs(loaded, jobs, setting);
    CHECK(other.tokens == expected);
    setting.cut_each_tile = true;
    setting.submit_every = 40;
    other = run_jobs(loaded, jobs, setting);
    CHECK(other.tokens == expected);
}

}  // namespace

TEST_CASE("the golden hash of SmolLM2's logits, whole, in chunks of 7, and of every code") {
    const std::vector<int32_t> tokens = first_tokens(64);
    const uint64_t whole = hash_of(logits_of(model(), tokens, 64));
    MESSAGE("observed hash: " << whole << ", code: " << model().model().weight_store().tier());
    CHECK(whole == golden_smollm2);
    CHECK(hash_of(logits_of(model(), tokens, 7)) == golden_smollm2);
    for (const cpu::CpuTier tier : runnable_tiers()) {
        CAPTURE(std::string(cpu::kernels_of(tier).tier));
        CHECK(hash_of(logits_of(*load(tier), tokens, 64)) == golden_smollm2);
    }
}

TEST_CASE(
    "SmolLM2's logits are as close to the float32 oracle as int8 activations and the cache's formats allow") {
    const auto loaded = load(cpu::CpuTier::automatic);
    for (const KvPair& pair : kv_pairs) {
        CAPTURE(name_of(pair));
        loaded->keep_kv_as(pair.keys, pair.values);
        const OracleComparison comparison = compare_with_oracle(*loaded);
        MESSAGE(name_of(pair) << ": KL at least " << comparison.mean_bound() << ", same top token "
                              << comparison.same_top() * 100 << "%");
        CHECK(comparison.positions() == 1024);
        CHECK(comparison.mean_bound() <= oracle_bound_max + 1.15 * pair.quality_kl);
        CHECK(comparison.same_top() >= pair.same_top_min);
    }
}

TEST_CASE(
    "SmolLM2's tokens do not depend on neighbours, chunks, cuts or threads, nor on the code, with each "
    "format of the cache") {
    const std::vector<int32_t> tokens = first_tokens(40);
    std::vector<std::unique_ptr<LoadedModel>> codes;
    for (const cpu::CpuTier tier : runnable_tiers()) codes.push_back(load(tier));
    for (const KvPair& pair : kv_pairs) {
        CAPTURE(name_of(pair));
        for (const auto& code : codes) code->keep_kv_as(pair.keys, pair.values);
        const uint64_t expected = hash_of(logits_of(*codes.front(), tokens, 40));
        for (const auto& code : codes) {
            CAPTURE(code->model().weight_store().tier());
            CHECK(code->program().kept_dims == codes.front()->program().kept_dims);
            CHECK(hash_of(logits_of(*code, tokens, 40)) == expected);
        }
        check_promise(*codes.back());
    }
}

TEST_CASE("SmolLM2 takes at most 1.06 of its tensors' bytes, and 1.2 while it is loaded") {
    const ModelFacts& facts = model().model().facts();
    MESSAGE("tensors " << facts.tensor_bytes << ", packed " << facts.packed_bytes << ", peak "
                       << facts.load_peak_bytes);
    CHECK(static_cast<double>(facts.packed_bytes) <= 1.06 * static_cast<double>(facts.tensor_bytes));
    CHECK(static_cast<double>(facts.load_peak_bytes) <= 1.2 * static_cast<double>(facts.tensor_bytes));
}
