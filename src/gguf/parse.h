// Parses the header of one GGUF file: metadata pairs and tensor infos. Called by read_gguf, once per file.
//
// Invariant: a loop ends and memory grows only as bytes of the file are consumed; each length is compared
// with what is left of the file before it is used.
//
//     | "GGUF" | version u32 | tensors u64 | pairs u64 | pairs … | tensor infos … | padding | tensor data |
//      pair:   key (length u64, bytes) | type u32 | value
//      info:   name (length u64, bytes) | dimensions u32 | u64 each | type u32 | offset u64 from the start of
//      tensor data
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string_view>
#include <vector>

#include "base/hooks.h"
#include "base/memory.h"
#include "base/status.h"
#include "gguf/metadata.h"
#include "gguf/reader.h"

namespace treadle {

class HeaderParser {
public:
    // Fills `metadata` and appends to `tensors`.
    HeaderParser(FileReader& reader, uint32_t file_index, Memory* memory, Metadata* metadata,
                 std::pmr::vector<TensorView>* tensors, Error* error)
        : reader_(reader), file_index_(file_index), memory_(memory), metadata_(*metadata), tensors_(*tensors),
          error_(error), bytes_(metadata->bytes_), file_bytes_(reader.size()), names_(memory) {}

    [[nodiscard]] Status parse();
    uint32_t version() const { return version_; }  // after parse

private:
    struct Name {  // of a tensor, while bytes_ may still move
        uint32_t offset;
        uint32_t bytes;
    };
    // What is being parsed, for messages.
    enum class Section { header, pair, tensor };

    Status parse_counts();
    Status parse_pair();
    Status parse_value(Metadata::Entry* entry);
    Status parse_array(Metadata::Entry* entry);
    Status parse_array_head(uint32_t* type, uint64_t* count);
    Status skip_nested(uint64_t count);
    Status skip_numbers(ValueType type, uint64_t count);
    Status skip_strings(uint64_t count, bool indexed);
    Status sort_metadata();
    Status parse_alignment();
    Status parse_tensor();
    Status parse_dims(TensorView* tensor, uint32_t n_dims);
    Status measure(TensorView* tensor);
    Status place_tensors(size_t first_tensor);
    Status check_overlap(size_t first_tensor);

    uint64_t left() const { return file_bytes_ - position_; }
    Status need(uint64_t size, const char* what);
    Status load(uint64_t end);
    template <class T>
    Status number(T* out, const char* what);
    Status name(uint64_t bytes_max, Name* out, const char* what);
    std::string_view view(Name name) const { return {bytes_.data() + name.offset, name.bytes}; }
    __attribute__((format(printf, 3, 4))) Status refuse(Status status, const char* format, ...);

    FileReader& reader_;
    uint32_t file_index_;
    Memory* memory_;
    Metadata& metadata_;
    std::pmr::vector<TensorView>& tensors_;
    Error* error_;
    std::pmr::vector<char>& bytes_;  // of the metadata: the file's first bytes, as many as were needed so far
    uint64_t file_bytes_;
    uint64_t position_ = 0;  // never beyond bytes_
    std::pmr::vector<Name> names_;

    Section section_ = Section::header;
    uint64_t index_ = 0;     // of the pair or tensor
    Name current_ = {0, 0};  // its name, once that was read
    uint32_t version_ = 0;
    uint64_t tensor_count_ = 0;
    uint64_t pair_count_ = 0;
    uint32_t alignment_ = 0;
};

}  // namespace treadle
