// The forward of the llama family, literally.
#include "model/llama.h"

#include <cmath>
#include <initializer_list>

namespace treadle {
namespace {

// The softmax is computed in powers of two, so the query carries log2(e) beside the usual 1 / sqrt(head_dim).
float query_scale_of(int32_t head_dim) {
    constexpr double log2_e = 0x1.71547652b82fep+0;
    return static_cast<float>(log2_e / std::sqrt(static_cast<double>(head_dim)));
}

Linear linear_of(Value output, std::initializer_list<LinearPart> parts) {
    Linear linear{};
    for (const LinearPart& part : parts) linear.parts[linear.part_count++] = part;
    linear.output = output;
    return linear;
}

void emit_layer(const HyperParameters& model, const LayerWeights& w, int32_t layer, Program* out) {
    const RopeParameters& rope = model.rope;
    const float query_scale = query_scale_of(model.head_dim);
    const bool add_delta = layer > 0;  // what the layer before left
    constexpr int32_t group = 0;
    constexpr int32_t rope_table = 0;
    auto& ops = out->ops;

    ops.push_back(AddNorm{add_delta, w.attention_norm, model.norm_epsilon});
    ops.push_back(
        linear_of(Value::qkv, {{w.query, w.query_bias}, {w.key, w.key_bias}, {w.value, w.value_bias}}));
    ops.push_back(RopeWrite{layer, group, rope_table, rope.pair_order, rope.rotary_dims, query_scale});
    ops.push_back(Attend{layer, group});
    ops.push_back(Quantize{Value::attended});
    ops.push_back(linear_of(Value::delta, {{w.attention_output, w.attention_output_bias}}));

    ops.push_back(AddNorm{true, w.feed_forward_norm, model.norm_epsilon});
    ops.push_back(linear_of(Value::gate_up, {{w.gate, w.gate_bias}, {w.up, w.up_bias}}));
    ops.push_back(Gate{GateKind::silu});
    ops.push_back(linear_of(Value::delta, {{w.down, w.down_bias}}));
}

}  // namespace

void emit_llama(const HyperParameters& model, const LlamaWeights& weights, Program* out) {
    out->ops.clear();
    out->groups.assign({KvGroup{model.layers, model.kv_heads, model.head_dim}});
    out->rope_pairs.assign({model.rope.rotary_dims / 2});
    out->hidden = model.hidden;
    out->heads = model.heads;
    out->kv_heads = model.kv_heads;
    out->head_dim = model.head_dim;
    out->feed_forward = model.feed_forward;
    out->vocabulary = model.vocabulary;

    out->ops.push_back(Embed{weights.token_embedding, 1.0f});
    for (int32_t layer = 0; layer < model.layers; ++layer)
        emit_layer(model, weights.layers[static_cast<size_t>(layer)], layer, out);
    out->ops.push_back(AddNorm{true, weights.output_norm, model.norm_epsilon});
    out->ops.push_back(Logits{weights.head});
    out->ops.push_back(Candidates{});
}

}  // namespace treadle
