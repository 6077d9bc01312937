// The tensors of the llama family: what each is called, what shape it must have, and how it gets into the
// store.
#include "model/model_weights.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/limits.h"
#include "gguf/quoted.h"
#include "model/rope_tables.h"

namespace treadle {
namespace {

using Whole = unsigned long long;  // what %llu wants

enum class Extent : uint8_t { one, hidden, queries, keys, feed_forward, vocabulary };
enum class Need : uint8_t { always, bias, qkv_bias };

int32_t extent_of(const HyperParameters& model, Extent extent) {
    switch (extent) {
        case Extent::one: return 1;
        case Extent::hidden: return model.hidden;
        case Extent::queries: return model.query_columns();
        case Extent::keys: return model.kv_columns();
        case Extent::feed_forward: return model.feed_forward;
        case Extent::vocabulary: return model.vocabulary;
    }
    return 0;
}

struct LayerTensor {
    const char* suffix;  // after "blk.N."
    WeightId LayerWeights::*id;
    Extent columns;
    Extent rows;  // one: a vector
    Need need;
};

using L = LayerWeights;
constexpr LayerTensor layer_tensors[] = {
    {"attn_norm.weight", &L::attention_norm, Extent::hidden, Extent::one, Need::always},
    {"attn_q.weight", &L::query, Extent::hidden, Extent::queries, Need::always},
    {"attn_k.weight", &L::key, Extent::hidden, Extent::keys, Need::always},
    {"attn_v.weight", &L::value, Extent::hidden, Extent::keys, Need::always},
    {"attn_output.weight", &L::attention_output, Extent::queries, Extent::hidden, Need::always},
    {"ffn_norm.weight", &L::feed_forward_norm, Extent::hidden, Extent::one, Need::always},
    {"ffn_gate.weight", &L::gate, Extent::hidden, Extent::feed_forward, Need::always},
    {"ffn_up.weight", &L::up, Extent::hidden, Extent::feed_forward, Need::always},
    {"ffn_down.weight", &L::down, Extent::feed_forward, Extent::hidden, Need::always},
    {"attn_q.bias", &L::query_bias, Extent::queries, Extent::one, Need::qkv_bias},
    {"attn_k.bias", &L::key_bias, Extent::keys, Extent::one, Need::qkv_bias},
    {"attn_v.bias", &L::value_bias, Extent::keys, Extent::one, Need::qkv_bias},
    {"attn_output.bias", &L::attention_output_bias, Extent::hidden, Extent::one, Need::bias},
    {"ffn_gate.bias", &L::gate_bias, Extent::feed_forward, Extent::one, Need::bias},
    {"ffn_up.bias", &L::up_bias, Extent::feed_forward, Extent::one, Need::bias},
    {"ffn_down.bias", &L::down_bias, Extent::hidden, Extent::one, Need::bias},
};

constexpr const char* rope_factors_name = "rope_freqs.weight";

// A tensor that the model needs, and where it keeps the store's id.
struct FoundTensor {
    const TensorView* tensor;
    WeightUse use;
    WeightId* id;
};

// Finds and checks tensors, and remembers which of the file's were asked for.
class TensorPlan {
public:
    TensorPlan(const GgufFile& file, Memory* scratch, Error* error)
        : file_(file), error_(error), tensors_(scratch), used_(file.tensors().size(), 0, scratch) {}

    Status add(const char* name, int32_t columns, int32_t rows, bool required, WeightId* id) {
        const TensorView* tensor = file_.find_tensor(name);
        if (tensor == nullptr) {
            if (required) return fail(error_, Status::CORRUPT, "tensor %s is missing", name);
            return Status::OK;
        }
        const WeightUse use = rows == 1 ? WeightUse::vector : WeightUse::matrix;
        TREADLE_TRY(check_shape(*tensor, name, columns, rows));
        if (use == WeightUse::vector && packed_kind(tensor->type) != nullptr)
            return fail(error_, Status::UNSUPPORTED_TYPE,
                        "tensor %s is %s; gains and biases may be F32, F16 or BF16", name,
                        type_info(tensor->type).name);
        used_[static_cast<size_t>(tensor - file_.tensors().data())] = 1;
        tensors_.push_back({tensor, use, id});
        return Status::OK;
    }

    // A tensor of a layer or of the head that nobody asked for means another forward than ours; others do no
    // harm.
    Status refuse_unknown(const char* architecture, const LogHook& log) const {
        for (size_t i = 0; i < used_.size(); ++i) {
            const std::string_view name = file_.tensors()[i].name;
            if (used_[i] != 0 || name == rope_factors_name) continue;
            const bool in_the_way =
                name.starts_with("blk.") || name.starts_with("output") || name.starts_with("token_");
            const bool obsolete =
                name.ends_with(".attn_rot_embd.weight") || name.ends_with(".rotary_emb.inv_freq");
            if (in_the_way && !obsolete)
                return fail(error_, Status::UNSUPPORTED_ARCHITECTURE,
                            "tensor %s is no part of the architecture %s as this library computes it",
                            Quoted(name).text, architecture);
            log_line(log, LogLevel::debug, "tensor %s is not used", Quoted(name).text);
        }
        return Status::OK;
    }

    const std::pmr::vector<FoundTensor>& in_file_order() {
        std::sort(tensors_.begin(), tensors_.end(), [](const FoundTensor& a, const FoundTensor& b) {
            if (a.tensor->file_index != b.tensor->file_index)
                return a.tensor->file_index < b.tensor->file_index;
            return a.tensor->offset < b.tensor->offset;
        });
        return tensors_;
    }

private:
    Status check_shape(const TensorView& tensor, const char* name, int32_t columns, int32_t rows) const {
        const auto* dims = tensor.dims;
        if (dims[0] == static_cast<uint64_t>(columns) && dims[1] == static_cast<uint64_t>(rows) &&
            dims[2] == 1 && dims[3] == 1)
            return Status::OK;
        char expected[32];
        if (rows == 1)
            std::snprintf(expected, sizeof expected, "%d", columns);
        else
            std::snprintf(expected, sizeof expected, "%d x %d", columns, rows);
        return fail(error_, Status::CORRUPT, "tensor %s is %llu x %llu x %llu x %llu; expected %s", name,
                    static_cast<Whole>(dims[0]), static_cast<Whole>(dims[1]), static_cast<Whole>(dims[2]),
                    static_cast<Whole>(dims[3]), expected);
    }

    const GgufFile& file_;
    Error* error_;
    std::pmr::vector<FoundTensor> tensors_;
    std::pmr::vector<uint8_t> used_;  // of the file's tensors
};

Status add_to_store(const FoundTensor& found, WeightStore& store, Error* error) {
    const TensorView& tensor = *found.tensor;
    char name[limits::name_bytes_max + 1] = {};
    std::memcpy(name, tensor.name.data(), std::min(tensor.name.size(), sizeof name - 1));
    const WeightShape shape = {name, static_cast<uint32_t>(tensor.type), static_cast<int64_t>(tensor.rows()),
                               static_cast<int64_t>(tensor.dims[0]), tensor.bytes};
    return store.add(shape, found.use, found.id, error);
}

Status plan_layer(const HyperParameters& model, int32_t layer, TensorPlan& plan, LayerWeights* weights) {
    for (const LayerTensor& tensor : layer_tensors) {
        char name[64];
        std::snprintf(name, sizeof name, "blk.%d.%s", layer, tensor.suffix);
        const bool required = tensor.need == Need::always ||
                              (tensor.need == Need::qkv_bias && model.architecture == Architecture::qwen2);
        TREADLE_TRY(plan.add(name, extent_of(model, tensor.columns), extent_of(model, tensor.rows), required,
                             &(weights->*tensor.id)));
    }
    return Status::OK;
}

Status plan_all(const HyperParameters& model, TensorPlan& plan, LlamaWeights* weights) {
    TREADLE_TRY(
        plan.add("token_embd.weight", model.hidden, model.vocabulary, true, &weights->token_embedding));
    for (int32_t layer = 0; layer < model.layers; ++layer)
        TREADLE_TRY(plan_layer(model, layer, plan, &weights->layers[static_cast<size_t>(layer)]));
    TREADLE_TRY(plan.add("output_norm.weight", model.hidden, 1, true, &weights->output_norm));
    return plan.add("output.weight", model.hidden, model.vocabulary, false, &weights->head);
}

}  // namespace

Status load_weights(const GgufFile& file, const HyperParameters& model, const LoadHooks& hooks,
                    WeightStore& store, Memory* scratch, Fingerprint* fingerprint, LlamaWeights* out,
                    Error* error) {
    out->layers.assign(static_cast<size_t>(model.layers), LayerWeights{});
    TensorPlan plan(file, scratch, error);
    TREADLE_TRY(plan_all(model, plan, out));
    TREADLE_TRY(plan.refuse_unknown(architecture_name(model.architecture), hooks.log));

    std::pmr::vector<PlannedTensor> planned(scratch);
    for (const FoundTensor& found : plan.in_file_order()) {
        TREADLE_TRY(add_to_store(found, store, error));
        planned.push_back({found.tensor, *found.id});
    }
    store.allocate();
    TREADLE_TRY(WeightReader(file, planned, hooks, store, scratch, fingerprint, error).read_all());
    if (out->head == no_weight) out->head = out->token_embedding;
    return Status::OK;
}

Status read_rope_factors(const GgufFile& file, const HyperParameters& model, Fingerprint* fingerprint,
                         std::pmr::vector<float>* out, Error* error) {
    out->clear();
    const TensorView* tensor = file.find_tensor(rope_factors_name);
    if (tensor == nullptr) return Status::OK;
    const auto pairs = static_cast<uint64_t>(model.rope.rotary_dims / 2);
    if (tensor->type != TensorType::F32)
        return fail(error, Status::UNSUPPORTED_TYPE, "tensor %s is %s; only F32 is supported",
                    rope_factors_name, type_info(tensor->type).name);
    if (tensor->dims[0] != pairs || tensor->rows() != 1)
        return fail(error, Status::CORRUPT,
                    "tensor %s has %llu x %llu values; expected %llu, one for each pair", rope_factors_name,
                    static_cast<Whole>(tensor->dims[0]), static_cast<Whole>(tensor->rows()),
                    static_cast<Whole>(pairs));
    out->resize(static_cast<size_t>(pairs));
    const size_t bytes = static_cast<size_t>(pairs) * sizeof(float);
    TREADLE_TRY(file.read_tensor(*tensor, 0, out->data(), bytes, error));
    for (size_t i = 0; i < out->size(); ++i) {
        const float factor = (*out)[i];
        if (!(factor >= RopeTable::factor_min && factor <= RopeTable::factor_max))
            return fail(error, Status::CORRUPT, "tensor %s has %g at %zu; %g to %g are supported",
                        rope_factors_name, static_cast<double>(factor), i,
                        static_cast<double>(RopeTable::factor_min),
                        static_cast<double>(RopeTable::factor_max));
    }
    fingerprint->update(out->data(), bytes);
    return Status::OK;
}

}  // namespace treadle
