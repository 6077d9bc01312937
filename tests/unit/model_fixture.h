// What the tests of src/model share: memory that counts and can run out, a weight store that records instead
// of packing, and a load of a GgufWriter's bytes.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "base/platform.h"
#include "gguf_writer.h"
#include "model/model.h"
#include "test_memory.h"

namespace treadle::test {

struct Recorded {
    std::string name;
    uint32_t type;
    int64_t rows;
    int64_t columns;
    WeightUse use;
    std::vector<char> bytes;
};

// Keeps every tensor as it is in `log`, which outlives it. Ids count from 100.
class RecordingStore final : public WeightStore {
public:
    explicit RecordingStore(std::vector<Recorded>* log) : log_(log) {}

    Status add(const WeightShape& tensor, WeightUse use, WeightId* out, Error*) override {
        *out = static_cast<WeightId>(100 + log_->size());
        log_->push_back(
            {tensor.name, tensor.type, tensor.rows, tensor.columns, use, std::vector<char>(tensor.bytes)});
        return Status::OK;
    }
    void allocate() override {
        for (const Recorded& weight : *log_) bytes_ += weight.bytes.size();
    }
    void pack(WeightId id, int64_t first_row, int64_t rows, const void* bytes) override {
        Recorded& weight = (*log_)[static_cast<size_t>(id - 100)];
        const size_t row_bytes = weight.bytes.size() / static_cast<size_t>(weight.rows);
        std::memcpy(weight.bytes.data() + static_cast<size_t>(first_row) * row_bytes, bytes,
                    static_cast<size_t>(rows) * row_bytes);
    }
    size_t bytes() const override { return bytes_; }
    const char* numerics_id() const override { return "recording"; }
    const char* tier() const override { return "none"; }
    Status make_backend(const BackendParams&, MemorySet&, Owned<Backend>*, Error* error) override {
        return fail(error, Status::INTERNAL, "this store only records");
    }

private:
    std::vector<Recorded>* log_;
    size_t bytes_ = 0;
};

// One load of a file, and what came of it.
struct Load {
    TestAllocator allocator;
    std::vector<Recorded> recorded;
    Error error;
    Status status = Status::OK;
    MemorySet memory{allocator.hooks()};
    Owned<Model> model;

    explicit Load(const GgufWriter& file, const LoadHooks& hooks = {}) {
        const Bytes bytes = file.bytes();
        const Owned<FileReader> reader = open_memory(bytes.data(), bytes.size(), &memory.other);
        auto store = make_owned<RecordingStore>(&memory.weights, &recorded);
        status = load_model(*reader, {}, hooks, std::move(store), memory, &model, &error);
    }
    bool says(const std::string& words) const {
        return std::string(error.message).find(words) != std::string::npos;
    }
    const Recorded* find(const std::string& name) const {
        for (const Recorded& weight : recorded)
            if (weight.name == name) return &weight;
        return nullptr;
    }
};

}  // namespace treadle::test
