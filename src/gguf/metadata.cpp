// Typed lookups in a model file's metadata.
#include "gguf/metadata.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "gguf/quoted.h"

namespace treadle {

static_assert(std::endian::native == std::endian::little, "the file's bytes are read in place");

namespace {

template <class T>
T read_as(const char* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

bool is_signed(ValueType type) {
    return type == ValueType::i8 || type == ValueType::i16 || type == ValueType::i32 ||
           type == ValueType::i64;
}

bool is_unsigned(ValueType type) {
    return type == ValueType::u8 || type == ValueType::u16 || type == ValueType::u32 ||
           type == ValueType::u64;
}

// An integer of any type, its sign extended to 64 bits.
uint64_t integer_bits(ValueType type, const char* bytes) {
    switch (type) {
        case ValueType::u8: return read_as<uint8_t>(bytes);
        case ValueType::i8: return static_cast<uint64_t>(int64_t{read_as<int8_t>(bytes)});
        case ValueType::u16: return read_as<uint16_t>(bytes);
        case ValueType::i16: return static_cast<uint64_t>(int64_t{read_as<int16_t>(bytes)});
        case ValueType::u32: return read_as<uint32_t>(bytes);
        case ValueType::i32: return static_cast<uint64_t>(int64_t{read_as<int32_t>(bytes)});
        default: return read_as<uint64_t>(bytes);
    }
}

}  // namespace

const char* value_type_name(ValueType type) {
    switch (type) {
        case ValueType::u8: return "u8";
        case ValueType::i8: return "i8";
        case ValueType::u16: return "u16";
        case ValueType::i16: return "i16";
        case ValueType::u32: return "u32";
        case ValueType::i32: return "i32";
        case ValueType::f32: return "f32";
        case ValueType::boolean: return "bool";
        case ValueType::string: return "string";
        case ValueType::array: return "array";
        case ValueType::u64: return "u64";
        case ValueType::i64: return "i64";
        case ValueType::f64: return "f64";
    }
    return "unknown";
}

size_t value_type_bytes(ValueType type) {
    switch (type) {
        case ValueType::u8:
        case ValueType::i8:
        case ValueType::boolean: return 1;
        case ValueType::u16:
        case ValueType::i16: return 2;
        case ValueType::u32:
        case ValueType::i32:
        case ValueType::f32: return 4;
        case ValueType::u64:
        case ValueType::i64:
        case ValueType::f64: return 8;
        case ValueType::string:
        case ValueType::array: return 0;
    }
    return 0;
}

bool NumberArray::integer_at(uint64_t index, int64_t* out) const {
    if (!is_integer()) return false;
    const uint64_t bits = integer_bits(type, bytes + index * value_type_bytes(type));
    if (type == ValueType::u64 && bits > static_cast<uint64_t>(INT64_MAX)) return false;
    *out = static_cast<int64_t>(bits);
    return true;
}

double NumberArray::number_at(uint64_t index) const {
    const char* place = bytes + index * value_type_bytes(type);
    if (type == ValueType::f32) return static_cast<double>(read_as<float>(place));
    if (type == ValueType::f64) return read_as<double>(place);
    if (type == ValueType::boolean) return static_cast<double>(read_as<uint8_t>(place));
    const uint64_t bits = integer_bits(type, place);
    return is_signed(type) ? static_cast<double>(static_cast<int64_t>(bits)) : static_cast<double>(bits);
}

const Metadata::Entry* Metadata::find(std::string_view key) const {
    const auto place = std::lower_bound(
        entries_.begin(), entries_.end(), key,
        [this](const Entry& entry, std::string_view wanted) { return key_of(entry) < wanted; });
    return place != entries_.end() && key_of(*place) == key ? &*place : nullptr;
}

bool Metadata::type_of(std::string_view key, ValueType* type, ValueType* element_type) const {
    const Entry* entry = find(key);
    if (entry == nullptr) return false;
    *type = entry->type;
    *element_type = entry->element_type;
    return true;
}

std::string_view Metadata::key_at(size_t index) const { return key_of(entries_[index]); }

Status Metadata::missing(std::string_view key, Error* error) {
    return fail(error, Status::CORRUPT, "metadata %s is missing", Quoted(key).text);
}

Status Metadata::wrong_type(const Entry& entry, const char* wanted, Error* error) const {
    const bool array = entry.type == ValueType::array;
    return fail(error, Status::CORRUPT, "metadata %s has type %s%s, %s is wanted", Quoted(key_of(entry)).text,
                array ? "array of " : "", value_type_name(array ? entry.element_type : entry.type), wanted);
}

Status Metadata::find_or_fail(std::string_view key, const Entry** out, Error* error) const {
    *out = find(key);
    if (*out != nullptr) return Status::OK;
    return fail(error, Status::NOT_FOUND, "metadata %s is missing", Quoted(key).text);
}

// Any integer type; `negative` tells how to read the 64 bits.
Status Metadata::get_integer(std::string_view key, bool* negative, uint64_t* bits, Error* error) const {
    const Entry* entry;
    TREADLE_TRY(find_or_fail(key, &entry, error));
    if (!is_signed(entry->type) && !is_unsigned(entry->type)) return wrong_type(*entry, "an integer", error);
    *bits = integer_bits(entry->type, bytes_.data() + entry->value_offset);
    *negative = is_signed(entry->type) && static_cast<int64_t>(*bits) < 0;
    return Status::OK;
}

namespace {

Status out_of_range(std::string_view key, bool negative, uint64_t bits, const char* range, Error* error) {
    if (negative) {
        return fail(error, Status::LIMIT, "metadata %s is %lld, beyond %s", Quoted(key).text,
                    static_cast<long long>(bits), range);
    }
    return fail(error, Status::LIMIT, "metadata %s is %llu, beyond %s", Quoted(key).text,
                static_cast<unsigned long long>(bits), range);
}

}  // namespace

Status Metadata::get(std::string_view key, uint32_t* out, Error* error) const {
    bool negative = false;
    uint64_t bits = 0;
    TREADLE_TRY(get_integer(key, &negative, &bits, error));
    if (negative || bits > UINT32_MAX) return out_of_range(key, negative, bits, "0 to 4294967295", error);
    *out = static_cast<uint32_t>(bits);
    return Status::OK;
}

Status Metadata::get(std::string_view key, int32_t* out, Error* error) const {
    bool negative = false;
    uint64_t bits = 0;
    TREADLE_TRY(get_integer(key, &negative, &bits, error));
    const bool fits = negative ? static_cast<int64_t>(bits) >= INT32_MIN : bits <= uint64_t{INT32_MAX};
    if (!fits) return out_of_range(key, negative, bits, "-2147483648 to 2147483647", error);
    *out = static_cast<int32_t>(static_cast<int64_t>(bits));
    return Status::OK;
}

Status Metadata::get(std::string_view key, uint64_t* out, Error* error) const {
    bool negative = false;
    uint64_t bits = 0;
    TREADLE_TRY(get_integer(key, &negative, &bits, error));
    if (negative) return out_of_range(key, negative, bits, "0 and up", error);
    *out = bits;
    return Status::OK;
}

Status Metadata::get(std::string_view key, float* out, Error* error) const {
    const Entry* entry;
    TREADLE_TRY(find_or_fail(key, &entry, error));
    const char* place = bytes_.data() + entry->value_offset;
    if (entry->type == ValueType::f32) {
        *out = read_as<float>(place);
        return Status::OK;
    }
    if (entry->type != ValueType::f64) return wrong_type(*entry, "f32", error);
    const auto value = read_as<double>(place);
    constexpr double f32_max = std::numeric_limits<float>::max();
    const bool finite = value - value == 0.0;
    if (finite && (value > f32_max || value < -f32_max)) {
        return fail(error, Status::LIMIT, "metadata %s is %g, beyond the range of f32", Quoted(key).text,
                    value);
    }
    *out = static_cast<float>(value);
    return Status::OK;
}

Status Metadata::get(std::string_view key, bool* out, Error* error) const {
    const Entry* entry;
    TREADLE_TRY(find_or_fail(key, &entry, error));
    if (entry->type != ValueType::boolean) return wrong_type(*entry, "bool", error);
    *out = bytes_[entry->value_offset] != 0;
    return Status::OK;
}

Status Metadata::get(std::string_view key, std::string_view* out, Error* error) const {
    const Entry* entry;
    TREADLE_TRY(find_or_fail(key, &entry, error));
    if (entry->type != ValueType::string) return wrong_type(*entry, "string", error);
    const char* place = bytes_.data() + entry->value_offset;
    *out = {place + 8, static_cast<size_t>(read_as<uint64_t>(place))};
    return Status::OK;
}

Status Metadata::get(std::string_view key, NumberArray* out, Error* error) const {
    const Entry* entry;
    TREADLE_TRY(find_or_fail(key, &entry, error));
    if (entry->type != ValueType::array || value_type_bytes(entry->element_type) == 0) {
        return wrong_type(*entry, "an array of numbers", error);
    }
    *out = {entry->element_type, entry->count, bytes_.data() + entry->value_offset};
    return Status::OK;
}

Status Metadata::get(std::string_view key, StringArray* out, Error* error) const {
    const Entry* entry;
    TREADLE_TRY(find_or_fail(key, &entry, error));
    if (entry->type != ValueType::array || entry->element_type != ValueType::string) {
        return wrong_type(*entry, "an array of strings", error);
    }
    *out = {entry->count, string_offsets_.data() + entry->first_string, bytes_.data()};
    return Status::OK;
}

}  // namespace treadle
