// The capacity planner: from the size of a model and the figures of a machine, what a batch yields and what fits the KV cache,
// before anything is loaded. The api layer calls it for engine_plan_capacity; the tables of the documentation come from it.
//
// The model of a pass is the roofline of its linear layers, and the attention after it:
//
//     weights_us = weight_bytes / bandwidth                 read once per pass, whatever the batch
//     compute_us = batch * token_flops / usable_flops       the rows multiply them
//     kv_read_us = batch * context * kv_token_bytes / bandwidth      each row reads its own context
//     pass_us    = max(weights_us, compute_us) + kv_read_us
//
// and where batching stops being nearly free, the crossover: the lowest batch whose own costs take as long as the weights.
//
//     pass_us │            ╱ batch * (compute + KV reads of one row)
//             │          ╱
//             │________╱___ weights_us
//             └────────┴──────── batch            crossover = weights_us / (compute + KV reads of one row)
//
// Long contexts move it down: with the weights of the table below, 26 rows without context, 15 with 8,192 tokens each.
//
// Invariant: every number is finite for every input that is accepted. Integers are exact; the rest is double and + - * / only, so
// that the same input gives the same bytes everywhere.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "ops/kv_type.h"

namespace treadle {

struct PlanInput {
    uint64_t weight_bytes =
        0;                   // read by each pass: all weights of a dense model, the experts in use of another
    uint64_t bandwidth = 0;  // of the memory they lie in, bytes per second
    uint64_t token_flops = 0;   // for one token: two per weight that it meets
    uint64_t usable_flops = 0;  // that the machine really reaches on this work, per second
    uint64_t kv_bytes = 0;      // memory for the KV cache

    // Either the shape of the cache, or what a token takes in f16 (keys and values of all layers) with kv_heads and layers 0.
    int32_t layers = 0;  // that keep keys and values
    int32_t kv_heads = 0;
    int32_t head_dim = 128;  // divides the groups of a type; needed in both forms
    uint64_t kv_token_bytes_f16 = 0;
    KvType key_type = KvType::f16;
    KvType value_type = KvType::f16;

    int32_t batch = 1;               // rows of a pass
    int32_t context_tokens = 0;      // that each row reads, on the average; 0: leave the KV reads out
    int32_t sequence_tokens = 8192;  // length at which sequences are counted into the cache
};

struct PlanOutput {
    // The cache. Blocks hold 16 tokens, and a sequence takes whole ones.
    uint64_t kv_token_bytes = 0;  // with the chosen types
    uint64_t kv_block_bytes = 0;
    uint64_t kv_blocks = 0;  // that fit
    uint64_t kv_tokens = 0;  // 16 * kv_blocks
    uint64_t sequences = 0;  // of sequence_tokens each

    // A pass of `batch` rows.
    double weights_us = 0;
    double compute_us = 0;
    double kv_read_us = 0;
    double pass_us = 0;
    double tokens_per_second = 0;  // batch / pass

    // The crossover: without KV reads, and with `context_tokens` read by each row. Saturates at INT64_MAX.
    int64_t crossover_batch = 0;
    int64_t crossover_batch_context = 0;
    double tokens_per_second_max = 0;  // what no batch exceeds: 1 / (compute + KV reads of one row)
};

// Computes the plan. INVALID_ARGUMENT and LIMIT name the field and its value, and leave *out as it was.
[[nodiscard]] Status plan_capacity(const PlanInput& input, PlanOutput* out, Error* error);

}  // namespace treadle
