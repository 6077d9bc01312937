// Finds the tensors of the llama family in a file, checks names, shapes and types, and gets each into the
// backend's store. Called once by the model loader.
//
// Invariant: nothing is read before every tensor was found and checked, and its memory is there.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "base/hooks.h"
#include "base/memory.h"
#include "gguf/reader.h"
#include "model/fingerprint.h"
#include "model/hyper_parameters.h"
#include "model/weight_reader.h"
#include "ops/backend.h"

namespace treadle {

struct LayerWeights {
    WeightId attention_norm = no_weight;     // (hidden)
    WeightId query = no_weight;              // (heads * head_dim, hidden)
    WeightId key = no_weight;                // (kv_heads * head_dim, hidden)
    WeightId value = no_weight;              // (kv_heads * head_dim, hidden)
    WeightId attention_output = no_weight;   // (hidden, heads * head_dim)
    WeightId feed_forward_norm = no_weight;  // (hidden)
    WeightId gate = no_weight;               // (feed_forward, hidden)
    WeightId up = no_weight;                 // (feed_forward, hidden)
    WeightId down = no_weight;               // (hidden, feed_forward)
    WeightId query_bias =
        no_weight;  // (rows of the weight), as all that follow; no_weight: the file has none
    WeightId key_bias = no_weight;
    WeightId value_bias = no_weight;
    WeightId attention_output_bias = no_weight;
    WeightId gate_bias = no_weight;
    WeightId up_bias = no_weight;
    WeightId down_bias = no_weight;
};

struct LlamaWeights {
    explicit LlamaWeights(std::pmr::memory_resource* memory) : layers(memory) {}
    WeightId token_embedding = no_weight;  // (vocabulary, hidden)
    WeightId output_norm = no_weight;      // (hidden)
    WeightId head =
        no_weight;  // (vocabulary, hidden); the embedding's id where the file has no output.weight
    std::pmr::vector<LayerWeights> layers;
};

// CORRUPT: a tensor is missing or has another shape. UNSUPPORTED_TYPE: a gain or bias is quantized.
// UNSUPPORTED_ARCHITECTURE: a tensor that this forward has no place for. STOPPED: the progress hook said so.
// Other statuses come from file or store. Feeds `fingerprint` with every tensor.
[[nodiscard]] Status load_weights(const GgufFile& file, const HyperParameters& model, const LoadHooks& hooks,
                                  WeightStore& store, Memory* scratch, Fingerprint* fingerprint,
                                  LlamaWeights* out, Error* error);

// The llama3 factors, rope_freqs.weight: what each pair's angle is divided by. Empty where the file has none.
[[nodiscard]] Status read_rope_factors(const GgufFile& file, const HyperParameters& model,
                                       Fingerprint* fingerprint, std::pmr::vector<float>* out, Error* error);

}  // namespace treadle
