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

struct PlannedTensor {
    const TensorView* tensor;
    WeightId* id;
    WeightUse use;
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
        tensors_.push_back({tensor, id, use});
        bytes_ += tensor->bytes;
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

    std::pmr::vector<PlannedTensor>& in_file_order() {
        std::sort(tensors_.begin(), tensors_.end(), [](const PlannedTensor& a, const PlannedTensor& b) {
            if (a.tensor->file_index != b.tensor->file_index)
                return a.tensor->file_index < b.tensor->file_index;
            return a.tensor->offset < b.tensor->offset;
        });
        return tensors_;
    }
    uint64_t bytes() const { return bytes_; }

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
    std::pmr::vector<PlannedTensor> tensors_;
    std::pmr::vector<uint8_t> used_;  // of the file's tensors
    uint64_t bytes_ = 0;
};

// A tensor of the file as the store reads it. Each read asks the host whether to go on, and feeds the
// fingerprint with the bytes that it has not had yet; bytes that the store skipped are fed by finish.
class FileWeightSource final : public WeightSource {
public:
    FileWeightSource(const GgufFile& file, const PlannedTensor& planned, const ProgressHook& progress,
                     uint64_t done_before, uint64_t total, Fingerprint* fingerprint)
        : file_(file), tensor_(*planned.tensor), progress_(progress), done_before_(done_before),
          total_(total), fingerprint_(fingerprint) {
        const size_t length = std::min(tensor_.name.size(), sizeof name_ - 1);
        std::memcpy(name_, tensor_.name.data(), length);
        name = name_;
        type = static_cast<uint32_t>(tensor_.type);
        columns = static_cast<int64_t>(tensor_.dims[0]);
        rows = static_cast<int64_t>(tensor_.rows());
        bytes = tensor_.bytes;
    }

    Status read(uint64_t offset, void* destination, size_t size, Error* error) override {
        if (!progress_.go_on(done_before_ + fed_, total_))
            return fail(error, Status::STOPPED, "loading was stopped after %llu of %llu bytes",
                        static_cast<Whole>(done_before_ + fed_), static_cast<Whole>(total_));
        TREADLE_TRY(file_.read_tensor(tensor_, offset, destination, size, error));
        if (offset <= fed_ && offset + size > fed_) {
            const auto known = static_cast<size_t>(fed_ - offset);
            fingerprint_->update(static_cast<const char*>(destination) + known, size - known);
            fed_ = offset + size;
        }
        return Status::OK;
    }

    Status finish(Error* error) {
        char chunk[4096];
        while (fed_ < bytes)
            TREADLE_TRY(read(fed_, chunk, static_cast<size_t>(std::min<uint64_t>(sizeof chunk, bytes - fed_)),
                             error));
        return Status::OK;
    }

private:
    const GgufFile& file_;
    const TensorView& tensor_;
    const ProgressHook& progress_;
    uint64_t done_before_;
    uint64_t total_;
    uint64_t fed_ = 0;  // bytes from the tensor's start that the fingerprint has had
    Fingerprint* fingerprint_;
    char name_[limits::name_bytes_max + 1] = {};
};

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

    uint64_t done = 0;
    for (const PlannedTensor& planned : plan.in_file_order()) {
        FileWeightSource source(file, planned, hooks.progress, done, plan.bytes(), fingerprint);
        TREADLE_TRY(store.load_weight(source, planned.use, planned.id, error));
        TREADLE_TRY(source.finish(error));
        done += planned.tensor->bytes;
    }
    if (!hooks.progress.go_on(done, done))
        return fail(error, Status::STOPPED, "loading was stopped after all %llu bytes",
                    static_cast<Whole>(done));
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
