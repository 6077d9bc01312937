// Reads GGUF model files (versions 2 and 3, little-endian, also split into parts) from strangers: bytes in,
// typed views or a status out. Called by the model loader, once per model.
//
// Invariant: nothing is believed before it was checked against the size of the file; memory stays within a
// small multiple of the header's bytes; a file that was accepted names no byte outside of itself and no byte
// twice.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <string_view>
#include <vector>

#include "base/hooks.h"
#include "base/memory.h"
#include "base/status.h"
#include "gguf/metadata.h"
#include "quant/types.h"

namespace treadle {

struct TensorView {
    std::string_view name;
    uint64_t dims[4] = {1, 1, 1,
                        1};  // the first one runs fastest: a row has dims[0] values; unused ones are 1
    int n_dims = 0;
    TensorType type = TensorType::F32;
    uint32_t file_index = 0;  // of the part that holds it
    uint64_t offset = 0;      // of its first byte, from the start of that file
    uint64_t bytes = 0;

    uint64_t row_bytes() const {
        return dims[0] / type_info(type).block_values * type_info(type).block_bytes;
    }
    uint64_t rows() const { return bytes / row_bytes(); }
};

// Opens part `index` (from 0) of `count` of a split file, whose first part is being read. See split_path.
struct SiblingHook {
    void* user = nullptr;
    Status (*open)(void* user, uint32_t index, uint32_t count, Owned<FileReader>* out,
                   Error* error) = nullptr;
};

class GgufFile {
public:
    explicit GgufFile(Memory* memory);
    GgufFile(const GgufFile&) = delete;
    GgufFile& operator=(const GgufFile&) = delete;

    uint32_t version() const { return version_; }
    const Metadata& metadata() const { return *parts_.front().metadata; }
    uint32_t file_count() const { return static_cast<uint32_t>(parts_.size()); }
    uint64_t file_bytes() const;  // of all parts
    bool is_shareable() const;

    const std::pmr::vector<TensorView>& tensors() const { return tensors_; }  // as they stand in the file
    const TensorView* find_tensor(std::string_view name) const;               // null: there is none
    uint64_t tensor_bytes() const { return tensor_bytes_; }                   // of all tensors

    // Copies `size` bytes from `offset` within the tensor. Where is_shareable(), several threads may at once.
    [[nodiscard]] Status read_tensor(const TensorView& tensor, uint64_t offset, void* destination,
                                     size_t size, Error* error) const;

private:
    friend class GgufOpener;
    struct Part {
        FileReader* reader = nullptr;
        Owned<FileReader> owned_reader;  // parts after the first
        Owned<Metadata> metadata;        // also holds the names of the part's tensors
    };
    Memory* memory_;
    uint32_t version_ = 0;
    uint64_t tensor_bytes_ = 0;
    std::pmr::vector<Part> parts_;
    std::pmr::vector<TensorView> tensors_;
    std::pmr::vector<uint32_t> by_name_;  // indices into tensors_
};

// Reads and checks the header. `reader` must outlive the GgufFile. Without a sibling hook a split file is
// refused.
[[nodiscard]] Status read_gguf(FileReader& reader, const SiblingHook& siblings, Memory* memory,
                               Owned<GgufFile>* out, Error* error);

// Writes the path of part `index` of `count`, given the path of part 0 ("name-00001-of-00003.gguf"); false if
// `first_path` has no such ending for that count.
bool split_path(std::string_view first_path, uint32_t index, uint32_t count, std::pmr::string* out);

}  // namespace treadle
