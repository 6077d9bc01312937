// Writes small GGUF files for tests: well-formed ones, malformed ones (every field can be overwritten), and
// whole tiny random llama models that any engine of this format can load. Used by the tests of all layers.
//
// Invariant: the bytes are a function of the arguments alone, on every compiler and machine (golden hashes
// stand on that).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/metadata.h"
#include "quant/types.h"

namespace treadle::test {

using Bytes = std::vector<char>;

// Appends the bytes of a value, little-endian.
template <class T>
void append(Bytes& bytes, T value) {
    const auto* from = reinterpret_cast<const char*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof value);
}
void append_string(Bytes& bytes, std::string_view text);  // 8-byte length, then the text

class GgufWriter {
public:
    struct Pair {
        std::string key;
        uint32_t type = 0;
        Bytes value;                         // as it stands in the file, after the type
        std::optional<uint64_t> key_length;  // written instead of the true one
    };
    struct Tensor {
        std::string name;
        std::vector<uint64_t> dims;
        uint32_t type = 0;
        Bytes data;
        std::optional<uint64_t> offset;       // written instead of the true one
        std::optional<uint32_t> n_dims;       // likewise
        std::optional<uint64_t> name_length;  // likewise
    };

    // Everything is open to be damaged; the counts are written instead of the true ones where they are set.
    std::string magic = "GGUF";
    uint32_t version = 3;
    uint64_t alignment =
        32;  // of tensor data; not written as metadata unless set("general.alignment", …) is called
    std::optional<uint64_t> pair_count;
    std::optional<uint64_t> tensor_count;
    std::vector<Pair> pairs;
    std::vector<Tensor> tensors;

    // Sets (adds or replaces) a value.
    void set(std::string_view key, uint8_t value) { set_number(key, ValueType::u8, value); }
    void set(std::string_view key, int8_t value) { set_number(key, ValueType::i8, value); }
    void set(std::string_view key, uint16_t value) { set_number(key, ValueType::u16, value); }
    void set(std::string_view key, int16_t value) { set_number(key, ValueType::i16, value); }
    void set(std::string_view key, uint32_t value) { set_number(key, ValueType::u32, value); }
    void set(std::string_view key, int32_t value) { set_number(key, ValueType::i32, value); }
    void set(std::string_view key, uint64_t value) { set_number(key, ValueType::u64, value); }
    void set(std::string_view key, int64_t value) { set_number(key, ValueType::i64, value); }
    void set(std::string_view key, float value) { set_number(key, ValueType::f32, value); }
    void set(std::string_view key, double value) { set_number(key, ValueType::f64, value); }
    void set(std::string_view key, bool value) { set_number(key, ValueType::boolean, uint8_t{value}); }
    void set(std::string_view key, std::string_view value);
    void set(std::string_view key, const char* value) { set(key, std::string_view(value)); }
    void set(std::string_view key, const std::vector<std::string>& values);
    void set(std::string_view key, const std::vector<int32_t>& values) {
        set_array(key, ValueType::i32, values);
    }
    void set(std::string_view key, const std::vector<uint32_t>& values) {
        set_array(key, ValueType::u32, values);
    }
    void set(std::string_view key, const std::vector<float>& values) {
        set_array(key, ValueType::f32, values);
    }
    template <class T>
    void set_array(std::string_view key, ValueType element_type, const std::vector<T>& values) {
        Bytes bytes;
        append(bytes, static_cast<uint32_t>(element_type));
        append(bytes, static_cast<uint64_t>(values.size()));
        for (const T& value : values) append(bytes, value);
        set_raw(key, static_cast<uint32_t>(ValueType::array), std::move(bytes));
    }
    void set_raw(std::string_view key, uint32_t type, Bytes value);
    void remove(std::string_view key);

    Tensor& add_tensor(std::string name, std::vector<uint64_t> dims, TensorType type, Bytes data);
    Tensor* find_tensor(std::string_view name);

    Bytes bytes() const;          // the whole file
    size_t header_bytes() const;  // up to the end of the tensor infos, before padding

private:
    template <class T>
    void set_number(std::string_view key, ValueType type, T value) {
        Bytes bytes;
        append(bytes, value);
        set_raw(key, static_cast<uint32_t>(type), std::move(bytes));
    }
    Bytes header() const;
};

// splitmix64; the same everywhere.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next();
    uint32_t below(uint32_t limit) { return static_cast<uint32_t>((next() >> 32) * limit >> 32); }
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
    double normal();  // near enough: a sum of twelve uniforms

private:
    uint64_t state_;
};

// Random weights of about this mean and deviation, encoded in `type`. For quantized types the mean is 0:
// random codes under scales that vary by half around what gives the deviation. `values` is a multiple of the
// type's block.
Bytes random_tensor(Random& random, TensorType type, uint64_t values, double deviation, double mean = 0.0);
Bytes f32_tensor(const std::vector<float>& values);

struct TinyLlamaOptions {
    uint32_t layers = 2;
    uint32_t hidden = 64;
    uint32_t heads = 4;
    uint32_t kv_heads = 2;
    uint32_t head_dim = 16;
    uint32_t feed_forward = 96;
    uint32_t vocabulary = 320;  // at least tiny_vocabulary_min
    uint32_t context = 256;
    float rms_epsilon = 1e-5f;
    float rope_base = 10000.0f;
    bool tied_head = true;  // no output.weight

    // A matrix whose rows are no multiple of its type's block gets Q8_0 instead, or F32 where that does not
    // fit either.
    TensorType embedding = TensorType::F32;
    TensorType attention_q = TensorType::F32;
    TensorType attention_k = TensorType::F32;
    TensorType attention_v = TensorType::F32;
    TensorType attention_output = TensorType::F32;
    TensorType gate = TensorType::F32;
    TensorType up = TensorType::F32;
    TensorType down = TensorType::F32;
    TensorType output = TensorType::F32;
    void set_all(TensorType type);

    std::string rope_scaling;  // "": none; "linear", "yarn"
    float rope_factor = 1.0f;
    uint32_t rope_original_context = 0;  // 0: not written
    std::vector<float>
        rope_frequency_factors;  // (head_dim / 2) rope_freqs.weight, as llama 3 files have; empty: none

    double weight_gain = 1.0;  // on the deviation 1/sqrt(columns) of all matrices
    std::string architecture = "llama";
    std::string pre_tokenizer = "smollm";
    std::string chat_template;  // "": plain ChatML
};

// Ids 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>; 3 to 258 the bytes in GPT-2's alphabet and order; then a
// token for each of the merges; the rest are ordinary tokens "extra<id>" which no merge makes.
constexpr uint32_t tiny_vocabulary_min = 288;
GgufWriter tiny_llama(uint64_t seed, const TinyLlamaOptions& options = {});

}  // namespace treadle::test
