// Loading of whole models: which tensors reach the store and how, and that each missing, misshapen or surplus
// one, each stop and each lack of memory ends in its status with nothing left behind.
#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "model_fixture.h"

using namespace treadle;
using namespace treadle::test;

namespace {

GgufWriter qwen2() {
    TinyLlamaOptions options;
    options.architecture = "qwen2";
    GgufWriter file = tiny_llama(3, options);
    Random random(4);
    for (const std::string layer : {"blk.0.", "blk.1."}) {
        file.add_tensor(layer + "attn_q.bias", {64}, TensorType::F32,
                        random_tensor(random, TensorType::F32, 64, 0.1));
        file.add_tensor(layer + "attn_k.bias", {32}, TensorType::F32,
                        random_tensor(random, TensorType::F32, 32, 0.1));
        file.add_tensor(layer + "attn_v.bias", {32}, TensorType::F32,
                        random_tensor(random, TensorType::F32, 32, 0.1));
    }
    return file;
}

void check_refused(const GgufWriter& file, Status status, const std::string& words) {
    Load load(file);
    CAPTURE(words);
    CAPTURE(load.error.message);
    CHECK(std::string(status_name(load.status)) == status_name(status));
    CHECK(load.says(words));
    CHECK(load.model == nullptr);
    CHECK(load.allocator.live() == 0);
    CHECK(load.recorded.empty());  // found before anything was packed
}

}  // namespace

TEST_CASE("weights: every tensor reaches the store with its name, type, shape, use and bytes") {
    TinyLlamaOptions options;
    options.set_all(TensorType::Q4_0);
    options.tied_head = false;
    options.output = TensorType::Q8_0;
    const GgufWriter file = tiny_llama(7, options);
    for (const size_t piece_bytes : {size_t{1}, size_t{18}, size_t{1000}, size_t{1} << 20}) {
        LoadHooks hooks;
        hooks.piece_bytes = piece_bytes;
        const Load load(file, hooks);
        CAPTURE(load.error.message);
        REQUIRE(load.status == Status::OK);
        REQUIRE(load.recorded.size() == file.tensors.size());
        for (size_t i = 0; i < load.recorded.size(); ++i) {  // in the order of the file
            const GgufWriter::Tensor& expected = file.tensors[i];
            const Recorded& got = load.recorded[i];
            CHECK(got.name == expected.name);
            CHECK(got.type == expected.type);
            CHECK(got.columns == static_cast<int64_t>(expected.dims[0]));
            CHECK(got.rows == static_cast<int64_t>(expected.dims.size() > 1 ? expected.dims[1] : 1));
            CHECK((got.use == WeightUse::vector) == (expected.dims.size() == 1));
            CHECK(got.bytes == expected.data);
        }
    }
}

TEST_CASE("weights: ids land in their places") {
    const Load load(qwen2());
    REQUIRE(load.status == Status::OK);
    const LlamaWeights& weights = load.model->weights();
    const auto name_of = [&](WeightId id) { return load.recorded.at(static_cast<size_t>(id - 100)).name; };
    CHECK(name_of(weights.token_embedding) == "token_embd.weight");
    CHECK(name_of(weights.output_norm) == "output_norm.weight");
    REQUIRE(weights.layers.size() == 2);
    for (int layer = 0; layer < 2; ++layer) {
        const LayerWeights& w = weights.layers[static_cast<size_t>(layer)];
        const std::string prefix = "blk." + std::to_string(layer) + ".";
        CHECK(name_of(w.attention_norm) == prefix + "attn_norm.weight");
        CHECK(name_of(w.query) == prefix + "attn_q.weight");
        CHECK(name_of(w.key) == prefix + "attn_k.weight");
        CHECK(name_of(w.value) == prefix + "attn_v.weight");
        CHECK(name_of(w.attention_output) == prefix + "attn_output.weight");
        CHECK(name_of(w.feed_forward_norm) == prefix + "ffn_norm.weight");
        CHECK(name_of(w.gate) == prefix + "ffn_gate.weight");
        CHECK(name_of(w.up) == prefix + "ffn_up.weight");
        CHECK(name_of(w.down) == prefix + "ffn_down.weight");
        CHECK(name_of(w.query_bias) == prefix + "attn_q.bias");
        CHECK(name_of(w.key_bias) == prefix + "attn_k.bias");
        CHECK(name_of(w.value_bias) == prefix + "attn_v.bias");
        CHECK(w.attention_output_bias == no_weight);
        CHECK(w.gate_bias == no_weight);
    }
}

TEST_CASE("weights: a tied head is the embedding, loaded once") {
    const Load tied(tiny_llama(1));
    REQUIRE(tied.status == Status::OK);
    CHECK(tied.model->weights().head == tied.model->weights().token_embedding);
    CHECK(tied.find("output.weight") == nullptr);
    TinyLlamaOptions options;
    options.tied_head = false;
    const Load own(tiny_llama(1, options));
    REQUIRE(own.status == Status::OK);
    CHECK(own.model->weights().head != own.model->weights().token_embedding);
}

TEST_CASE("weights: each missing tensor is named") {
    for (const GgufWriter& whole : {tiny_llama(1), qwen2()})
        for (const GgufWriter::Tensor& tensor : whole.tensors) {
            GgufWriter file = whole;
            std::erase_if(file.tensors, [&](const auto& other) { return other.name == tensor.name; });
            check_refused(file, Status::CORRUPT, "tensor " + tensor.name + " is missing");
        }
}

TEST_CASE("weights: each misshapen tensor is named with both shapes") {
    const GgufWriter whole = qwen2();
    for (size_t i = 0; i < whole.tensors.size(); ++i) {
        const std::string& name = whole.tensors[i].name;
        const uint64_t first = whole.tensors[i].dims[0],
                       second = whole.tensors[i].dims.size() > 1 ? whole.tensors[i].dims[1] : 1;
        const std::string expected =
            second == 1 ? "expected " + std::to_string(first)
                        : "expected " + std::to_string(first) + " x " + std::to_string(second);
        GgufWriter file = whole;
        file.tensors[i].dims = {first / 2, second};
        file.tensors[i].data.resize(file.tensors[i].data.size() / 2);
        check_refused(file, Status::CORRUPT, "tensor " + name + " is " + std::to_string(first / 2) + " x ");
        check_refused(file, Status::CORRUPT, expected);
        file.tensors[i].dims = {first, 1, second};
        file.tensors[i].data = whole.tensors[i].data;
        if (second > 1) check_refused(file, Status::CORRUPT, "tensor " + name + " is ");
        file.tensors[i].dims = {first, second, 1, 2};
        file.tensors[i].data.resize(whole.tensors[i].data.size() * 2);
        check_refused(file, Status::CORRUPT, "tensor " + name + " is ");
    }
}

TEST_CASE("weights: biases that the architecture may have are loaded, misshapen ones refused") {
    GgufWriter file = tiny_llama(1);
    file.add_tensor("blk.1.attn_output.bias", {64}, TensorType::F32,
                    f32_tensor(std::vector<float>(64, 0.5f)));
    file.add_tensor("blk.0.ffn_up.bias", {96}, TensorType::F16, Bytes(192));
    const Load load(file);
    REQUIRE(load.status == Status::OK);
    CHECK(load.model->weights().layers[1].attention_output_bias != no_weight);
    CHECK(load.model->weights().layers[0].attention_output_bias == no_weight);
    CHECK(load.model->weights().layers[0].up_bias != no_weight);
    file.find_tensor("blk.0.ffn_up.bias")->dims = {95};
    check_refused(file, Status::CORRUPT, "tensor blk.0.ffn_up.bias is 95 x 1 x 1 x 1; expected 96");
}

TEST_CASE("weights: quantized gains are refused") {
    GgufWriter file = tiny_llama(1);
    GgufWriter::Tensor* gain = file.find_tensor("blk.0.ffn_norm.weight");
    gain->type = static_cast<uint32_t>(TensorType::Q8_0);
    gain->data.resize(68);
    check_refused(file, Status::UNSUPPORTED_TYPE, "tensor blk.0.ffn_norm.weight is Q8_0");
}

TEST_CASE("weights: tensors of another forward are refused, harmless ones are not") {
    for (const char* name : {"blk.0.attn_q_norm.weight", "blk.2.attn_norm.weight",
                             "blk.0.ffn_gate_inp.weight", "output.bias", "token_embd_norm.weight"}) {
        GgufWriter file = tiny_llama(1);
        file.add_tensor(name, {4}, TensorType::F32, Bytes(16));
        check_refused(file, Status::UNSUPPORTED_ARCHITECTURE, name);
    }
    std::vector<std::string> lines;
    LoadHooks hooks;
    hooks.log = {&lines, [](void* user, int32_t, const char* line) {
                     static_cast<std::vector<std::string>*>(user)->push_back(line);
                 }};
    GgufWriter file = tiny_llama(1);
    file.add_tensor("blk.0.attn_rot_embd.weight", {4}, TensorType::F32, Bytes(16));
    file.add_tensor("note", {4}, TensorType::F32, Bytes(16));
    const Load load(file, hooks);
    CHECK(load.status == Status::OK);
    REQUIRE(lines.size() == 2);
    CHECK(lines[1].find("note") != std::string::npos);
}

TEST_CASE("weights: rope factors") {
    TinyLlamaOptions options;
    options.rope_frequency_factors = {1, 1, 2, 4, 8, 8, 8, 8};
    GgufWriter file = tiny_llama(1, options);
    const Load load(file);
    REQUIRE(load.status == Status::OK);
    const Load without(tiny_llama(1));
    for (size_t i = 0; i < 8; ++i)
        CHECK(load.model->rope_table().frequencies()[i] ==
              without.model->rope_table().frequencies()[i] /
                  static_cast<double>(options.rope_frequency_factors[i]));
    CHECK(load.find("rope_freqs.weight") == nullptr);

    GgufWriter::Tensor* factors = file.find_tensor("rope_freqs.weight");
    for (const float bad : {0.0f, -1.0f, 0.25f, 0x1p21f, std::numeric_limits<float>::quiet_NaN()}) {
        factors->data = f32_tensor({1, 1, 1, bad, 1, 1, 1, 1});
        check_refused(file, Status::CORRUPT, "tensor rope_freqs.weight has ");
    }
    factors->dims = {4};
    factors->data.resize(16);
    check_refused(file, Status::CORRUPT, "tensor rope_freqs.weight has 4 x 1 values; expected 8");
    factors->type = static_cast<uint32_t>(TensorType::F16);
    factors->dims = {8};
    check_refused(file, Status::UNSUPPORTED_TYPE, "tensor rope_freqs.weight is F16");
}

TEST_CASE("weights: progress rises to the total; a stop at any call leaves nothing") {
    struct Calls {
        int stop_at = INT32_MAX;
        int made = 0;
        std::vector<std::pair<uint64_t, uint64_t>> seen;
    };
    const auto report = [](void* user, uint64_t done, uint64_t total) {
        auto* calls = static_cast<Calls*>(user);
        calls->seen.emplace_back(done, total);
        return ++calls->made < calls->stop_at;
    };
    const GgufWriter file = tiny_llama(1);
    uint64_t total = 0;
    for (const GgufWriter::Tensor& tensor : file.tensors) total += tensor.data.size();
    Calls whole;
    LoadHooks hooks;
    hooks.progress = {&whole, report};
    hooks.piece_bytes = 5000;
    const Load load(file, hooks);
    REQUIRE(load.status == Status::OK);
    REQUIRE(whole.made > 5);
    CHECK(whole.seen.front().first == 0);
    CHECK(whole.seen.back().first == total);
    for (size_t i = 0; i < whole.seen.size(); ++i) {
        CHECK(whole.seen[i].second == total);
        if (i > 0) CHECK(whole.seen[i].first >= whole.seen[i - 1].first);
    }
    for (int stop_at = 1; stop_at <= whole.made; ++stop_at) {
        Calls calls;
        calls.stop_at = stop_at;
        hooks.progress.user = &calls;
        const Load stopped(file, hooks);
        CHECK(stopped.status == Status::STOPPED);
        CHECK(stopped.says("loading was stopped after"));
        CHECK(calls.made == stop_at);
        CHECK(stopped.allocator.live() == 0);
    }
}
