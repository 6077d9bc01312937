// What a model file says about its forward: sizes, epsilon and rotary embedding of the llama family, read
// from the metadata. Called by the model loader, which hands the result to the weights, the rope table and
// the emitter of the program.
//
// Invariant: a HyperParameters that was read is within base/limits.h and free of contradictions, and the
// forward of src/model/llama.cpp computes it: what a key asks for beyond that was refused, not ignored.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "gguf/metadata.h"
#include "ops/program.h"

namespace treadle {

enum class Architecture : uint8_t {
    llama,  // RoPE over adjacent pairs; biases where the file has them
    qwen2,  // RoPE over halves; query, key and value have biases
};

const char* architecture_name(Architecture architecture);  // as in general.architecture

enum class RopeScaling : uint8_t {
    none,
    linear,  // all angles / factor
    yarn,    // fast pairs keep their angle, slow ones are / factor, those between are blended
};

// Numbers are f32 in the file; the table is made in double.
struct RopeParameters {
    PairOrder pair_order = PairOrder::adjacent;
    int32_t rotary_dims = 0;  // even, at most head_dim: the first dimensions of a head
    double freq_base = 10000;
    RopeScaling scaling = RopeScaling::none;
    double factor = 1;             // at least 1
    double attention_factor = 1;   // of cos and sin
    int32_t original_context = 0;  // yarn: tokens it was trained on before it was stretched
    double beta_fast = 32;         // yarn: turns within original_context from which on a pair keeps its angle
    double beta_slow = 1;          // yarn: turns up to which a pair is fully interpolated
};

struct HyperParameters {
    Architecture architecture = Architecture::llama;
    int32_t layers = 0;
    int32_t context = 0;  // positions it was made for
    int32_t hidden = 0;
    int32_t feed_forward = 0;
    int32_t heads = 0;
    int32_t kv_heads = 0;  // divides heads
    int32_t head_dim = 0;  // a multiple of 16
    int32_t vocabulary = 0;
    float norm_epsilon = 0;
    RopeParameters rope;

    int32_t query_columns() const { return heads * head_dim; }
    int32_t kv_columns() const { return kv_heads * head_dim; }
};

// UNSUPPORTED_ARCHITECTURE: another architecture, or a property that this forward lacks. CORRUPT: a key is
// missing, has a wrong type or contradicts another. LIMIT: beyond base/limits.h. Each message names the key
// and its value.
[[nodiscard]] Status read_hyper_parameters(const Metadata& metadata, HyperParameters* out, Error* error);

}  // namespace treadle
