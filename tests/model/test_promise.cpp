// SmolLM2-135M-Instruct itself: the golden hash of its logits, their distance from the outside oracle, the one promise for a few
// prompts, and the memory it takes. TREADLE_TEST_MODEL names the file.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cpu/kernels.h"
#include "engine_harness.h"
#include "oracle_golden.h"

using namespace treadle;
using namespace treadle::test;

namespace {

constexpr uint64_t golden_smollm2 = 10598008407489723559u;

const LoadedModel& model(cpu::CpuTier tier = cpu::CpuTier::automatic) {
    const char* path = std::getenv("TREADLE_TEST_MODEL");
    INFO("TREADLE_TEST_MODEL must name the SmolLM2-135M-Instruct file");
    REQUIRE(path != nullptr);
    static const std::unique_ptr<LoadedModel> best = load_path(path);
    static const std::unique_ptr<LoadedModel> scalar = load_path(path, cpu::CpuTier::scalar);
    return tier == cpu::CpuTier::scalar ? *scalar : *best;
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

TEST_CASE("the golden hash of SmolLM2's logits, whole, in chunks of 7, and of the scalar specification") {
    const std::vector<int32_t> tokens = first_tokens(64);
    const uint64_t whole = hash_of(logits_of(model(), tokens, 64));
    MESSAGE("observed hash: " << whole << ", code: " << model().model().weight_store().tier());
    CHECK(whole == golden_smollm2);
    CHECK(hash_of(logits_of(model(), tokens, 7)) == golden_smollm2);
    CHECK(hash_of(logits_of(model(cpu::CpuTier::scalar), tokens, 64)) == golden_smollm2);
}

TEST_CASE("SmolLM2's logits are as close to the float32 oracle as int8 activations allow") {
    OracleComparison comparison;
    size_t next = 0;
    for (const std::vector<int32_t>& chunk : golden().chunks) {
        const std::vector<float> logits = logits_of(model(), chunk, 128);
        const auto vocabulary = static_cast<size_t>(model().program().vocabulary);
        for (size_t i = 0; i < chunk.size(); i++, next++)
            comparison.add(golden().positions[next], {logits.data() + i * vocabulary, vocabulary});
    }
    MESSAGE("KL at least " << comparison.mean_bound() << ", same top token " << comparison.same_top() * 100
                           << "%");
    CHECK(comparison.positions() == 1024);
    CHECK(comparison.mean_bound() <= oracle_bound_max);
    CHECK(comparison.same_top() >= oracle_same_top_min);
}

TEST_CASE("SmolLM2's tokens do not depend on neighbours, chunks, cuts or threads") { check_promise(model()); }

TEST_CASE("nor do they with the cache in other formats, and each code gives the same") {
    constexpr std::pair<KvType, KvType> pairs[] = {{KvType::q8_0, KvType::q8_0},
                                                   {KvType::q8_0, KvType::tbq4},
                                                   {KvType::tbq4x, KvType::tbq4},
                                                   {KvType::tbq4, KvType::tbq4}};
    const auto loaded = load_path(std::getenv("TREADLE_TEST_MODEL"));
    const auto scalar = load_path(std::getenv("TREADLE_TEST_MODEL"), cpu::CpuTier::scalar);
    const std::vector<int32_t> tokens = first_tokens(40);
    for (const auto& [keys, values] : pairs) {
        CAPTURE(std::string(kv_type_name(keys)) + "/" + kv_type_name(values));
        loaded->keep_kv_as(keys, values);
        scalar->keep_kv_as(keys, values);
        CHECK(loaded->program().kept_dims == scalar->program().kept_dims);
        CHECK(hash_of(logits_of(*loaded, tokens, 40)) == hash_of(logits_of(*scalar, tokens, 40)));
        check_promise(*loaded);
    }
}

TEST_CASE("SmolLM2 takes at most 1.06 of its tensors' bytes, and 1.2 while it is loaded") {
    const ModelFacts& facts = model().model().facts();
    MESSAGE("tensors " << facts.tensor_bytes << ", packed " << facts.packed_bytes << ", peak "
                       << facts.load_peak_bytes);
    CHECK(static_cast<double>(facts.packed_bytes) <= 1.06 * static_cast<double>(facts.tensor_bytes));
    CHECK(static_cast<double>(facts.load_peak_bytes) <= 1.2 * static_cast<double>(facts.tensor_bytes));
}
