// Reading and checking of hyper-parameters, key by key.
#include "model/hyper_parameters.h"

#include <cfloat>
#include <cstdio>
#include <string_view>

#include "base/limits.h"

namespace treadle {
namespace {

struct ArchitectureInfo {
    Architecture architecture;
    const char* name;
    PairOrder pair_order;
};

constexpr ArchitectureInfo architectures[] = {
    {Architecture::llama, "llama",
     PairOrder::adjacent},  // the converter permutes its rows, so that pairs lie together
    {Architecture::qwen2, "qwen2", PairOrder::halves},
};

// Keys that other families use to change the forward. A file may state the neutral value; anything else is
// refused.
struct NeutralKey {
    const char* suffix;
    double neutral;
};

constexpr NeutralKey neutral_keys[] = {
    {"expert_count", 0},
    {"nextn_predict_layers", 0},
    {"embedding_scale", 1},
    {"residual_scale", 1},
    {"logit_scale", 1},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"attention.causal", 1},
    {"attention.scale", 0},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.temperature_scale", 0},
    {"attention.temperature_length", 0},
    {"attention.sliding_window_pattern", 0},
    {"rope.scaling.alpha", 0},
    {"rope.scaling.yarn_log_multiplier", 0},
    {"rope.scaling.yarn_ext_factor", 1},
    {"rope.scaling.yarn_attn_factor", 1},
};

// An interval of numbers; its ends belong to it.
struct Range {
    double lowest;
    double highest;
};

// Reads keys under the architecture's prefix and checks what they say.
class KeyReader {
public:
    KeyReader(const Metadata& metadata, const char* prefix, Error* error)
        : metadata_(metadata), prefix_(prefix), error_(error) {}

    const char* key(const char* suffix) {  // until the next call
        std::snprintf(key_, sizeof key_, "%s.%s", prefix_, suffix);
        return key_;
    }
    bool has(const char* suffix) { return metadata_.has(key(suffix)); }

    // 1 to `highest`; must be there.
    Status count(const char* suffix, uint32_t highest, int32_t* out) {
        uint64_t value = 0;
        TREADLE_TRY(metadata_.require(key(suffix), &value, error_));
        return check_count(value, highest, out);
    }

    Status count_or(const char* suffix, int32_t fallback, uint32_t highest, int32_t* out) {
        *out = fallback;
        return has(suffix) ? count(suffix, highest, out) : Status::OK;
    }

    // A count that may also be an array with one value per layer, all equal: this forward has one shape for
    // all layers.
    Status count_of_layers(const char* suffix, int32_t layers, uint32_t highest, int32_t* out) {
        ValueType type = ValueType::u32, element_type = ValueType::u32;
        if (!metadata_.type_of(key(suffix), &type, &element_type) || type != ValueType::array)
            return count(suffix, highest, out);
        NumberArray values;
        TREADLE_TRY(metadata_.get(key_, &values, error_));
        if (values.count != static_cast<uint64_t>(layers))
            return fail(error_, Status::CORRUPT, "%s has %llu values, but %s.block_count is %d", key_,
                        static_cast<unsigned long long>(values.count), prefix_, layers);
        int64_t first = 0;
        for (uint64_t i = 0; i < values.count; ++i) {
            int64_t value = 0;
            if (!values.integer_at(i, &value) || value < 0)
                return fail(error_, Status::CORRUPT, "%s[%llu] is not a count", key_,
                            static_cast<unsigned long long>(i));
            if (i == 0) first = value;
            if (value != first)
                return fail(
                    error_, Status::UNSUPPORTED_ARCHITECTURE,
                    "%s[%llu] is %lld and %s[0] is %lld; layers of different shapes are not supported", key_,
                    static_cast<unsigned long long>(i), static_cast<long long>(value), key_,
                    static_cast<long long>(first));
        }
        return check_count(static_cast<uint64_t>(first), highest, out);
    }

    Status number_or(const char* suffix, double fallback, Range range, double* out) {
        *out = fallback;
        if (!has(suffix)) return Status::OK;
        double value = 0;
        TREADLE_TRY(any_number(suffix, &value));
        if (!(value >= range.lowest && value <= range.highest))  // so written, NaN fails too
            return fail(error_, Status::CORRUPT, "%s is %g; %g to %g are supported", key_, value,
                        range.lowest, range.highest);
        *out = value;
        return Status::OK;
    }

    // The value of a key that is there, be it a bool, an integer or a float.
    Status any_number(const char* suffix, double* out) {
        ValueType type = ValueType::u32, element_type = ValueType::u32;
        metadata_.type_of(key(suffix), &type, &element_type);
        if (type == ValueType::boolean) {
            bool value = false;
            TREADLE_TRY(metadata_.get(key_, &value, error_));
            *out = value ? 1 : 0;
        } else if (type == ValueType::f32 || type == ValueType::f64) {
            float value = 0;
            TREADLE_TRY(metadata_.get(key_, &value, error_));
            *out = static_cast<double>(value);
        } else if (type == ValueType::string || type == ValueType::array) {
            return fail(error_, Status::UNSUPPORTED_ARCHITECTURE,
                        "%s is no single number, which is not supported", key_);
        } else {
            uint64_t value = 0;
            TREADLE_TRY(metadata_.get(key_, &value, error_));
            *out = static_cast<double>(value);
        }
        return Status::OK;
    }

private:
    Status check_count(uint64_t value, uint32_t highest, int32_t* out) {
        if (value == 0) return fail(error_, Status::CORRUPT, "%s is 0; at least 1 is needed", key_);
        if (value > highest)
            return fail(error_, Status::LIMIT, "%s is %llu; at most %u is supported", key_,
                        static_cast<unsigned long long>(value), highest);
        *out = static_cast<int32_t>(value);
        return Status::OK;
    }

    const Metadata& metadata_;
    const char* prefix_;
    Error* error_;
    char key_[128] = {};
};

Status find_architecture(const Metadata& metadata, const ArchitectureInfo** out, Error* error) {
    std::string_view name;
    TREADLE_TRY(metadata.require("general.architecture", &name, error));
    for (const ArchitectureInfo& info : architectures)
        if (name == info.name) {
            *out = &info;
            return Status::OK;
        }
    return fail(error, Status::UNSUPPORTED_ARCHITECTURE,
                "general.architecture is \"%.*s\"; llama and qwen2 are supported",
                static_cast<int>(name.size() < 64 ? name.size() : 64), name.data());
}

// head_dim: stated as key_length and value_length, else hidden / heads.
Status read_head_dim(KeyReader& keys, HyperParameters* out, Error* error) {
    int32_t fallback = 0;
    if (!keys.has("attention.key_length")) {
        if (out->hidden % out->heads != 0)
            return fail(error, Status::CORRUPT,
                        "%s is %d, not a multiple of the %d heads, and there is no key_length",
                        keys.key("embedding_length"), out->hidden, out->heads);
        fallback = out->hidden / out->heads;
    }
    int32_t value_length = 0;
    TREADLE_TRY(keys.count_or("attention.key_length", fallback, limits::head_dim_max, &out->head_dim));
    TREADLE_TRY(keys.count_or("attention.value_length", out->head_dim, limits::head_dim_max, &value_length));
    if (value_length != out->head_dim)
        return fail(error, Status::UNSUPPORTED_ARCHITECTURE,
                    "%s is %d, but keys have %d; keys and values of different lengths are not supported",
                    keys.key("attention.value_length"), value_length, out->head_dim);
    if (out->head_dim > static_cast<int32_t>(limits::head_dim_max))
        return fail(error, Status::LIMIT, "%s is %d for %d heads, so a head has %d; at most %u is supported",
                    keys.key("embedding_length"), out->hidden, out->heads, out->head_dim,
                    limits::head_dim_max);
    if (out->head_dim % 16 != 0)
        return fail(error, Status::UNSUPPORTED_ARCHITECTURE,
                    "a head has %d dimensions; multiples of 16 are supported", out->head_dim);
    return Status::OK;
}

Status read_shape(KeyReader& keys, HyperParameters* out, Error* error) {
    TREADLE_TRY(keys.count("block_count", limits::layers_max, &out->layers));
    TREADLE_TRY(keys.count("context_length", limits::context_max, &out->context));
    TREADLE_TRY(keys.count("embedding_length", limits::hidden_max, &out->hidden));
    TREADLE_TRY(keys.count_of_layers("feed_forward_length", out->layers, limits::feed_forward_max,
                                     &out->feed_forward));
    TREADLE_TRY(keys.count_of_layers("attention.head_count", out->layers, limits::heads_max, &out->heads));
    out->kv_heads = out->heads;
    if (keys.has("attention.head_count_kv"))
        TREADLE_TRY(
            keys.count_of_layers("attention.head_count_kv", out->layers, limits::heads_max, &out->kv_heads));
    if (out->heads % out->kv_heads != 0)
        return fail(error, Status::CORRUPT, "%s is %d, which does not divide the %d heads",
                    keys.key("attention.head_count_kv"), out->kv_heads, out->heads);
    TREADLE_TRY(read_head_dim(keys, out, error));

    double epsilon = 0;
    const char* epsilon_suffix = "attention.layer_norm_rms_epsilon";
    if (!keys.has(epsilon_suffix))
        return fail(error, Status::CORRUPT, "%s is missing", keys.key(epsilon_suffix));
    TREADLE_TRY(keys.any_number(epsilon_suffix, &epsilon));
    if (!(epsilon > 0 && epsilon < 1))
        return fail(error, Status::CORRUPT, "%s is %g; it must be above 0 and below 1",
                    keys.key(epsilon_suffix), epsilon);
    out->norm_epsilon = static_cast<float>(epsilon);
    return Status::OK;
}

Status read_yarn(KeyReader& keys, const HyperParameters& shape, RopeParameters* rope, Error* error) {
    TREADLE_TRY(keys.count_or("rope.scaling.original_context_length", shape.context, limits::context_max,
                              &rope->original_context));
    TREADLE_TRY(keys.number_or("rope.scaling.yarn_beta_slow", 1, {0x1p-10, 0x1p20}, &rope->beta_slow));
    TREADLE_TRY(
        keys.number_or("rope.scaling.yarn_beta_fast", 32, {rope->beta_slow, 0x1p20}, &rope->beta_fast));
    if (!(rope->freq_base > 1))
        return fail(error, Status::CORRUPT, "%s is %g; yarn scaling needs one above 1",
                    keys.key("rope.freq_base"), rope->freq_base);
    return Status::OK;
}

Status read_rope(const Metadata& metadata, KeyReader& keys, HyperParameters* out, Error* error) {
    RopeParameters& rope = out->rope;
    TREADLE_TRY(
        keys.count_or("rope.dimension_count", out->head_dim, limits::head_dim_max, &rope.rotary_dims));
    if (rope.rotary_dims % 2 != 0 || rope.rotary_dims > out->head_dim)
        return fail(error, Status::CORRUPT,
                    "%s is %d; it must be even and at most the %d dimensions of a head",
                    keys.key("rope.dimension_count"), rope.rotary_dims, out->head_dim);
    TREADLE_TRY(keys.number_or("rope.freq_base", 10000, {1, static_cast<double>(FLT_MAX)}, &rope.freq_base));
    TREADLE_TRY(keys.number_or("rope.scaling.attn_factor", 1, {0x1p-10, 0x1p10}, &rope.attention_factor));

    std::string_view type = "linear";  // what a bare factor means
    TREADLE_TRY(metadata.get_or(keys.key("rope.scaling.type"), type, &type, error));
    const char* factor_key =
        keys.has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";  // the older name
    const Range factors = {1, 0x1p20};
    if (type == "none") return Status::OK;
    if (type == "linear") {
        TREADLE_TRY(keys.number_or(factor_key, 1, factors, &rope.factor));
        rope.scaling = rope.factor == 1 ? RopeScaling::none : RopeScaling::linear;
        return Status::OK;
    }
    if (type == "yarn") {
        rope.scaling = RopeScaling::yarn;
        TREADLE_TRY(keys.number_or(factor_key, 1, factors, &rope.factor));
        return read_yarn(keys, *out, &rope, error);
    }
    return fail(error, Status::UNSUPPORTED_ARCHITECTURE,
                "%s is \"%.*s\"; none, linear and yarn are supported", keys.key("rope.scaling.type"),
                static_cast<int>(type.size() < 64 ? type.size() : 64), type.data());
}

Status refuse_other_forwards(KeyReader& keys, const HyperParameters& shape, Error* error) {
    double value = 0;
    for (const NeutralKey& neutral : neutral_keys) {
        if (!keys.has(neutral.suffix)) continue;
        TREADLE_TRY(keys.any_number(neutral.suffix, &value));
        if (value != neutral.neutral)
            return fail(error, Status::UNSUPPORTED_ARCHITECTURE, "%s is %g, which is not supported",
                        keys.key(neutral.suffix), value);
    }
    const char* window_suffix =
        "attention.sliding_window";  // one that never ends before the context does no harm
    if (!keys.has(window_suffix)) return Status::OK;
    TREADLE_TRY(keys.any_number(window_suffix, &value));
    if (value != 0 && !(value >= static_cast<double>(shape.context)))
        return fail(error, Status::UNSUPPORTED_ARCHITECTURE, "%s is %g, which is not supported",
                    keys.key(window_suffix), value);
    return Status::OK;
}

// The tokenizer's list is the vocabulary; vocab_size only repeats its length.
Status read_vocabulary_size(const Metadata& metadata, KeyReader& keys, HyperParameters* out, Error* error) {
    StringArray tokens;
    TREADLE_TRY(metadata.require("tokenizer.ggml.tokens", &tokens, error));
    if (tokens.count == 0) return fail(error, Status::CORRUPT, "tokenizer.ggml.tokens is empty");
    if (tokens.count > limits::vocabulary_max)
        return fail(error, Status::LIMIT, "tokenizer.ggml.tokens has %llu tokens; at most %u are supported",
                    static_cast<unsigned long long>(tokens.count), limits::vocabulary_max);
    const auto listed = static_cast<int32_t>(tokens.count);
    TREADLE_TRY(keys.count_or("vocab_size", listed, limits::vocabulary_max, &out->vocabulary));
    if (out->vocabulary != listed)
        return fail(error, Status::CORRUPT, "%s is %d, but tokenizer.ggml.tokens has %d tokens",
                    keys.key("vocab_size"), out->vocabulary, listed);
    return Status::OK;
}

}  // namespace

const char* architecture_name(Architecture architecture) {
    for (const ArchitectureInfo& info : architectures)
        if (info.architecture == architecture) return info.name;
    return "unknown";
}

Status read_hyper_parameters(const Metadata& metadata, HyperParameters* out, Error* error) {
    const ArchitectureInfo* info = nullptr;
    TREADLE_TRY(find_architecture(metadata, &info, error));
    KeyReader keys(metadata, info->name, error);
    HyperParameters read;
    read.architecture = info->architecture;
    read.rope.pair_order = info->pair_order;
    TREADLE_TRY(read_shape(keys, &read, error));
    TREADLE_TRY(read_rope(metadata, keys, &read, error));
    TREADLE_TRY(refuse_other_forwards(keys, read, error));
    TREADLE_TRY(read_vocabulary_size(metadata, keys, &read, error));
    *out = read;
    return Status::OK;
}

}  // namespace treadle
