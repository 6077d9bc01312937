// Gathers tokenizer.ggml.* into the plain views that src/text takes.
#include "model/vocabulary_source.h"

#include <optional>
#include <string_view>
#include <vector>

#include "base/limits.h"

namespace treadle {
namespace {

Status read_strings(const Metadata& metadata, const char* key, bool required,
                    std::pmr::vector<std::string_view>* out, Error* error) {
    if (!required && !metadata.has(key)) return Status::OK;
    StringArray strings;
    TREADLE_TRY(metadata.require(key, &strings, error));
    if (strings.count > limits::array_values_max)
        return fail(error, Status::LIMIT, "%s has %llu values; at most %llu are supported", key,
                    static_cast<unsigned long long>(strings.count),
                    static_cast<unsigned long long>(limits::array_values_max));
    out->reserve(static_cast<size_t>(strings.count));
    for (uint64_t i = 0; i < strings.count; ++i) out->push_back(strings[i]);
    return Status::OK;
}

Status read_types(const Metadata& metadata, std::pmr::vector<int32_t>* out, Error* error) {
    constexpr const char* key = "tokenizer.ggml.token_type";
    if (!metadata.has(key)) return Status::OK;
    NumberArray types;
    TREADLE_TRY(metadata.get(key, &types, error));
    if (types.count > limits::vocabulary_max)
        return fail(error, Status::LIMIT, "%s has %llu values; at most %u are supported", key,
                    static_cast<unsigned long long>(types.count), limits::vocabulary_max);
    out->reserve(static_cast<size_t>(types.count));
    for (uint64_t i = 0; i < types.count; ++i) {
        int64_t type = 0;
        if (!types.integer_at(i, &type) || type < INT32_MIN || type > INT32_MAX)
            return fail(error, Status::CORRUPT, "%s[%llu] is not an integer of 32 bits", key,
                        static_cast<unsigned long long>(i));
        out->push_back(static_cast<int32_t>(type));
    }
    return Status::OK;
}

Status read_id(const Metadata& metadata, const char* key, int64_t* out, Error* error) {
    if (!metadata.has(key)) return Status::OK;
    uint32_t id = 0;
    TREADLE_TRY(metadata.get(key, &id, error));
    *out = int64_t{id};
    return Status::OK;
}

Status read_flag(const Metadata& metadata, const char* key, std::optional<bool>* out, Error* error) {
    if (!metadata.has(key)) return Status::OK;
    bool flag = false;
    TREADLE_TRY(metadata.get(key, &flag, error));
    *out = flag;
    return Status::OK;
}

}  // namespace

Status load_vocabulary(const Metadata& metadata, Memory* scratch, Memory* memory, Owned<Vocabulary>* out,
                       Error* error) {
    std::pmr::vector<std::string_view> tokens(scratch), merges(scratch);
    std::pmr::vector<int32_t> types(scratch);
    VocabularySource source;
    TREADLE_TRY(metadata.require("tokenizer.ggml.model", &source.model, error));
    TREADLE_TRY(metadata.get_or("tokenizer.ggml.pre", std::string_view(), &source.pre, error));
    TREADLE_TRY(read_strings(metadata, "tokenizer.ggml.tokens", true, &tokens, error));
    TREADLE_TRY(read_strings(metadata, "tokenizer.ggml.merges", false, &merges, error));
    TREADLE_TRY(read_types(metadata, &types, error));
    TREADLE_TRY(read_id(metadata, "tokenizer.ggml.bos_token_id", &source.bos, error));
    TREADLE_TRY(read_id(metadata, "tokenizer.ggml.eos_token_id", &source.eos, error));
    TREADLE_TRY(read_id(metadata, "tokenizer.ggml.eot_token_id", &source.eot, error));
    TREADLE_TRY(read_id(metadata, "tokenizer.ggml.unknown_token_id", &source.unk, error));
    TREADLE_TRY(read_id(metadata, "tokenizer.ggml.padding_token_id", &source.pad, error));
    TREADLE_TRY(read_flag(metadata, "tokenizer.ggml.add_bos_token", &source.add_bos, error));
    TREADLE_TRY(read_flag(metadata, "tokenizer.ggml.add_eos_token", &source.add_eos, error));
    source.tokens = tokens;
    source.merges = merges;
    source.types = types;
    return make_vocabulary(source, memory, out, error);
}

}  // namespace treadle
