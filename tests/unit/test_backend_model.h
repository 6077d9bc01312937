// A tiny random model in the form of a program, for tests of backends: weights of several types, biases,
// two rope tables, and the inputs of passes over sequences that live in random blocks. Used by the
// backend's tests and by those of the double.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/memory.h"
#include "ops/backend.h"
#include "ops/program.h"

namespace treadle::tests {

// Counts what is live, and refuses while told to.
struct TestHeap {
    bool refuse = false;
    int64_t live = 0;
    AllocatorHooks hooks();
};

// A tensor of random bytes with sane scales, or of given floats.
struct RandomTensor : WeightShape {
    RandomTensor(std::string tensor_name, uint32_t tensor_type, int64_t row_count, int64_t column_count,
                 uint32_t seed);
    RandomTensor(const RandomTensor&) = delete;  // `name` points into it
    RandomTensor& operator=(const RandomTensor&) = delete;

    std::string own_name;
    std::vector<uint8_t> data;
};

// Adds it to the store and packs it.
[[nodiscard]] Status load_weight(WeightStore& store, const RandomTensor& tensor, WeightUse use, WeightId* out,
                                 Error* error);

struct TinyShape {
    int32_t hidden = 96;
    int32_t heads = 4;
    int32_t kv_heads = 2;
    int32_t head_dim = 32;
    int32_t feed_forward = 160;
    int32_t vocabulary = 333;
    int32_t layers = 2;
};

// Loads random weights into the store and emits the program of a llama-like model.
Program tiny_program(const TinyShape& shape, WeightStore& store, std::pmr::memory_resource* memory,
                     uint32_t seed);

// One sequence of a test: its tokens and the blocks it lives in.
struct TestSequence {
    std::vector<int32_t> tokens;
    std::vector<int32_t> blocks;
    int32_t computed = 0;
};

// Rows of one pass: `count` next tokens of each sequence; the last of each (or all) gets logits.
struct PassRows {
    TestSequence* sequence;
    int32_t count;
    bool logits;
};

// Everything a PassInput points into.
struct TestPass {
    TestPass(const Program& program, std::vector<PassRows> rows, std::vector<BlockCopy> block_copies = {});
    const PassInput& input() const { return input_; }
    Dims dims() const { return {int32_t(tokens.size()), int32_t(logit_rows.size())}; }
    void poison();  // what was given may change after begin

    std::vector<int32_t> tokens, positions, slots, block_table, logit_rows;
    std::vector<AttentionWork> work;
    std::vector<BlockCopy> copies;
    std::vector<float> inverse_temperatures, cos_sin;
    std::vector<GroupInput> groups;

private:
    PassInput input_;
};

}  // namespace treadle::tests
