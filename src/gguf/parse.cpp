// The parser of one file's header, in the order of the file.
#include "gguf/parse.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/limits.h"
#include "gguf/quoted.h"

namespace treadle {
namespace {

constexpr uint32_t alignment_default = 32;
constexpr uint64_t first_load_bytes = 1 << 16;
constexpr uint64_t read_bytes_max = 1 << 20;  // per call of the file reader
constexpr uint64_t pair_bytes_min = 8 + 1 + 4 + 1;
constexpr uint64_t tensor_bytes_min = 8 + 1 + 4 + 8 + 4 + 8;

unsigned long long printed(uint64_t value) { return value; }

uint32_t byte_swapped(uint32_t value) {
    return value >> 24 | (value >> 8 & 0xff00u) | (value << 8 & 0xff0000u) | value << 24;
}

}  // namespace

// A failure with the name of the pair or tensor that is being parsed in front.
Status HeaderParser::refuse(Status status, const char* format, ...) {
    char words[320];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    const char* kind = section_ == Section::pair ? "metadata" : "tensor";
    if (section_ == Section::header) return fail(error_, status, "%s", words);
    if (current_.bytes > 0) return fail(error_, status, "%s %s %s", kind, Quoted(view(current_)).text, words);
    return fail(error_, status, "%s number %llu %s", kind, printed(index_), words);
}

// Makes the next `size` bytes present in bytes_.
Status HeaderParser::need(uint64_t size, const char* what) {
    if (size > left()) {
        return refuse(Status::TRUNCATED,
                      "needs %llu bytes for its %s at byte %llu, but the file ends at byte %llu",
                      printed(size), what, printed(position_), printed(file_bytes_));
    }
    const uint64_t end = position_ + size;
    if (end <= bytes_.size()) return Status::OK;
    if (end > limits::metadata_bytes_max) {
        return refuse(Status::LIMIT, "brings the header to %llu bytes, at most %llu are read", printed(end),
                      printed(limits::metadata_bytes_max));
    }
    return load(end);
}

// Reads ahead to at least `end`, doubling what is there, so that the number of reads and copies stays
// logarithmic.
Status HeaderParser::load(uint64_t end) {
    uint64_t loaded = bytes_.size();
    uint64_t target = std::max({end, 2 * loaded, first_load_bytes});
    target = std::min({target, file_bytes_, limits::metadata_bytes_max});
    bytes_.resize(target);
    while (loaded < target) {
        const uint64_t size = std::min(target - loaded, read_bytes_max);
        TREADLE_TRY(reader_.read(loaded, bytes_.data() + loaded, size, error_));
        loaded += size;
    }
    return Status::OK;
}

template <class T>
Status HeaderParser::number(T* out, const char* what) {
    TREADLE_TRY(need(sizeof(T), what));
    std::memcpy(out, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return Status::OK;
}

// A key or the name of a tensor.
Status HeaderParser::name(uint64_t bytes_max, Name* out, const char* what) {
    uint64_t length;
    TREADLE_TRY(number(&length, what));
    if (length == 0) return refuse(Status::CORRUPT, "has an empty %s", what);
    if (length > bytes_max) {
        return refuse(Status::LIMIT, "has a %s of %llu bytes, at most %llu are allowed", what,
                      printed(length), printed(bytes_max));
    }
    TREADLE_TRY(need(length, what));
    const Name found{static_cast<uint32_t>(position_), static_cast<uint32_t>(length)};
    if (!is_utf8(view(found)) || view(found).find('\0') != std::string_view::npos) {
        return refuse(Status::CORRUPT, "has a %s that is not UTF-8 text: %s", what, Quoted(view(found)).text);
    }
    position_ += length;
    *out = found;
    return Status::OK;
}

Status HeaderParser::parse() {
    const size_t first_tensor = tensors_.size();
    TREADLE_TRY(parse_counts());
    section_ = Section::pair;
    for (index_ = 0; index_ < pair_count_; ++index_) TREADLE_TRY(parse_pair());
    TREADLE_TRY(sort_metadata());
    TREADLE_TRY(parse_alignment());
    section_ = Section::tensor;
    for (index_ = 0; index_ < tensor_count_; ++index_) TREADLE_TRY(parse_tensor());

    bytes_.resize(position_);  // what was read ahead belongs to tensors
    bytes_.shrink_to_fit();
    metadata_.string_offsets_.shrink_to_fit();
    for (size_t i = 0; i < names_.size(); ++i) tensors_[first_tensor + i].name = view(names_[i]);
    return place_tensors(first_tensor);
}

Status HeaderParser::parse_counts() {
    if (file_bytes_ == 0) return refuse(Status::TRUNCATED, "the file is empty");
    char magic[4] = {};
    const size_t there = static_cast<size_t>(std::min<uint64_t>(file_bytes_, sizeof magic));
    TREADLE_TRY(reader_.read(0, magic, there, error_));
    if (std::memcmp(magic, "GGUF", there) != 0) {
        return refuse(Status::BAD_MAGIC, "the file begins with the bytes %02x %02x %02x %02x, not with GGUF",
                      magic[0] & 0xff, magic[1] & 0xff, magic[2] & 0xff, magic[3] & 0xff);
    }
    constexpr uint64_t head_bytes = 4 + 4 + 8 + 8;
    if (file_bytes_ >= 8) {  // a wrong version is said even of a file that ends after it
        TREADLE_TRY(need(8, "version"));
        position_ = 4;
        TREADLE_TRY(number(&version_, "version"));
        if (version_ != 2 && version_ != 3) {
            const uint32_t swapped = byte_swapped(version_);
            const bool big_endian = swapped >= 1 && swapped <= 0xffff;
            return refuse(Status::BAD_VERSION,
                          "the file has GGUF version %u%s; versions 2 and 3, little-endian, are read",
                          big_endian ? swapped : version_, big_endian ? " in big-endian byte order" : "");
        }
    }
    if (file_bytes_ < head_bytes) {
        return refuse(Status::TRUNCATED,
                      "the file ends at byte %llu, within the %llu bytes that every GGUF file begins with",
                      printed(file_bytes_), printed(head_bytes));
    }
    TREADLE_TRY(number(&tensor_count_, "tensor count"));
    TREADLE_TRY(number(&pair_count_, "metadata count"));
    if (tensor_count_ > limits::tensors_max) {
        return refuse(Status::LIMIT, "the header announces %llu tensors, at most %llu are allowed",
                      printed(tensor_count_), printed(limits::tensors_max));
    }
    if (pair_count_ > limits::metadata_pairs_max) {
        return refuse(Status::LIMIT, "the header announces %llu metadata pairs, at most %llu are allowed",
                      printed(pair_count_), printed(limits::metadata_pairs_max));
    }
    if (pair_count_ * pair_bytes_min + tensor_count_ * tensor_bytes_min > left()) {
        return refuse(
            Status::TRUNCATED,
            "the header announces %llu metadata pairs and %llu tensors, but the file ends at byte %llu",
            printed(pair_count_), printed(tensor_count_), printed(file_bytes_));
    }
    metadata_.entries_.reserve(pair_count_);
    tensors_.reserve(tensors_.size() + tensor_count_);
    names_.reserve(tensor_count_);
    return Status::OK;
}

Status HeaderParser::parse_pair() {
    current_ = {0, 0};
    TREADLE_TRY(name(limits::key_bytes_max, &current_, "key"));
    Metadata::Entry entry = {};
    entry.key_offset = current_.offset;
    entry.key_bytes = current_.bytes;
    uint32_t type;
    TREADLE_TRY(number(&type, "type"));
    if (type > static_cast<uint32_t>(ValueType::f64)) {
        return refuse(Status::CORRUPT, "has value type %u, GGUF's are 0 to 12", type);
    }
    entry.type = static_cast<ValueType>(type);
    TREADLE_TRY(parse_value(&entry));
    metadata_.entries_.push_back(entry);
    return Status::OK;
}

Status HeaderParser::parse_value(Metadata::Entry* entry) {
    if (entry->type == ValueType::array) return parse_array(entry);
    entry->element_type = entry->type;
    entry->count = 1;
    entry->value_offset = static_cast<uint32_t>(position_);
    if (entry->type == ValueType::string) return skip_strings(1, false);
    return skip_numbers(entry->type, 1);
}

Status HeaderParser::parse_array(Metadata::Entry* entry) {
    uint32_t type;
    TREADLE_TRY(parse_array_head(&type, &entry->count));
    entry->element_type = static_cast<ValueType>(type);
    entry->value_offset = static_cast<uint32_t>(position_);
    entry->first_string = static_cast<uint32_t>(metadata_.string_offsets_.size());
    if (entry->element_type == ValueType::array) return skip_nested(entry->count);
    if (entry->element_type == ValueType::string) return skip_strings(entry->count, true);
    return skip_numbers(entry->element_type, entry->count);
}

Status HeaderParser::parse_array_head(uint32_t* type, uint64_t* count) {
    TREADLE_TRY(number(type, "element type"));
    if (*type > static_cast<uint32_t>(ValueType::f64)) {
        return refuse(Status::CORRUPT, "is an array of value type %u, GGUF's are 0 to 12", *type);
    }
    TREADLE_TRY(number(count, "count of elements"));
    if (*count > limits::array_values_max) {
        return refuse(Status::LIMIT, "is an array of %llu elements, at most %llu are allowed",
                      printed(*count), printed(limits::array_values_max));
    }
    return Status::OK;
}

// The elements of an array of arrays: checked, then of no use to anyone. Each inner array consumes at least
// its head.
Status HeaderParser::skip_nested(uint64_t count) {
    uint64_t left_at[limits::array_depth_max] = {count};  // arrays still to come, per level
    int depth = 1;
    while (depth > 0) {
        if (left_at[depth - 1] == 0) {
            --depth;
            continue;
        }
        --left_at[depth - 1];
        uint32_t type = 0;
        uint64_t inner = 0;
        TREADLE_TRY(parse_array_head(&type, &inner));
        const auto element_type = static_cast<ValueType>(type);
        if (element_type == ValueType::array) {
            if (depth + 1 >= limits::array_depth_max) {
                return refuse(Status::LIMIT, "nests arrays deeper than %d", limits::array_depth_max);
            }
            left_at[depth++] = inner;
        } else if (element_type == ValueType::string) {
            TREADLE_TRY(skip_strings(inner, false));
        } else {
            TREADLE_TRY(skip_numbers(element_type, inner));
        }
    }
    return Status::OK;
}

Status HeaderParser::skip_numbers(ValueType type, uint64_t count) {
    const uint64_t size = count * value_type_bytes(type);
    TREADLE_TRY(need(size, "value"));
    if (type == ValueType::boolean) {
        for (uint64_t i = 0; i < count; ++i) {
            const auto byte = static_cast<uint8_t>(bytes_[position_ + i]);
            if (byte > 1)
                return refuse(Status::CORRUPT, "has a bool with the byte %u, 0 and 1 are allowed", byte);
        }
    }
    position_ += size;
    return Status::OK;
}

Status HeaderParser::skip_strings(uint64_t count, bool indexed) {
    if (count * sizeof(uint64_t) > left()) return need(count * sizeof(uint64_t), "strings");
    for (uint64_t i = 0; i < count; ++i) {
        if (indexed) metadata_.string_offsets_.push_back(static_cast<uint32_t>(position_));
        uint64_t length;
        TREADLE_TRY(number(&length, "string's length"));
        if (length > limits::string_bytes_max) {
            return refuse(Status::LIMIT, "has a string of %llu bytes, at most %llu are allowed",
                          printed(length), printed(limits::string_bytes_max));
        }
        TREADLE_TRY(need(length, "string"));
        position_ += length;
    }
    return Status::OK;
}

Status HeaderParser::sort_metadata() {
    auto& entries = metadata_.entries_;
    std::sort(entries.begin(), entries.end(), [this](const Metadata::Entry& a, const Metadata::Entry& b) {
        return metadata_.key_of(a) < metadata_.key_of(b);
    });
    for (size_t i = 1; i < entries.size(); ++i) {
        if (metadata_.key_of(entries[i]) != metadata_.key_of(entries[i - 1])) continue;
        current_ = {entries[i].key_offset, entries[i].key_bytes};
        return refuse(Status::CORRUPT, "is there twice");
    }
    return Status::OK;
}

Status HeaderParser::parse_alignment() {
    constexpr std::string_view key = "general.alignment";
    TREADLE_TRY(metadata_.get_or(key, alignment_default, &alignment_, error_));
    if (alignment_ == 0 || (alignment_ & (alignment_ - 1)) != 0) {
        return fail(error_, Status::CORRUPT, "metadata \"general.alignment\" is %u, which is no power of two",
                    alignment_);
    }
    if (alignment_ > limits::alignment_max) {
        return fail(error_, Status::LIMIT, "metadata \"general.alignment\" is %u, at most %u is allowed",
                    alignment_, limits::alignment_max);
    }
    return Status::OK;
}

Status HeaderParser::parse_tensor() {
    current_ = {0, 0};
    TREADLE_TRY(name(limits::name_bytes_max, &current_, "name"));
    TensorView tensor;
    tensor.file_index = file_index_;
    uint32_t n_dims;
    TREADLE_TRY(number(&n_dims, "number of dimensions"));
    TREADLE_TRY(parse_dims(&tensor, n_dims));
    uint32_t type;
    TREADLE_TRY(number(&type, "type"));
    const TypeInfo* info = type_info(type);
    if (info == nullptr) {
        const char* foreign = foreign_type_name(type);
        return refuse(Status::UNSUPPORTED_TYPE, "has type %u (%s), which is not supported", type,
                      foreign != nullptr ? foreign : "unknown");
    }
    tensor.type = info->type;
    TREADLE_TRY(measure(&tensor));
    TREADLE_TRY(number(&tensor.offset, "offset"));
    if (tensor.offset % alignment_ != 0) {
        return refuse(Status::CORRUPT, "has offset %llu, which is no multiple of the alignment %u",
                      printed(tensor.offset), alignment_);
    }
    tensors_.push_back(tensor);
    names_.push_back(current_);
    return Status::OK;
}

Status HeaderParser::parse_dims(TensorView* tensor, uint32_t n_dims) {
    if (n_dims == 0) return refuse(Status::CORRUPT, "has 0 dimensions");
    if (n_dims > limits::tensor_dimensions_max) {
        return refuse(Status::LIMIT, "has %u dimensions, at most %d are allowed", n_dims,
                      limits::tensor_dimensions_max);
    }
    tensor->n_dims = static_cast<int>(n_dims);
    for (uint32_t i = 0; i < n_dims; ++i) {
        TREADLE_TRY(number(&tensor->dims[i], "dimensions"));
        if (tensor->dims[i] == 0) return refuse(Status::CORRUPT, "has dimension %u of size 0", i);
    }
    return Status::OK;
}

// The tensor's bytes, without a product that wraps.
Status HeaderParser::measure(TensorView* tensor) {
    const TypeInfo& info = type_info(tensor->type);
    if (tensor->dims[0] % info.block_values != 0) {
        return refuse(Status::CORRUPT,
                      "has rows of %llu values, which is no multiple of the %u in a block of %s",
                      printed(tensor->dims[0]), info.block_values, info.name);
    }
    uint64_t size = tensor->dims[0] / info.block_values;
    bool wraps = __builtin_mul_overflow(size, uint64_t{info.block_bytes}, &size);
    for (int i = 1; i < limits::tensor_dimensions_max; ++i) {
        wraps = wraps || __builtin_mul_overflow(size, tensor->dims[i], &size);
    }
    if (wraps) {
        return refuse(Status::CORRUPT,
                      "with the dimensions %llu x %llu x %llu x %llu has more bytes than 64 bits count",
                      printed(tensor->dims[0]), printed(tensor->dims[1]), printed(tensor->dims[2]),
                      printed(tensor->dims[3]));
    }
    tensor->bytes = size;
    return Status::OK;
}

// Turns offsets within the tensor data into offsets within the file, which must hold every byte of them.
Status HeaderParser::place_tensors(size_t first_tensor) {
    const uint64_t data_offset = (position_ + alignment_ - 1) / alignment_ * alignment_;
    const uint64_t data_bytes = data_offset < file_bytes_ ? file_bytes_ - data_offset : 0;
    for (size_t i = first_tensor; i < tensors_.size(); ++i) {
        TensorView& tensor = tensors_[i];
        current_ = names_[i - first_tensor];
        if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
            return refuse(Status::TRUNCATED,
                          "has %llu bytes at offset %llu, but the file holds %llu bytes of tensor data",
                          printed(tensor.bytes), printed(tensor.offset), printed(data_bytes));
        }
        tensor.offset += data_offset;
    }
    return check_overlap(first_tensor);
}

Status HeaderParser::check_overlap(size_t first_tensor) {
    std::pmr::vector<uint32_t> order(memory_);
    order.reserve(tensors_.size() - first_tensor);
    for (size_t i = first_tensor; i < tensors_.size(); ++i) order.push_back(static_cast<uint32_t>(i));
    std::sort(order.begin(), order.end(),
              [this](uint32_t a, uint32_t b) { return tensors_[a].offset < tensors_[b].offset; });
    for (size_t i = 1; i < order.size(); ++i) {
        const TensorView& lower = tensors_[order[i - 1]];
        const TensorView& upper = tensors_[order[i]];
        if (upper.offset - lower.offset >= lower.bytes) continue;
        current_ = names_[order[i] - first_tensor];
        return refuse(Status::CORRUPT, "overlaps tensor %s", Quoted(lower.name).text);
    }
    return Status::OK;
}

}  // namespace treadle
