// A random program with its weights, and the slow run of it that the backend is compared with.
#include "test_backend_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace treadle::tests {
namespace {

constexpr uint32_t f32_type = 0;
constexpr uint32_t q4_1_type = 3;
constexpr uint32_t q8_0_type = 8;

uint64_t tensor_bytes(uint32_t type, int64_t values) {
    const auto count = static_cast<uint64_t>(values);
    if (type == f32_type) return count * 4;
    return count / 32 * (type == q4_1_type ? 20 : 34);
}

void put_half(uint8_t* to, double value) {  // positive normal numbers only
    int exponent = 0;
    const double fraction = std::frexp(value, &exponent);
    const auto bits =
        static_cast<uint16_t>((exponent + 14) << 10 | static_cast<int>((fraction * 2 - 1) * 1024));
    std::memcpy(to, &bits, 2);
}

void* take(void* user, size_t size, size_t alignment, int32_t) {
    auto* heap = static_cast<TestHeap*>(user);
    if (heap->refuse) return nullptr;
    ++heap->live;
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void give(void* user, void* pointer, size_t, size_t, int32_t) {
    --static_cast<TestHeap*>(user)->live;
    std::free(pointer);
}

}  // namespace

AllocatorHooks TestHeap::hooks() { return {this, take, give}; }

RandomTensor::RandomTensor(std::string tensor_name, uint32_t tensor_type, int64_t row_count,
                           int64_t column_count, uint32_t seed)
    : own_name(std::move(tensor_name)), data(tensor_bytes(tensor_type, row_count * column_count)) {
    name = own_name.c_str();
    type = tensor_type;
    rows = row_count;
    columns = column_count;
    bytes = data.size();
    std::mt19937 random(seed);
    const double scale = 1.5 / std::sqrt(static_cast<double>(column_count));
    if (type == f32_type) {
        for (size_t i = 0; i < data.size(); i += 4) {
            double value = (static_cast<double>(random()) / 4294967296.0 - 0.5) * 2;
            value = row_count == 1 ? 1 + value / 2 : value * scale;
            const auto narrow = static_cast<float>(value);
            std::memcpy(&data[i], &narrow, 4);
        }
        return;
    }
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
    const size_t block = type == q4_1_type ? 20 : 34;
    for (size_t i = 0; i < data.size(); i += block) {
        const double d = (type == q4_1_type ? scale / 8 : scale / 127) * (1 + (random() % 100) / 100.0);
        put_half(&data[i], d);
        if (type == q4_1_type) {
            put_half(&data[i + 2], d * 7);
            data[i + 3] |= 0x80;
        }
    }
}

Status load_weight(WeightStore& store, const RandomTensor& tensor, WeightUse use, WeightId* out,
                   Error* error) {
    TREADLE_TRY(store.add(tensor, use, out, error));
    store.allocate();
    store.pack(*out, 0, tensor.rows, tensor.data.data());
    return Status::OK;
}

Program tiny_program(const TinyShape& shape, WeightStore& store, std::pmr::memory_resource* memory,
                     uint32_t seed) {
    uint32_t next = seed * 1000;
    const auto load = [&](const char* name, uint32_t type, int64_t rows, int64_t columns, WeightUse use) {
        const RandomTensor tensor(name, type, rows, columns, next++);
        WeightId id = no_weight;
        Error error;
        if (load_weight(store, tensor, use, &id, &error) != Status::OK) std::abort();
        return id;
    };
    const auto matrix = [&](const char* name, uint32_t type, int64_t rows, int64_t columns) {
        return load(name, type, rows, columns, WeightUse::matrix);
    };
    const auto vector = [&](const char* name, int64_t columns) {
        return load(name, f32_type, 1, columns, WeightUse::vector);
    };

    Program program(memory);
    program.hidden = shape.hidden;
    program.heads = shape.heads;
    program.kv_heads = shape.kv_heads;
    program.head_dim = shape.head_dim;
    program.feed_forward = shape.feed_forward;
    program.vocabulary = shape.vocabulary;
    program.groups.push_back({shape.layers, shape.kv_heads, shape.head_dim});
    program.rope_pairs = {shape.head_dim / 2, shape.head_dim / 4};
    const int32_t heads_columns = shape.heads * shape.head_dim;
    const int32_t kv_columns = shape.kv_heads * shape.head_dim;
    constexpr float epsilon = 1e-5f;

    const WeightId embedding = matrix("token_embd", q8_0_type, shape.vocabulary, shape.hidden);
    program.ops.push_back(Embed{embedding, 1.0f});
    for (int32_t layer = 0; layer < shape.layers; ++layer) {
        const bool last = layer + 1 == shape.layers;
        program.ops.push_back(AddNorm{layer > 0, vector("attn_norm", shape.hidden), epsilon});
        Linear qkv{};
        qkv.parts[0] = {matrix("attn_q", q8_0_type, heads_columns, shape.hidden),
                        vector("attn_q.bias", heads_columns)};
        qkv.parts[1] = {matrix("attn_k", q4_1_type, kv_columns, shape.hidden), no_weight};
        qkv.parts[2] = {matrix("attn_v", f32_type, kv_columns, shape.hidden),
                        vector("attn_v.bias", kv_columns)};
        qkv.part_count = 3;
        qkv.output = Value::qkv;
        program.ops.push_back(qkv);
        const int32_t rotary_dims = last ? shape.head_dim / 2 : shape.head_dim;
        program.ops.push_back(RopeWrite{layer, 0, last ? 1 : 0,
                                        last ? PairOrder::halves : PairOrder::adjacent, rotary_dims,
                                        1.4426950408889634f / std::sqrt(static_cast<float>(shape.head_dim))});
        program.ops.push_back(Attend{layer, 0});
        program.ops.push_back(Quantize{Value::attended});
        Linear out{};
        out.parts[0] = {matrix("attn_output", last ? f32_type : q4_1_type, shape.hidden, heads_columns),
                        no_weight};
        out.part_count = 1;
        out.output = Value::delta;
        program.ops.push_back(out);
        program.ops.push_back(AddNorm{true, vector("ffn_norm", shape.hidden), epsilon});
        Linear gate_up{};
        gate_up.parts[0] = {matrix("ffn_gate", q4_1_type, shape.feed_forward, shape.hidden), no_weight};
        gate_up.parts[1] = {matrix("ffn_up", q8_0_type, shape.feed_forward, shape.hidden), no_weight};
        gate_up.part_count = 2;
        gate_up.output = Value::gate_up;
        program.ops.push_back(gate_up);
        program.ops.push_back(Gate{GateKind::silu});
        Linear down{};
        down.parts[0] = {matrix("ffn_down", last ? f32_type : q4_1_type, shape.hidden, shape.feed_forward),
                         no_weight};
        down.part_count = 1;
        down.output = Value::delta;
        program.ops.push_back(down);
    }
    program.ops.push_back(AddNorm{true, vector("output_norm", shape.hidden), epsilon});
    program.ops.push_back(Logits{embedding});
    program.ops.push_back(Candidates{});
    return program;
}

TestPass::TestPass(const Program& program, std::vector<PassRows> rows, std::vector<BlockCopy> block_copies)
    : copies(std::move(block_copies)) {
    for (const PassRows& row : rows) {
        TestSequence& sequence = *row.sequence;
        work.push_back({int32_t(tokens.size()), row.count, sequence.computed, int32_t(block_table.size())});
        block_table.insert(block_table.end(), sequence.blocks.begin(), sequence.blocks.end());
        for (int32_t i = 0; i < row.count; ++i) {
            const int32_t position = sequence.computed++;
            if (row.logits && i + 1 == row.count) {
                logit_rows.push_back(int32_t(tokens.size()));
                inverse_temperatures.push_back(1.0f /
                                               (1.0f + 0.25f * static_cast<float>(sequence.tokens[0] % 3)));
            }
            tokens.push_back(sequence.tokens[static_cast<size_t>(position)]);
            positions.push_back(position);
            slots.push_back(sequence.blocks[static_cast<size_t>(position / 16)] * 16 + position % 16);
        }
    }
    for (const int32_t pairs : program.rope_pairs) {
        for (const int32_t position : positions) {
            for (int32_t pair = 0; pair < pairs; ++pair) {
                const double angle = position * std::pow(10000.0, -static_cast<double>(pair) / pairs);
                cos_sin.push_back(static_cast<float>(std::cos(angle)));
                cos_sin.push_back(static_cast<float>(std::sin(angle)));
            }
        }
    }
    groups.push_back({slots, block_table, work, copies});
    input_ = {tokens, positions, groups, logit_rows, inverse_temperatures, cos_sin};
}

void TestPass::poison() {
    const auto fill = [](auto& list) {
        if (!list.empty()) std::memset(list.data(), 0x7f, list.size() * sizeof list[0]);
    };
    fill(tokens);
    fill(positions);
    fill(slots);
    fill(block_table);
    fill(logit_rows);
    fill(work);
    fill(copies);
    fill(inverse_temperatures);
    fill(cos_sin);
}

}  // namespace treadle::tests
