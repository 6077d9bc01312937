// The program of a model: the list of tensor operations that one forward is, emitted once per (model, KV types) by src/model
// and run by every backend. It holds no row count, no pointer and no tile: values and weights are ids, the number of rows comes
// with each pass.
//
//     Embed ─ { AddNorm ─ Linear q,k,v ─ RopeWrite ─ Attend ─ Quantize ─ Linear o ─
//               AddNorm ─ Linear gate,up ─ Gate ─ Linear down } × layers ─ AddNorm ─ Logits ─ Candidates
//
// Invariant: a backend's result for a row depends on that row's sequence only (numerics contract), never on its neighbours.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <variant>
#include <vector>

#include "ops/kv_type.h"

namespace treadle {

using WeightId = int32_t;
constexpr WeightId no_weight = -1;

// What operations pass to one another. A backend lays each out at stable addresses, sized by the program's shapes.
enum class Value : uint8_t {
    residual,    // (tokens, hidden) f32
    act,         // (tokens, columns) int8 groups of 32, f32, or both: what the weights that read it need
    qkv,         // (tokens, (heads + 2 kv_heads) * head_dim) f32: queries, keys, values
    attended,    // (tokens, heads * head_dim) f32
    delta,       // (tokens, hidden) f32: what is added to the residual next
    gate_up,     // (tokens, 2 * feed_forward) f32: gate, then up
    logits,      // (logit_rows, vocabulary) f32
    candidates,  // (logit_rows) RowResult
};

enum class PairOrder : uint8_t { adjacent, halves };  // RoPE pairs (2i, 2i+1), or (i, i + rotary_dims/2)
enum class GateKind : uint8_t { silu };               // gate(x, y) = x / (1 + exp(-x)) * y

struct Embed {  // residual = weight[token] * scale
    WeightId weight;
    float scale;
};

struct AddNorm {  // residual += delta (if add_delta); act = residual / rms(residual) * gain
    bool add_delta;
    WeightId gain;
    float epsilon;
};

struct LinearPart {
    WeightId weight;
    WeightId bias;  // or no_weight: one add after the slices
};

struct Linear {  // output = act · weightᵀ (+ bias), the parts' outputs side by side
    LinearPart parts[3];
    int32_t part_count;
    Value output;  // qkv, delta or gate_up
};

struct
    RopeWrite {  // queries *= query_scale, rotated in place; keys rotated, keys and values written to the cache
    int32_t layer;
    int32_t group;       // KV group
    int32_t rope_table;  // of PassInput::cos_sin
    PairOrder pair_order;
    int32_t rotary_dims;
    float query_scale;  // f32(log2(e) / sqrt(head_dim))
};

struct Attend {  // attended = softmax2(q · kᵀ) · v over positions 0 .. own
    int32_t layer;
    int32_t group;
};

struct Quantize {  // act = value
    Value input;   // attended
};

struct Gate {  // act = gate(kind, gate_up)
    GateKind kind;
};

struct Logits {  // logits = act[logit_row] · weightᵀ
    WeightId weight;
};

struct Candidates {};  // maximum, sums and the best of each row of logits (rule 7)

using Op = std::variant<Embed, AddNorm, Linear, RopeWrite, Attend, Quantize, Gate, Logits, Candidates>;

// Layers that share block tables: same window, same shape of cache.
struct KvGroup {
    int32_t layers;
    int32_t kv_heads;
    int32_t head_dim;
    KvType key_type = KvType::f16;
    KvType value_type = KvType::f16;

    KvFormat keys() const { return {key_type, head_dim}; }
    KvFormat values() const { return {value_type, head_dim}; }
    size_t kept_dims() const {  // of all layers
        return static_cast<size_t>(layers) * static_cast<size_t>(kv_heads) *
               static_cast<size_t>(keys().kept());
    }
};

struct Program {
    explicit Program(std::pmr::memory_resource* memory)
        : ops(memory), groups(memory), rope_pairs(memory), kept_dims(memory) {}
    std::pmr::vector<Op> ops;
    std::pmr::vector<KvGroup> groups;
    std::pmr::vector<int32_t> rope_pairs;  // pairs per rope table
    std::pmr::vector<uint16_t>
        kept_dims;  // tbq4x, group by group: (layers, kv_heads, head_dim / 8) ascending
    int32_t hidden = 0;
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    int32_t feed_forward = 0;
    int32_t vocabulary = 0;
};

// The actual size of a pass. A backend may round up; padding rows have slot -1.
struct Dims {
    int32_t tokens = 0;
    int32_t logit_rows = 0;
};

}  // namespace treadle
