// The golden hash of a tiny model: the same on every machine, compiler, build type and code. It covers slices of long
// rows (K = 2,080), several spans and groups of attention (4,400 positions) and cuts of the prompt.
#include <doctest/doctest.h>

#include "cpu/kernels.h"
#include "engine_harness.h"
#include "tiers.h"

using namespace treadle;
using namespace treadle::test;

namespace {

constexpr uint64_t golden_tiny = 2115241388090210125u;
constexpr size_t positions = 4400;

TinyLlamaOptions golden_options() {
    TinyLlamaOptions options;
    options.layers = 1;
    options.hidden = 32;
    options.heads = 2;
    options.kv_heads = 1;
    options.head_dim = 16;
    options.feed_forward = 2080;
    options.vocabulary = 288;
    options.context = 4608;
    options.embedding = TensorType::Q8_0;
    options.attention_q = TensorType::Q4_1;
    options.attention_k = TensorType::Q5_0;
    options.attention_v = TensorType::F16;
    options.attention_output = TensorType::Q4_0;
    options.gate = TensorType::Q5_1;
    options.up = TensorType::BF16;
    options.down = TensorType::Q4_1;
    return options;
}

uint64_t hash_of(cpu::CpuTier tier, int32_t chunk) {
    const auto model = load_bytes(tiny_llama(2080, golden_options()).bytes(), tier);
    Random random(4400);
    std::vector<int32_t> tokens(positions);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(288));
    const std::vector<float> logits = logits_of(*model, tokens, chunk);
    return hash_bytes(logits.data(), logits.size() * sizeof(float));
}

}  // namespace

TEST_CASE("the golden hash of the tiny model, whole and in chunks of 7") {
    const uint64_t scalar = hash_of(cpu::CpuTier::scalar, 512);
    MESSAGE("observed hash: " << scalar);
    CHECK(scalar == golden_tiny);
    for (const cpu::CpuTier tier : test::runnable_tiers()) {
        if (tier == cpu::CpuTier::scalar) continue;
        CHECK(hash_of(tier, 4400) == golden_tiny);
        CHECK(hash_of(tier, 7) == golden_tiny);
    }
}
