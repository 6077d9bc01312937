// The tests' writer of GGUF files, and the tiny models it makes.
#include "gguf_writer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/float16.h"

namespace treadle::test {
namespace {

uint64_t padded(uint64_t size, uint64_t alignment) {
    return alignment == 0 ? size : (size + alignment - 1) / alignment * alignment;
}

// Where a quantized type keeps d and its minimum, what deviation its random codes have per unit of d, and
// which minimum per unit of d centres them.
struct RandomCodes {
    TensorType type;
    int scale_offset;
    int minimum_offset;  // -1: none
    double deviation;
    double minimum;
};

constexpr RandomCodes random_codes[] = {
    {TensorType::Q4_0, 0, -1, 4.6, 0},     {TensorType::Q4_1, 0, 2, 4.6, -7.5},
    {TensorType::Q5_0, 0, -1, 9.2, 0},     {TensorType::Q5_1, 0, 2, 9.2, -15.5},
    {TensorType::Q8_0, 0, -1, 73.9, 0},    {TensorType::Q2_K, 80, 82, 14.8, 1.5},
    {TensorType::Q3_K, 108, -1, 42.5, 0},  {TensorType::Q4_K, 0, 2, 255.0, 7.5},
    {TensorType::Q5_K, 0, 2, 520.0, 15.5}, {TensorType::Q6_K, 208, -1, 1366.0, 0},
    {TensorType::IQ4_NL, 0, -1, 68.0, 0},  {TensorType::IQ4_XS, 0, -1, 1260.0, 0},
};

void put_f16(char* place, double value) {
    const uint16_t half = f16_from_f32(static_cast<float>(value));
    std::memcpy(place, &half, sizeof half);
}

void set_scales(Random& random, TensorType type, double deviation, char* block) {
    const double varied = deviation * (0.5 + random.uniform());
    if (type ==
        TensorType::MXFP4) {  // the power of two below; codes have a deviation of about 5.4 halves of it
        block[0] = static_cast<char>(128 + std::ilogb(varied / 5.4));
        return;
    }
    for (const RandomCodes& codes : random_codes) {
        if (codes.type != type) continue;
        put_f16(block + codes.scale_offset, varied / codes.deviation);
        if (codes.minimum_offset >= 0) {
            put_f16(block + codes.minimum_offset, varied / codes.deviation * codes.minimum);
        }
    }
}

std::string utf8(uint32_t code) {  // below U+0800 is all that the byte alphabet needs
    if (code < 0x80) return {static_cast<char>(code)};
    return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

// GPT-2's alphabet: printable bytes stand for themselves and come first, the others are U+0100 and up.
std::vector<std::string> byte_alphabet() {
    std::vector<std::string> printable, others;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        const bool stands = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        if (stands) {
            printable.push_back(utf8(byte));
        } else {
            others.push_back(utf8(0x100 + static_cast<uint32_t>(others.size())));
        }
    }
    printable.insert(printable.end(), others.begin(), others.end());
    return printable;
}

constexpr const char* merges[] = {
    "h e", "i n",   "r e",    "o n", "e r",   "l l",   "Ġ t", "Ġt he",   "Ġ a",
    "o u", "he ll", "hell o", "Ġ w", "o r",   "Ġw or", "l d", "Ġwor ld", "in g",
    "a n", "an d",  "Ġ and",  "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ",   "1 2", "Ã ©",
};

constexpr const char* chat_ml =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif "
    "%}";

void set_tokenizer(GgufWriter& file, const TinyLlamaOptions& options) {
    std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    for (std::string& byte : byte_alphabet()) tokens.push_back(std::move(byte));
    std::vector<std::string> merge_list;
    for (const char* merge : merges) {
        merge_list.push_back(merge);
        std::string joined = merge;
        joined.erase(joined.find(' '), 1);
        tokens.push_back(joined);
    }
    while (tokens.size() < options.vocabulary) tokens.push_back("extra" + std::to_string(tokens.size()));
    std::vector<int32_t> types(tokens.size(), 1);     // normal
    for (size_t id = 0; id < 3; ++id) types[id] = 3;  // control
    file.set("tokenizer.ggml.model", "gpt2");
    file.set("tokenizer.ggml.pre", options.pre_tokenizer.c_str());
    file.set("tokenizer.ggml.tokens", tokens);
    file.set("tokenizer.ggml.token_type", types);
    file.set("tokenizer.ggml.merges", merge_list);
    file.set("tokenizer.ggml.bos_token_id", uint32_t{1});
    file.set("tokenizer.ggml.eos_token_id", uint32_t{2});
    file.set("tokenizer.ggml.unknown_token_id", uint32_t{0});
    file.set("tokenizer.ggml.padding_token_id", uint32_t{2});
    file.set("tokenizer.ggml.add_space_prefix", false);
    file.set("tokenizer.ggml.add_bos_token", false);
    file.set("tokenizer.chat_template",
             options.chat_template.empty() ? chat_ml : options.chat_template.c_str());
}

void set_hyper_parameters(GgufWriter& file, const TinyLlamaOptions& options) {
    const std::string& prefix = options.architecture;
    file.set("general.architecture", prefix.c_str());
    file.set("general.name", "tiny random model");
    file.set(prefix + ".block_count", options.layers);
    file.set(prefix + ".context_length", options.context);
    file.set(prefix + ".embedding_length", options.hidden);
    file.set(prefix + ".feed_forward_length", options.feed_forward);
    file.set(prefix + ".attention.head_count", options.heads);
    file.set(prefix + ".attention.head_count_kv", options.kv_heads);
    file.set(prefix + ".attention.layer_norm_rms_epsilon", options.rms_epsilon);
    file.set(prefix + ".attention.key_length", options.head_dim);
    file.set(prefix + ".attention.value_length", options.head_dim);
    file.set(prefix + ".rope.dimension_count", options.head_dim);
    file.set(prefix + ".rope.freq_base", options.rope_base);
    file.set(prefix + ".vocab_size", options.vocabulary);
    if (options.rope_scaling.empty()) return;
    file.set(prefix + ".rope.scaling.type", options.rope_scaling.c_str());
    file.set(prefix + ".rope.scaling.factor", options.rope_factor);
    if (options.rope_original_context > 0) {
        file.set(prefix + ".rope.scaling.original_context_length", options.rope_original_context);
    }
}

void add_matrix(GgufWriter& file, Random& random, const TinyLlamaOptions& options, const std::string& name,
                uint64_t columns, uint64_t rows, TensorType type) {
    if (columns % type_info(type).block_values != 0) type = TensorType::Q8_0;
    if (columns % type_info(type).block_values != 0) type = TensorType::F32;
    const double deviation = options.weight_gain / std::sqrt(static_cast<double>(columns));
    file.add_tensor(name, {columns, rows}, type, random_tensor(random, type, columns * rows, deviation));
}

void add_gain(GgufWriter& file, Random& random, const std::string& name, uint64_t values) {
    file.add_tensor(name, {values}, TensorType::F32,
                    random_tensor(random, TensorType::F32, values, 0.1, 1.0));
}

}  // namespace

void append_string(Bytes& bytes, std::string_view text) {
    append(bytes, static_cast<uint64_t>(text.size()));
    bytes.insert(bytes.end(), text.begin(), text.end());
}

void GgufWriter::set(std::string_view key, std::string_view value) {
    Bytes bytes;
    append_string(bytes, value);
    set_raw(key, static_cast<uint32_t>(ValueType::string), std::move(bytes));
}

void GgufWriter::set(std::string_view key, const std::vector<std::string>& values) {
    Bytes bytes;
    append(bytes, static_cast<uint32_t>(ValueType::string));
    append(bytes, static_cast<uint64_t>(values.size()));
    for (const std::string& value : values) append_string(bytes, value);
    set_raw(key, static_cast<uint32_t>(ValueType::array), std::move(bytes));
}

void GgufWriter::set_raw(std::string_view key, uint32_t type, Bytes value) {
    for (Pair& pair : pairs) {
        if (pair.key != key) continue;
        pair.type = type;
        pair.value = std::move(value);
        return;
    }
    pairs.push_back({std::string(key), type, std::move(value), std::nullopt});
}

void GgufWriter::remove(std::string_view key) {
    std::erase_if(pairs, [&](const Pair& pair) { return pair.key == key; });
}

GgufWriter::Tensor& GgufWriter::add_tensor(std::string name, std::vector<uint64_t> dims, TensorType type,
                                           Bytes data) {
    Tensor tensor;
    tensor.name = std::move(name);
    tensor.dims = std::move(dims);
    tensor.type = static_cast<uint32_t>(type);
    tensor.data = std::move(data);
    tensors.push_back(std::move(tensor));
    return tensors.back();
}

GgufWriter::Tensor* GgufWriter::find_tensor(std::string_view name) {
    for (Tensor& tensor : tensors) {
        if (tensor.name == name) return &tensor;
    }
    return nullptr;
}

Bytes GgufWriter::header() const {
    Bytes bytes(magic.begin(), magic.end());
    append(bytes, version);
    append(bytes, tensor_count.value_or(tensors.size()));
    append(bytes, pair_count.value_or(pairs.size()));
    for (const Pair& pair : pairs) {
        append(bytes, pair.key_length.value_or(pair.key.size()));
        bytes.insert(bytes.end(), pair.key.begin(), pair.key.end());
        append(bytes, pair.type);
        bytes.insert(bytes.end(), pair.value.begin(), pair.value.end());
    }
    uint64_t offset = 0;
    for (const Tensor& tensor : tensors) {
        append(bytes, tensor.name_length.value_or(tensor.name.size()));
        bytes.insert(bytes.end(), tensor.name.begin(), tensor.name.end());
        append(bytes, tensor.n_dims.value_or(static_cast<uint32_t>(tensor.dims.size())));
        for (const uint64_t dim : tensor.dims) append(bytes, dim);
        append(bytes, tensor.type);
        append(bytes, tensor.offset.value_or(offset));
        offset += padded(tensor.data.size(), alignment);
    }
    return bytes;
}

size_t GgufWriter::header_bytes() const { return header().size(); }

Bytes GgufWriter::bytes() const {
    Bytes bytes = header();
    bytes.resize(padded(bytes.size(), alignment));
    for (size_t i = 0; i < tensors.size(); ++i) {
        bytes.insert(bytes.end(), tensors[i].data.begin(), tensors[i].data.end());
        if (i + 1 < tensors.size()) {
            const uint64_t padding = padded(tensors[i].data.size(), alignment) - tensors[i].data.size();
            bytes.insert(bytes.end(), padding, 0);
        }
    }
    return bytes;
}

uint64_t Random::next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

double Random::normal() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
}

Bytes f32_tensor(const std::vector<float>& values) {
    Bytes bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

Bytes random_tensor(Random& random, TensorType type, uint64_t values, double deviation, double mean) {
    const TypeInfo& info = type_info(type);
    Bytes bytes(values / info.block_values * info.block_bytes);
    if (packed_kind(type) == nullptr) {
        for (uint64_t i = 0; i < values; ++i) {
            const auto value = static_cast<float>(mean + deviation * random.normal());
            char* place = bytes.data() + i * info.block_bytes;
            if (type == TensorType::F32) {
                std::memcpy(place, &value, sizeof value);
            } else if (type == TensorType::F16) {
                put_f16(place, value);
            } else {
                const auto brain = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
                std::memcpy(place, &brain, sizeof brain);
            }
        }
        return bytes;
    }
    for (char& byte : bytes) byte = static_cast<char>(random.next() >> 56);
    for (size_t at = 0; at < bytes.size(); at += info.block_bytes) {
        set_scales(random, type, deviation, bytes.data() + at);
    }
    return bytes;
}

void TinyLlamaOptions::set_all(TensorType type) {
    embedding = attention_q = attention_k = attention_v = attention_output = gate = up = down = output = type;
}

GgufWriter tiny_llama(uint64_t seed, const TinyLlamaOptions& options) {
    Random random(seed);
    GgufWriter file;
    set_hyper_parameters(file, options);
    set_tokenizer(file, options);
    const auto matrix = [&](const std::string& name, uint64_t columns, uint64_t rows, TensorType type) {
        add_matrix(file, random, options, name, columns, rows, type);
    };
    const uint64_t hidden = options.hidden;
    const uint64_t q_rows = uint64_t{options.heads} * options.head_dim;
    const uint64_t kv_rows = uint64_t{options.kv_heads} * options.head_dim;
    matrix("token_embd.weight", hidden, options.vocabulary, options.embedding);
    if (!options.rope_frequency_factors.empty()) {
        file.add_tensor("rope_freqs.weight", {options.rope_frequency_factors.size()}, TensorType::F32,
                        f32_tensor(options.rope_frequency_factors));
    }
    for (uint32_t layer = 0; layer < options.layers; ++layer) {
        const std::string prefix = "blk." + std::to_string(layer) + ".";
        add_gain(file, random, prefix + "attn_norm.weight", hidden);
        matrix(prefix + "attn_q.weight", hidden, q_rows, options.attention_q);
        matrix(prefix + "attn_k.weight", hidden, kv_rows, options.attention_k);
        matrix(prefix + "attn_v.weight", hidden, kv_rows, options.attention_v);
        matrix(prefix + "attn_output.weight", q_rows, hidden, options.attention_output);
        add_gain(file, random, prefix + "ffn_norm.weight", hidden);
        matrix(prefix + "ffn_gate.weight", hidden, options.feed_forward, options.gate);
        matrix(prefix + "ffn_up.weight", hidden, options.feed_forward, options.up);
        matrix(prefix + "ffn_down.weight", options.feed_forward, hidden, options.down);
    }
    add_gain(file, random, "output_norm.weight", hidden);
    if (!options.tied_head) matrix("output.weight", hidden, options.vocabulary, options.output);
    return file;
}

}  // namespace treadle::test
