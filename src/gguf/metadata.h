// The metadata of a model file: its header's bytes as they stand in the file, and an index of where each
// value lies. Filled by gguf/parse, asked by the model loader and the tokenizer through typed lookups.
//
// Invariant: every offset in the index was checked against the bytes when it was made; a lookup cannot leave
// them.
//
//     bytes   | magic | version | counts | key | type | value | key | type | value | … | tensor infos |
//     entries                               ^key_offset  ^value_offset   (sorted by key)
//     strings  offset of each element of each string array: 4 bytes a token, its text stays where it was read
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "base/status.h"

namespace treadle {

enum class ValueType : uint32_t {  // GGUF's numbers
    u8 = 0,
    i8 = 1,
    u16 = 2,
    i16 = 3,
    u32 = 4,
    i32 = 5,
    f32 = 6,
    boolean = 7,
    string = 8,
    array = 9,
    u64 = 10,
    i64 = 11,
    f64 = 12,
};

const char* value_type_name(ValueType type);
size_t value_type_bytes(ValueType type);  // 0 for string and array

// An array of numbers or bools as it stands in the file, which aligns nothing: elements are read by copying.
struct NumberArray {
    ValueType type = ValueType::u8;
    uint64_t count = 0;
    const char* bytes = nullptr;

    bool is_integer() const {
        return type != ValueType::f32 && type != ValueType::f64 && type != ValueType::boolean;
    }
    // The element as an integer; false if it is not one or does not fit (a u64 beyond 2^63). index < count.
    bool integer_at(uint64_t index, int64_t* out) const;
    // The element as a number; bools are 0 and 1, 64-bit integers are rounded. index < count.
    double number_at(uint64_t index) const;
};

// An array of strings, each a view into the header. index < count.
struct StringArray {
    uint64_t count = 0;
    const uint32_t* offsets = nullptr;  // of each string's 8-byte length
    const char* bytes = nullptr;

    std::string_view operator[](uint64_t index) const {
        uint64_t length;
        std::memcpy(&length, bytes + offsets[index], sizeof length);
        return {bytes + offsets[index] + sizeof length, static_cast<size_t>(length)};
    }
};

class Metadata {
public:
    explicit Metadata(Memory* memory) : bytes_(memory), entries_(memory), string_offsets_(memory) {}

    // The file from its first byte to the end of its tensor infos.
    std::string_view header() const { return {bytes_.data(), bytes_.size()}; }

    bool has(std::string_view key) const { return find(key) != nullptr; }
    // False if the key is absent. The element type is that of an array, else the type itself.
    bool type_of(std::string_view key, ValueType* type, ValueType* element_type) const;
    size_t size() const { return entries_.size(); }
    std::string_view key_at(size_t index) const;  // in the order of the keys' bytes

    // Each lookup: OK; NOT_FOUND if the key is absent; CORRUPT if its value has another type; LIMIT if it
    // does not fit `out`. The message names the key, what was found and what was wanted; `out` is written
    // only with OK. Integers are accepted in any integer type, floats as f32 or f64 (rounded). Views live as
    // long as this object.
    [[nodiscard]] Status get(std::string_view key, uint32_t* out, Error* error) const;
    [[nodiscard]] Status get(std::string_view key, int32_t* out, Error* error) const;
    [[nodiscard]] Status get(std::string_view key, uint64_t* out, Error* error) const;
    [[nodiscard]] Status get(std::string_view key, float* out, Error* error) const;
    [[nodiscard]] Status get(std::string_view key, bool* out, Error* error) const;
    [[nodiscard]] Status get(std::string_view key, std::string_view* out, Error* error) const;
    [[nodiscard]] Status get(std::string_view key, NumberArray* out, Error* error) const;
    [[nodiscard]] Status get(std::string_view key, StringArray* out, Error* error) const;

    // The same where the key must be there: absent is CORRUPT.
    template <class T>
    [[nodiscard]] Status require(std::string_view key, T* out, Error* error) const {
        const Status status = get(key, out, error);
        return status == Status::NOT_FOUND ? missing(key, error) : status;
    }
    // The same with a value for an absent key.
    template <class T>
    [[nodiscard]] Status get_or(std::string_view key, T fallback, T* out, Error* error) const {
        if (!has(key)) {
            *out = fallback;
            return Status::OK;
        }
        return get(key, out, error);
    }

private:
    friend class HeaderParser;
    struct Entry {
        uint32_t key_offset;
        uint32_t key_bytes;
        ValueType type;
        ValueType element_type;  // of an array; else `type`
        uint32_t value_offset;   // a string's at its length, an array's at its first element
        uint32_t first_string;   // of a string array, in string_offsets_
        uint64_t count;          // elements of an array, else 1
    };
    std::string_view key_of(const Entry& entry) const {
        return {bytes_.data() + entry.key_offset, entry.key_bytes};
    }
    const Entry* find(std::string_view key) const;
    Status find_or_fail(std::string_view key, const Entry** out, Error* error) const;
    Status get_integer(std::string_view key, bool* negative, uint64_t* bits, Error* error) const;
    static Status missing(std::string_view key, Error* error);
    Status wrong_type(const Entry& entry, const char* wanted, Error* error) const;

    std::pmr::vector<char> bytes_;
    std::pmr::vector<Entry> entries_;
    std::pmr::vector<uint32_t> string_offsets_;
};

}  // namespace treadle
