// Loading of a model, phase by phase.
#include "model/model.h"

#include <string_view>

#include "model/fingerprint.h"
#include "model/llama.h"
#include "model/vocabulary_source.h"

namespace treadle {

Model::Model(MemorySet& memory, Owned<WeightStore> store)
    : store_(std::move(store)), rope_table_(&memory.other), weights_(&memory.other), name_(&memory.other),
      chat_template_(&memory.other) {}

void Model::emit(Program* out) const { emit_llama(hyper_parameters_, weights_, out); }

// What a load needs from its first phase to its last; all of it is scratch and gone afterwards.
class ModelLoader {
public:
    ModelLoader(FileReader& reader, const LoadHooks& hooks, MemorySet& memory, Model* model, Error* error)
        : reader_(reader), hooks_(hooks), memory_(memory), model_(*model), error_(error) {}

    Status load(const SiblingHook& siblings) {
        TREADLE_TRY(read_gguf(reader_, siblings, &memory_.scratch, &file_, error_));
        TREADLE_TRY(read_hyper_parameters(file_->metadata(), &model_.hyper_parameters_, error_));
        TREADLE_TRY(read_text());
        hash_header();
        TREADLE_TRY(make_rope_table());
        TREADLE_TRY(load_weights(*file_, model_.hyper_parameters_, hooks_, *model_.store_, &memory_.scratch,
                                 &fingerprint_, &model_.weights_, error_));
        count();
        return Status::OK;
    }

private:
    // Tokenizer, template and name: afterwards nothing points into the header any more.
    Status read_text() {
        const Metadata& metadata = file_->metadata();
        TREADLE_TRY(load_vocabulary(metadata, &memory_.scratch, &memory_.other, &model_.vocabulary_, error_));
        std::string_view text;
        TREADLE_TRY(metadata.get_or("general.name", std::string_view(), &text, error_));
        model_.name_.assign(text);
        TREADLE_TRY(metadata.get_or("tokenizer.chat_template", std::string_view(), &text, error_));
        model_.chat_template_.assign(text);
        return Status::OK;
    }

    // The header of the first part; of tensors in other parts what the reader made of their headers.
    void hash_header() {
        const std::string_view header = file_->metadata().header();
        fingerprint_.update(header.data(), header.size());
        for (const TensorView& tensor : file_->tensors())
            if (tensor.file_index != 0) hash_tensor_info(tensor);
    }

    void hash_tensor_info(const TensorView& tensor) {
        const uint64_t numbers[] = {tensor.name.size(), tensor.dims[0], tensor.dims[1],
                                    tensor.dims[2],     tensor.dims[3], static_cast<uint64_t>(tensor.type)};
        fingerprint_.update(numbers, sizeof numbers);
        fingerprint_.update(tensor.name.data(), tensor.name.size());
    }

    Status make_rope_table() {
        std::pmr::vector<float> factors(&memory_.scratch);
        TREADLE_TRY(read_rope_factors(*file_, model_.hyper_parameters_, &fingerprint_, &factors, error_));
        model_.rope_table_.make(model_.hyper_parameters_.rope, factors);
        return Status::OK;
    }

    void count() {
        ModelFacts& facts = model_.facts_;
        facts.fingerprint = fingerprint_.value();
        for (const TensorView& tensor : file_->tensors())
            facts.parameters += tensor.dims[0] * tensor.dims[1] * tensor.dims[2] * tensor.dims[3];
        facts.file_bytes = file_->file_bytes();
        facts.tensor_bytes = file_->tensor_bytes();
        facts.packed_bytes = model_.store_->bytes();
        facts.load_peak_bytes = memory_.weights.bytes_peak() + memory_.scratch.bytes_peak();
    }

    FileReader& reader_;
    const LoadHooks& hooks_;
    MemorySet& memory_;
    Model& model_;
    Error* error_;
    Fingerprint fingerprint_;
    Owned<GgufFile> file_;
};

Status load_model(FileReader& reader, const SiblingHook& siblings, const LoadHooks& hooks,
                  Owned<WeightStore> store, MemorySet& memory, Owned<Model>* out, Error* error) {
    auto model = make_owned<Model>(&memory.other, memory, std::move(store));
    ModelLoader loader(reader, hooks, memory, model.get(), error);
    TREADLE_TRY(loader.load(siblings));
    *out = std::move(model);
    return Status::OK;
}

}  // namespace treadle
