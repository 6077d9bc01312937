// What the tests of src/model share: memory that counts and can run out, a weight store that records instead
// of packing, and a load of a GgufWriter's bytes.
#pragma once

#include <algorithm>
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

// Reads every tensor in pieces of `chunk` bytes and keeps them in `log`, which outlives it. Ids count from
// 100.
class RecordingStore final : public WeightStore {
public:
    RecordingStore(std::vector<Recorded>* log, size_t chunk) : log_(log), chunk_(chunk) {}

    Status load_weight(WeightSource& source, WeightUse use, WeightId* out, Error* error) override {
        Recorded weight{source.name,    source.type, source.rows,
                        source.columns, use,         std::vector<char>(source.bytes)};
        if (skip_bytes != 0 &&
            source.bytes > skip_bytes) {  // a store that reads the end first, and leaves a hole
            TREADLE_TRY(
                source.read(skip_bytes, weight.bytes.data() + skip_bytes, source.bytes - skip_bytes, error));
        } else {
            for (size_t done = 0; done < source.bytes; done += chunk_)
                TREADLE_TRY(source.read(done, weight.bytes.data() + done,
                                        std::min(chunk_, source.bytes - done), error));
        }
        *out = static_cast<WeightId>(100 + log_->size());
        bytes_ += source.bytes;
        log_->push_back(std::move(weight));
        return Status::OK;
    }
    size_t bytes() const override { return bytes_; }
    const char* numerics_id() const override { return "recording"; }
    const char* tier() const override { return "none"; }
    Status make_backend(const BackendParams&, MemorySet&, Owned<Backend>*, Error* error) override {
        return fail(error, Status::INTERNAL, "this store only records");
    }

    size_t skip_bytes = 0;

private:
    std::vector<Recorded>* log_;
    size_t chunk_;
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

    explicit Load(const GgufWriter& file, const LoadHooks& hooks = {}, size_t chunk = 1000,
                  size_t skip_bytes = 0) {
        const Bytes bytes = file.bytes();
        const Owned<FileReader> reader = open_memory(bytes.data(), bytes.size(), &memory.other);
        auto store = make_owned<RecordingStore>(&memory.weights, &recorded, chunk);
        store->skip_bytes = skip_bytes;
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
