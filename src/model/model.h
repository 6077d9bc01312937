// A loaded model: what engine_model owns beside the host's hooks. It holds the tokenizer, the
// hyper-parameters, the rope table and the packed weights in the store of the backend that the api layer
// chose; engines make their programs and backends from it.
//
// Life of a load:   header ─► hyper-parameters ─► vocabulary ─► check all tensors ─► allocate ─► read and pack
//
// Invariant: constant once loaded, so that engines on many threads share it; a load that fails leaves nothing
// behind.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <string>
#include <string_view>

#include "base/hooks.h"
#include "base/memory.h"
#include "gguf/reader.h"
#include "model/hyper_parameters.h"
#include "model/model_weights.h"
#include "model/rope_tables.h"
#include "ops/backend.h"
#include "ops/program.h"
#include "text/vocabulary.h"

namespace treadle {

// What engine_model_info tells.
struct ModelFacts {
    uint64_t fingerprint = 0;   // of the header and all tensors that are used
    uint64_t parameters = 0;    // values in all tensors of the file
    uint64_t file_bytes = 0;    // of all parts of a split file
    uint64_t tensor_bytes = 0;  // in the file
    uint64_t packed_bytes = 0;  // of the weights in memory
    uint64_t load_peak_bytes =
        0;  // most that weights and scratch took while loading; the tokenizer's tables apart
};

class Model {
public:
    Model(MemorySet& memory, Owned<WeightStore> store);

    const HyperParameters& hyper_parameters() const { return hyper_parameters_; }
    const RopeTable& rope_table() const { return rope_table_; }
    const Vocabulary& vocabulary() const { return *vocabulary_; }
    const LlamaWeights& weights() const { return weights_; }
    const ModelFacts& facts() const { return facts_; }
    std::string_view name() const { return name_; }  // general.name; may be empty
    std::string_view chat_template() const {
        return chat_template_;
    }  // tokenizer.chat_template; empty: the file has none

    // For making backends. The store is fixed but for that.
    WeightStore& weight_store() const { return *store_; }

    // The forward as a program of operations.
    void emit(Program* out) const;

private:
    friend class ModelLoader;
    Owned<WeightStore> store_;
    HyperParameters hyper_parameters_;
    RopeTable rope_table_;
    LlamaWeights weights_;
    Owned<Vocabulary> vocabulary_;
    std::pmr::string name_;
    std::pmr::string chat_template_;
    ModelFacts facts_;
};

// Reads a model through `reader` and, where the file is split, `siblings`. `store` is empty; it and `memory`
// are those that ModelFacts counts. `out` is set only on success; otherwise the store is destroyed.
[[nodiscard]] Status load_model(FileReader& reader, const SiblingHook& siblings, const LoadHooks& hooks,
                                Owned<WeightStore> store, MemorySet& memory, Owned<Model>* out, Error* error);

}  // namespace treadle
