// Hyper-parameters: what is read, and that each wrong value has its status and a message that names key and
// value.
#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "base/limits.h"
#include "model_fixture.h"

using namespace treadle;
using namespace treadle::test;

namespace {

struct Read {
    TestAllocator allocator;
    Memory memory{allocator.hooks(), MemoryKind::other};
    HyperParameters got;
    Error error;
    Status status;

    explicit Read(const GgufWriter& file) {
        const Bytes bytes = file.bytes();
        const Owned<FileReader> reader = open_memory(bytes.data(), bytes.size(), &memory);
        Owned<GgufFile> gguf;
        REQUIRE(read_gguf(*reader, {}, &memory, &gguf, &error) == Status::OK);
        status = read_hyper_parameters(gguf->metadata(), &got, &error);
    }
};

// A file without tensors is enough here, and quicker.
GgufWriter metadata_only(const TinyLlamaOptions& options = {}) {
    GgufWriter file = tiny_llama(1, options);
    file.tensors.clear();
    return file;
}

template <class T>
Read read_with(const char* key, T value) {
    GgufWriter file = metadata_only();
    file.set(key, value);
    return Read(file);
}

void check_refused(const Read& read, Status status, const char* words) {
    CAPTURE(words);
    CAPTURE(read.error.message);
    CHECK(std::string(status_name(read.status)) == status_name(status));
    CHECK(read.error.status == read.status);
    CHECK(std::string(read.error.message).find(words) != std::string::npos);
}

}  // namespace

TEST_CASE("hyper-parameters: a llama file") {
    TinyLlamaOptions options;
    options.rope_base = 500000.0f;
    const Read read(metadata_only(options));
    REQUIRE(read.status == Status::OK);
    CHECK(read.got.architecture == Architecture::llama);
    CHECK(read.got.layers == 2);
    CHECK(read.got.context == 256);
    CHECK(read.got.hidden == 64);
    CHECK(read.got.feed_forward == 96);
    CHECK(read.got.heads == 4);
    CHECK(read.got.kv_heads == 2);
    CHECK(read.got.head_dim == 16);
    CHECK(read.got.vocabulary == 320);
    CHECK(read.got.norm_epsilon == 1e-5f);
    CHECK(read.got.rope.pair_order == PairOrder::adjacent);
    CHECK(read.got.rope.rotary_dims == 16);
    CHECK(read.got.rope.freq_base == 500000.0);
    CHECK(read.got.rope.scaling == RopeScaling::none);
    CHECK(read.got.rope.attention_factor == 1.0);
}

TEST_CASE("hyper-parameters: a qwen2 file turns halves") {
    TinyLlamaOptions options;
    options.architecture = "qwen2";
    const Read read(metadata_only(options));
    REQUIRE(read.status == Status::OK);
    CHECK(read.got.architecture == Architecture::qwen2);
    CHECK(read.got.rope.pair_order == PairOrder::halves);
}

TEST_CASE("hyper-parameters: defaults of keys that may be absent") {
    GgufWriter file = metadata_only();
    for (const char* key :
         {"llama.attention.head_count_kv", "llama.attention.key_length", "llama.attention.value_length",
          "llama.rope.dimension_count", "llama.rope.freq_base", "llama.vocab_size"})
        file.remove(key);
    const Read read(file);
    REQUIRE(read.status == Status::OK);
    CHECK(read.got.kv_heads == 4);
    CHECK(read.got.head_dim == 16);
    CHECK(read.got.rope.rotary_dims == 16);
    CHECK(read.got.rope.freq_base == 10000.0);
    CHECK(read.got.vocabulary == 320);
}

TEST_CASE("hyper-parameters: counts per layer are read where they are all equal") {
    GgufWriter file = metadata_only();
    file.set("llama.attention.head_count_kv", std::vector<int32_t>{2, 2});
    file.set("llama.feed_forward_length", std::vector<uint32_t>{96, 96});
    const Read read(file);
    REQUIRE(read.status == Status::OK);
    CHECK(read.got.kv_heads == 2);
    CHECK(read.got.feed_forward == 96);

    file.set("llama.attention.head_count_kv", std::vector<int32_t>{2, 4});
    check_refused(Read(file), Status::UNSUPPORTED_ARCHITECTURE, "llama.attention.head_count_kv[1] is 4");
    file.set("llama.attention.head_count_kv", std::vector<int32_t>{2, 2, 2});
    check_refused(Read(file), Status::CORRUPT, "llama.attention.head_count_kv has 3 values");
    file.set("llama.attention.head_count_kv", std::vector<int32_t>{-2, -2});
    check_refused(Read(file), Status::CORRUPT, "llama.attention.head_count_kv[0]");
    file.set("llama.attention.head_count_kv", std::vector<int32_t>{0, 0});
    check_refused(Read(file), Status::CORRUPT, "llama.attention.head_count_kv is 0");
    file.set("llama.attention.head_count_kv", std::vector<float>{2, 2});
    check_refused(Read(file), Status::CORRUPT, "llama.attention.head_count_kv");
}

TEST_CASE("hyper-parameters: each count is checked") {
    struct Count {
        const char* key;
        uint32_t highest;
    };
    const Count counts[] = {
        {"llama.block_count", limits::layers_max},
        {"llama.context_length", limits::context_max},
        {"llama.embedding_length", limits::hidden_max},
        {"llama.feed_forward_length", limits::feed_forward_max},
        {"llama.attention.head_count", limits::heads_max},
        {"llama.attention.head_count_kv", limits::heads_max},
        {"llama.attention.key_length", limits::head_dim_max},
        {"llama.attention.value_length", limits::head_dim_max},
        {"llama.rope.dimension_count", limits::head_dim_max},
        {"llama.vocab_size", limits::vocabulary_max},
    };
    for (const Count& count : counts) {
        check_refused(read_with(count.key, 0u), Status::CORRUPT, (std::string(count.key) + " is 0").c_str());
        check_refused(read_with(count.key, count.highest + 1), Status::LIMIT,
                      (std::string(count.key) + " is " + std::to_string(count.highest + 1)).c_str());
        check_refused(read_with(count.key, UINT64_MAX), Status::LIMIT, count.key);
        check_refused(read_with(count.key, int32_t{-1}), Status::LIMIT, count.key);
        check_refused(read_with(count.key, "eight"), Status::CORRUPT, count.key);
        check_refused(read_with(count.key, 8.0f), Status::CORRUPT, count.key);
    }
}

TEST_CASE("hyper-parameters: what must be there") {
    for (const char* key :
         {"general.architecture", "llama.block_count", "llama.context_length", "llama.embedding_length",
          "llama.feed_forward_length", "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon",
          "tokenizer.ggml.tokens"}) {
        GgufWriter file = metadata_only();
        file.remove(key);
        check_refused(Read(file), Status::CORRUPT, key);
    }
}

TEST_CASE("hyper-parameters: other architectures and forwards are refused") {
    check_refused(read_with("general.architecture", "mamba"), Status::UNSUPPORTED_ARCHITECTURE, "\"mamba\"");
    check_refused(read_with("general.architecture", ""), Status::UNSUPPORTED_ARCHITECTURE, "\"\"");
    check_refused(read_with("general.architecture", 7u), Status::CORRUPT, "general.architecture");
    check_refused(read_with("llama.expert_count", 8u), Status::UNSUPPORTED_ARCHITECTURE,
                  "llama.expert_count is 8");
    check_refused(read_with("llama.attention.sliding_window", 128u), Status::UNSUPPORTED_ARCHITECTURE,
                  "llama.attention.sliding_window is 128");
    check_refused(read_with("llama.attention.causal", false), Status::UNSUPPORTED_ARCHITECTURE,
                  "llama.attention.causal is 0");
    check_refused(read_with("llama.logit_scale", 0.5f), Status::UNSUPPORTED_ARCHITECTURE,
                  "llama.logit_scale is 0.5");
    check_refused(read_with("llama.final_logit_softcapping", 30.0f), Status::UNSUPPORTED_ARCHITECTURE,
                  "llama.final_logit_softcapping is 30");
    check_refused(read_with("llama.rope.scaling.yarn_log_multiplier", 0.1f), Status::UNSUPPORTED_ARCHITECTURE,
                  "llama.rope.scaling.yarn_log_multiplier");
    check_refused(read_with("llama.expert_count", "many"), Status::UNSUPPORTED_ARCHITECTURE,
                  "llama.expert_count");
    CHECK(read_with("llama.expert_count", 0u).status == Status::OK);
    CHECK(read_with("llama.attention.sliding_window", 0u).status == Status::OK);
    CHECK(read_with("llama.attention.sliding_window", 4096u).status == Status::OK);
    CHECK(read_with("llama.attention.causal", true).status == Status::OK);
    CHECK(read_with("qwen2.expert_count", 8u).status == Status::OK);  // another architecture's key
}

TEST_CASE("hyper-parameters: contradictions") {
    check_refused(read_with("llama.attention.head_count_kv", 3u), Status::CORRUPT,
                  "llama.attention.head_count_kv is 3");
    check_refused(read_with("llama.vocab_size", 321u), Status::CORRUPT, "llama.vocab_size is 321");
    check_refused(read_with("llama.attention.value_length", 32u), Status::UNSUPPORTED_ARCHITECTURE,
                  "llama.attention.value_length is 32");
    GgufWriter file = metadata_only();
    file.remove("llama.attention.key_length");
    file.remove("llama.attention.value_length");
    file.remove("llama.rope.dimension_count");
    file.set("llama.attention.head_count_kv", 1u);
    file.set("llama.attention.head_count", 3u);
    check_refused(Read(file), Status::CORRUPT, "llama.embedding_length is 64");
    file.set("llama.attention.head_count", 8u);
    check_refused(Read(file), Status::UNSUPPORTED_ARCHITECTURE, "a head has 8 dimensions");
    file.set("llama.attention.head_count", 1u);
    file.set("llama.embedding_length", 1024u);
    check_refused(Read(file), Status::LIMIT, "llama.embedding_length is 1024");
    file.set("tokenizer.ggml.tokens", std::vector<std::string>{});
    file.set("llama.embedding_length", 64u);
    check_refused(Read(file), Status::CORRUPT, "tokenizer.ggml.tokens");
}

TEST_CASE("hyper-parameters: epsilon and rope numbers") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float bad : {0.0f, -1e-5f, 1.0f, nan, infinity})
        check_refused(read_with("llama.attention.layer_norm_rms_epsilon", bad), Status::CORRUPT,
                      "llama.attention.layer_norm_rms_epsilon is ");
    for (const float bad : {0.0f, 0.5f, -10000.0f, nan, infinity})
        check_refused(read_with("llama.rope.freq_base", bad), Status::CORRUPT, "llama.rope.freq_base is ");
    for (const float bad : {0.0f, -1.0f, nan, infinity})
        check_refused(read_with("llama.rope.scaling.attn_factor", bad), Status::CORRUPT,
                      "llama.rope.scaling.attn_factor is ");
    check_refused(read_with("llama.rope.dimension_count", 15u), Status::CORRUPT,
                  "llama.rope.dimension_count is 15");
    check_refused(read_with("llama.rope.dimension_count", 18u), Status::CORRUPT,
                  "llama.rope.dimension_count is 18");
    CHECK(read_with("llama.rope.dimension_count", 8u).got.rope.rotary_dims == 8);
}

TEST_CASE("hyper-parameters: rope scaling") {
    GgufWriter file = metadata_only();
    file.set("llama.rope.scale_linear", 4.0f);
    const Read legacy(file);
    CHECK(legacy.got.rope.scaling == RopeScaling::linear);
    CHECK(legacy.got.rope.factor == 4.0);
    file.set("llama.rope.scaling.factor", 2.0f);
    file.set("llama.rope.scaling.type", "linear");
    CHECK(Read(file).got.rope.factor == 2.0);
    file.set("llama.rope.scaling.type", "none");
    CHECK(Read(file).got.rope.factor == 1.0);

    file.set("llama.rope.scaling.type", "yarn");
    const Read defaults(file);
    REQUIRE(defaults.status == Status::OK);
    CHECK(defaults.got.rope.scaling == RopeScaling::yarn);
    CHECK(defaults.got.rope.original_context == 256);
    CHECK(defaults.got.rope.beta_fast == 32.0);
    CHECK(defaults.got.rope.beta_slow == 1.0);
    file.set("llama.rope.scaling.original_context_length", 64u);
    file.set("llama.rope.scaling.yarn_beta_fast", 16.0f);
    file.set("llama.rope.scaling.yarn_beta_slow", 2.0f);
    const Read stated(file);
    CHECK(stated.got.rope.original_context == 64);
    CHECK(stated.got.rope.beta_fast == 16.0);
    CHECK(stated.got.rope.beta_slow == 2.0);

    file.set("llama.rope.scaling.yarn_beta_slow", 17.0f);
    check_refused(Read(file), Status::CORRUPT, "llama.rope.scaling.yarn_beta_fast is 16");
    file.set("llama.rope.scaling.yarn_beta_slow", 0.0f);
    check_refused(Read(file), Status::CORRUPT, "llama.rope.scaling.yarn_beta_slow is 0");
    file.set("llama.rope.scaling.yarn_beta_slow", 2.0f);
    file.set("llama.rope.freq_base", 1.0f);
    check_refused(Read(file), Status::CORRUPT, "llama.rope.freq_base is 1");
    file.set("llama.rope.scaling.factor", 0.5f);
    check_refused(Read(file), Status::CORRUPT, "llama.rope.scaling.factor is 0.5");
    file.set("llama.rope.scaling.type", "longrope");
    check_refused(Read(file), Status::UNSUPPORTED_ARCHITECTURE, "\"longrope\"");
}
