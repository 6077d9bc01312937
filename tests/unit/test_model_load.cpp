// The model as a whole: its program, its facts, and memory that runs out or a file that fails while it loads.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <variant>

#include "model_fixture.h"

using namespace treadle;
using namespace treadle::test;

namespace {

uint64_t fingerprint_of(const GgufWriter& file, size_t piece_bytes = 1000) {
    LoadHooks hooks;
    hooks.piece_bytes = piece_bytes;
    const Load load(file, hooks);
    REQUIRE(load.status == Status::OK);
    return load.model->facts().fingerprint;
}

// A file that fails to read from a certain call on.
class FailingFile final : public FileReader {
public:
    FailingFile(const Bytes& bytes, int fail_at) : bytes_(bytes), fail_at_(fail_at) {}
    uint64_t size() const override { return bytes_.size(); }
    Status read(uint64_t offset, void* destination, size_t size, Error* error) override {
        if (++reads >= fail_at_) return fail(error, Status::IO, "read %d failed", reads);
        if (offset > bytes_.size() || size > bytes_.size() - offset)
            return fail(error, Status::TRUNCATED, "past the end");
        std::memcpy(destination, bytes_.data() + offset, size);
        return Status::OK;
    }
    int reads = 0;

private:
    const Bytes& bytes_;
    int fail_at_;
};

Status load_from(FileReader& reader, TestAllocator& allocator, Error* error) {
    MemorySet memory(allocator.hooks());
    std::vector<Recorded> recorded;
    Owned<Model> model;
    return load_model(reader, {}, {}, make_owned<RecordingStore>(&memory.weights, &recorded), memory, &model,
                      error);
}

}  // namespace

TEST_CASE("model: the program is the forward, in order") {
    TinyLlamaOptions options;
    options.tied_head = false;
    const Load load(tiny_llama(1, options));
    REQUIRE(load.status == Status::OK);
    std::pmr::monotonic_buffer_resource memory;
    Program program(&memory);
    load.model->emit(&program);
    load.model->emit(&program);  // again: replaced, not appended
    CHECK(program.hidden == 64);
    CHECK(program.heads == 4);
    CHECK(program.kv_heads == 2);
    CHECK(program.head_dim == 16);
    CHECK(program.feed_forward == 96);
    CHECK(program.vocabulary == 320);
    REQUIRE(program.groups.size() == 1);
    CHECK(program.groups[0].layers == 2);
    CHECK(program.groups[0].kv_heads == 2);
    CHECK(program.groups[0].head_dim == 16);
    REQUIRE(program.rope_pairs.size() == 1);
    CHECK(program.rope_pairs[0] == 8);

    const LlamaWeights& w = load.model->weights();
    REQUIRE(program.ops.size() == 1 + 2 * 10 + 3);
    CHECK(std::get<Embed>(program.ops[0]).weight == w.token_embedding);
    CHECK(std::get<Embed>(program.ops[0]).scale == 1.0f);
    for (size_t layer = 0; layer < 2; ++layer) {
        const Op* op = &program.ops[1 + 10 * layer];
        CHECK(std::get<AddNorm>(op[0]).add_delta == (layer > 0));
        CHECK(std::get<AddNorm>(op[0]).gain == w.layers[layer].attention_norm);
        CHECK(std::get<AddNorm>(op[0]).epsilon == 1e-5f);
        const Linear& qkv = std::get<Linear>(op[1]);
        REQUIRE(qkv.part_count == 3);
        CHECK(qkv.output == Value::qkv);
        CHECK(qkv.parts[0].weight == w.layers[layer].query);
        CHECK(qkv.parts[1].weight == w.layers[layer].key);
        CHECK(qkv.parts[2].weight == w.layers[layer].value);
        CHECK(qkv.parts[0].bias == no_weight);
        const RopeWrite& rope = std::get<RopeWrite>(op[2]);
        CHECK(rope.layer == static_cast<int32_t>(layer));
        CHECK(rope.pair_order == PairOrder::adjacent);
        CHECK(rope.rotary_dims == 16);
        CHECK(rope.query_scale == static_cast<float>(std::log2(std::exp(1.0)) / 4.0));
        CHECK(std::get<Attend>(op[3]).layer == static_cast<int32_t>(layer));
        CHECK(std::get<Quantize>(op[4]).input == Value::attended);
        CHECK(std::get<Linear>(op[5]).parts[0].weight == w.layers[layer].attention_output);
        CHECK(std::get<Linear>(op[5]).output == Value::delta);
        CHECK(std::get<AddNorm>(op[6]).add_delta);
        CHECK(std::get<AddNorm>(op[6]).gain == w.layers[layer].feed_forward_norm);
        CHECK(std::get<Linear>(op[7]).part_count == 2);
        CHECK(std::get<Linear>(op[7]).parts[0].weight == w.layers[layer].gate);
        CHECK(std::get<Linear>(op[7]).parts[1].weight == w.layers[layer].up);
        CHECK(std::get<Linear>(op[7]).output == Value::gate_up);
        CHECK(std::get<Gate>(op[8]).kind == GateKind::silu);
        CHECK(std::get<Linear>(op[9]).parts[0].weight == w.layers[layer].down);
        CHECK(std::get<Linear>(op[9]).output == Value::delta);
    }
    CHECK(std::get<AddNorm>(program.ops[21]).gain == w.output_norm);
    CHECK(std::get<Logits>(program.ops[22]).weight == w.head);
    CHECK(std::holds_alternative<Candidates>(program.ops[23]));
}

TEST_CASE("model: facts") {
    GgufWriter file = tiny_llama(1);
    file.set("general.name", "Tiny");
    file.set("tokenizer.chat_template", "{{ hello }}");
    uint64_t tensor_bytes = 0;
    for (const GgufWriter::Tensor& tensor : file.tensors) tensor_bytes += tensor.data.size();
    const Load load(file);
    REQUIRE(load.status == Status::OK);
    const ModelFacts& facts = load.model->facts();
    CHECK(facts.parameters == tensor_bytes / 4);
    CHECK(facts.tensor_bytes == tensor_bytes);
    CHECK(facts.packed_bytes == tensor_bytes);
    CHECK(facts.file_bytes == file.bytes().size());
    CHECK(facts.load_peak_bytes >= load.memory.scratch.bytes_peak());
    CHECK(load.model->name() == "Tiny");
    CHECK(load.model->chat_template() == "{{ hello }}");
    CHECK(load.model->vocabulary().size() == 320);
    CHECK(load.memory.scratch.bytes_in_use() == 0);  // the header is gone
}

TEST_CASE("model: a name or template of the wrong type is refused") {
    GgufWriter file = tiny_llama(1);
    file.set("general.name", 7u);
    CHECK(Load(file).status == Status::CORRUPT);
    CHECK(Load(file).says("general.name"));
    file.set("general.name", "x");
    file.set("tokenizer.chat_template", std::vector<std::string>{"a"});
    CHECK(Load(file).status == Status::CORRUPT);
    CHECK(Load(file).says("tokenizer.chat_template"));
    file.remove("tokenizer.chat_template");
    file.set("tokenizer.ggml.model", "wordpiece");
    CHECK(Load(file).status == Status::UNSUPPORTED_TOKENIZER);
}

TEST_CASE("model: the fingerprint names the content, not how it was read") {
    const GgufWriter file = tiny_llama(1);
    const uint64_t whole = fingerprint_of(file, 1 << 20);
    CHECK(fingerprint_of(file, 1) == whole);
    CHECK(fingerprint_of(file, 777) == whole);
    std::set<uint64_t> seen = {whole};
    for (size_t i = 0; i < file.tensors.size(); ++i) {
        GgufWriter changed = file;
        changed.tensors[i].data.back() = static_cast<char>(changed.tensors[i].data.back() ^ 1);
        CHECK(seen.insert(fingerprint_of(changed)).second);
    }
    for (GgufWriter changed = file; GgufWriter::Tensor & matrix : changed.tensors) {  // rows in another order
        if (matrix.dims.size() < 2) continue;
        const size_t row_bytes = matrix.data.size() / matrix.dims[1];
        std::rotate(matrix.data.begin(), matrix.data.begin() + static_cast<ptrdiff_t>(16 * row_bytes),
                    matrix.data.end());
        CHECK(seen.insert(fingerprint_of(changed)).second);
    }
    GgufWriter changed = file;
    changed.set("general.name", "another");
    CHECK(seen.insert(fingerprint_of(changed)).second);
}

TEST_CASE("model: memory that runs out at any allocation leaves nothing") {
    const Bytes bytes = tiny_llama(1).bytes();
    int64_t refused = 0;
    for (int64_t fail_at = 1;; fail_at = fail_at < 60 ? fail_at + 1 : fail_at + fail_at / 8) {
        TestAllocator allocator;
        allocator.fail_from(fail_at - 1);
        FailingFile reader(bytes, INT32_MAX);
        Error error;
        bool out_of_memory = false;
        Status status = Status::OK;
        try {
            status = load_from(reader, allocator, &error);
        } catch (const std::bad_alloc&) {
            out_of_memory = true;
        }
        CHECK(allocator.live() == 0);
        if (!out_of_memory) {
            CHECK(status == Status::OK);
            break;
        }
        ++refused;
    }
    CHECK(refused > 20);
}

TEST_CASE("model: a file that fails at any read leaves nothing") {
    const Bytes bytes = tiny_llama(1).bytes();
    for (int fail_at = 1;; ++fail_at) {
        TestAllocator allocator;
        FailingFile reader(bytes, fail_at);
        Error error;
        const Status status = load_from(reader, allocator, &error);
        CHECK(allocator.live() == 0);
        if (status == Status::OK) break;
        CHECK(status == Status::IO);
        CHECK(std::string(error.message).find("read ") != std::string::npos);
    }
}
