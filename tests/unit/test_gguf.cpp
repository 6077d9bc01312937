// The GGUF reader on well-formed files: all value types, lookups, tensors, split files.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/platform.h"
#include "gguf/reader.h"
#include "gguf_fixture.h"
#include "gguf_writer.h"

namespace treadle {
namespace {

using test::Bytes;
using test::GgufWriter;
using test::OpenedGguf;

GgufWriter writer_of_all_types() {
    GgufWriter file;
    file.set("u8", uint8_t{200});
    file.set("i8", int8_t{-100});
    file.set("u16", uint16_t{60000});
    file.set("i16", int16_t{-30000});
    file.set("u32", uint32_t{4000000000});
    file.set("i32", int32_t{-2000000000});
    file.set("u64", uint64_t{1} << 63);
    file.set("i64", std::numeric_limits<int64_t>::min());
    file.set("f32", 1.5f);
    file.set("f64", 0.1);
    file.set("true", true);
    file.set("false", false);
    file.set("string", "läuft");
    file.set("empty", "");
    file.set("strings", std::vector<std::string>{"a", "", "cde"});
    file.set("i32s", std::vector<int32_t>{1, -2, 3});
    file.set("f32s", std::vector<float>{0.5f, -0.25f});
    file.set("none", std::vector<std::string>{});
    file.set_array("u8s", ValueType::u8, std::vector<uint8_t>{1, 2, 255});
    file.set_array("i16s", ValueType::i16, std::vector<int16_t>{-1});
    file.set_array("bools", ValueType::boolean, std::vector<uint8_t>{1, 0});
    file.set_array("u64s", ValueType::u64, std::vector<uint64_t>{7, UINT64_MAX});
    file.set_array("f64s", ValueType::f64, std::vector<double>{0.1});
    return file;
}

// Part `index` of a split model, tensors named by part.
GgufWriter split_part(uint16_t index, uint16_t count, int32_t total) {
    GgufWriter part;
    part.set("split.no", index);
    part.set("split.count", count);
    part.set("split.tensors.count", total);
    const float value = static_cast<float>(index);
    part.add_tensor("t" + std::to_string(index), {2}, TensorType::F32, test::f32_tensor({value, value}));
    return part;
}

struct Siblings {
    std::vector<Bytes> parts;
    Memory* memory = nullptr;
    SiblingHook hook() {
        return {this, [](void* user, uint32_t index, uint32_t count, Owned<FileReader>* out, Error* error) {
                    auto* self = static_cast<Siblings*>(user);
                    if (index >= self->parts.size()) {
                        return fail(error, Status::NOT_FOUND, "no part %u of %u", index, count);
                    }
                    *out = open_memory(self->parts[index].data(), self->parts[index].size(), self->memory);
                    return Status::OK;
                }};
    }
};

}  // namespace

TEST_CASE("gguf: every value type reads back, in both versions") {
    for (const uint32_t version : {2u, 3u}) {
        GgufWriter writer = writer_of_all_types();
        writer.version = version;
        const OpenedGguf opened(writer.bytes());
        REQUIRE(opened.status == Status::OK);
        CHECK(opened.file->version() == version);
        const Metadata& metadata = opened.file->metadata();
        CHECK(metadata.size() == writer.pairs.size());
        Error error;
        uint32_t u32 = 0;
        int32_t i32 = 0;
        uint64_t u64 = 0;
        float f32 = 0;
        bool boolean = false;
        std::string_view string;
        for (const auto& [key, value] : {std::pair{"u8", 200u}, {"u16", 60000u}, {"u32", 4000000000u}}) {
            CHECK(metadata.get(key, &u32, &error) == Status::OK);
            CHECK(u32 == value);
        }
        for (const auto& [key, value] :
             {std::pair{"i8", -100}, {"i16", -30000}, {"i32", -2000000000}, {"u8", 200}}) {
            CHECK(metadata.get(key, &i32, &error) == Status::OK);
            CHECK(i32 == value);
        }
        CHECK(metadata.get("u64", &u64, &error) == Status::OK);
        CHECK(u64 == uint64_t{1} << 63);
        CHECK(metadata.get("f32", &f32, &error) == Status::OK);
        CHECK(f32 == 1.5f);
        CHECK(metadata.get("f64", &f32, &error) == Status::OK);
        CHECK(f32 == 0.1f);
        CHECK(metadata.get("true", &boolean, &error) == Status::OK);
        CHECK(boolean);
        CHECK(metadata.get("false", &boolean, &error) == Status::OK);
        CHECK(!boolean);
        CHECK(metadata.get("string", &string, &error) == Status::OK);
        CHECK(string == "läuft");
        CHECK(metadata.get("empty", &string, &error) == Status::OK);
        CHECK(string.empty());
    }
}

TEST_CASE("gguf: arrays read back") {
    const OpenedGguf opened(writer_of_all_types().bytes());
    REQUIRE(opened.status == Status::OK);
    const Metadata& metadata = opened.file->metadata();
    StringArray strings;
    NumberArray numbers;
    int64_t integer = 0;
    CHECK(metadata.get("strings", &strings, nullptr) == Status::OK);
    REQUIRE(strings.count == 3);
    CHECK(strings[0] == "a");
    CHECK(strings[1].empty());
    CHECK(strings[2] == "cde");
    CHECK(metadata.get("none", &strings, nullptr) == Status::OK);
    CHECK(strings.count == 0);
    CHECK(metadata.get("i32s", &numbers, nullptr) == Status::OK);
    REQUIRE(numbers.count == 3);
    CHECK(numbers.integer_at(1, &integer));
    CHECK(integer == -2);
    CHECK(numbers.number_at(2) == 3.0);
    CHECK(metadata.get("f32s", &numbers, nullptr) == Status::OK);
    CHECK(!numbers.integer_at(0, &integer));
    CHECK(numbers.number_at(1) == -0.25);
    CHECK(metadata.get("u8s", &numbers, nullptr) == Status::OK);
    CHECK(numbers.integer_at(2, &integer));
    CHECK(integer == 255);
    CHECK(metadata.get("i16s", &numbers, nullptr) == Status::OK);
    CHECK(numbers.number_at(0) == -1.0);
    CHECK(metadata.get("bools", &numbers, nullptr) == Status::OK);
    CHECK(numbers.number_at(0) == 1.0);
    CHECK(!numbers.integer_at(0, &integer));
    CHECK(metadata.get("u64s", &numbers, nullptr) == Status::OK);
    CHECK(numbers.integer_at(0, &integer));
    CHECK(!numbers.integer_at(1, &integer));
    CHECK(numbers.number_at(1) == 0x1p64);
    CHECK(metadata.get("f64s", &numbers, nullptr) == Status::OK);
    CHECK(numbers.number_at(0) == 0.1);
    ValueType type, element_type;
    CHECK(metadata.type_of("f64s", &type, &element_type));
    CHECK(type == ValueType::array);
    CHECK(element_type == ValueType::f64);
    CHECK(!metadata.type_of("absent", &type, &element_type));
}

TEST_CASE("gguf: a lookup tells absent, wrong type and out of range apart") {
    GgufWriter writer = writer_of_all_types();
    writer.set("huge", 1e300);
    writer.set("infinite", std::numeric_limits<double>::infinity());
    const OpenedGguf opened(writer.bytes());
    REQUIRE(opened.status == Status::OK);
    const Metadata& metadata = opened.file->metadata();
    Error error;
    uint32_t u32 = 77;
    int32_t i32 = 77;
    uint64_t u64 = 77;
    float f32 = 77;
    bool boolean = true;
    std::string_view string = "77";
    NumberArray numbers;
    StringArray strings;
    const auto says = [&](Status status, Status wanted, const char* words) {
        CHECK(status == wanted);
        CHECK(error.status == wanted);
        CHECK_MESSAGE(std::strstr(error.message, words) != nullptr, error.message);
    };
    says(metadata.get("absent", &u32, &error), Status::NOT_FOUND, "metadata \"absent\" is missing");
    says(metadata.require("absent", &u32, &error), Status::CORRUPT, "metadata \"absent\" is missing");
    says(metadata.get("u64", &u32, &error), Status::LIMIT,
         "\"u64\" is 9223372036854775808, beyond 0 to 4294967295");
    says(metadata.get("i8", &u32, &error), Status::LIMIT, "\"i8\" is -100, beyond");
    says(metadata.get("u32", &i32, &error), Status::LIMIT, "\"u32\" is 4000000000, beyond");
    says(metadata.get("i64", &i32, &error), Status::LIMIT, "\"i64\" is -9223372036854775808, beyond");
    says(metadata.get("i32", &u64, &error), Status::LIMIT, "\"i32\" is -2000000000, beyond 0 and up");
    says(metadata.get("huge", &f32, &error), Status::LIMIT, "\"huge\" is 1e+300");
    says(metadata.get("string", &u32, &error), Status::CORRUPT,
         "\"string\" has type string, an integer is wanted");
    says(metadata.get("f32", &u32, &error), Status::CORRUPT, "\"f32\" has type f32, an integer is wanted");
    says(metadata.get("true", &i32, &error), Status::CORRUPT, "\"true\" has type bool, an integer is wanted");
    says(metadata.get("u8", &f32, &error), Status::CORRUPT, "\"u8\" has type u8, f32 is wanted");
    says(metadata.get("u8", &boolean, &error), Status::CORRUPT, "\"u8\" has type u8, bool is wanted");
    says(metadata.get("u8", &string, &error), Status::CORRUPT, "\"u8\" has type u8, string is wanted");
    says(metadata.get("strings", &numbers, &error), Status::CORRUPT,
         "has type array of string, an array of numbers");
    says(metadata.get("i32s", &strings, &error), Status::CORRUPT,
         "has type array of i32, an array of strings");
    says(metadata.get("i32s", &u32, &error), Status::CORRUPT, "has type array of i32, an integer is wanted");
    says(metadata.get("string", &strings, &error), Status::CORRUPT, "has type string, an array of strings");
    says(metadata.get_or("i8", 5u, &u32, &error), Status::LIMIT, "\"i8\" is -100");
    CHECK(u32 == 77);
    CHECK(i32 == 77);
    CHECK(u64 == 77);
    CHECK(f32 == 77);
    CHECK(boolean);
    CHECK(string == "77");
    CHECK(metadata.get_or("absent", 5u, &u32, &error) == Status::OK);
    CHECK(u32 == 5);
    CHECK(metadata.get("infinite", &f32, &error) == Status::OK);
    CHECK(f32 == std::numeric_limits<float>::infinity());
    CHECK(metadata.get("absent", &u32, nullptr) == Status::NOT_FOUND);
}

TEST_CASE("gguf: tensors are found, measured and read, whatever the alignment") {
    for (const uint32_t alignment : {1u, 8u, 32u, 64u, 4096u}) {
        GgufWriter writer;
        writer.alignment = alignment;
        if (alignment != 32) writer.set("general.alignment", alignment);
        test::Random random(3);
        const Bytes first = test::random_tensor(random, TensorType::Q4_1, 32 * 6, 1);
        const Bytes second = test::random_tensor(random, TensorType::Q6_K, 256, 1);
        writer.add_tensor("first", {32, 3, 2}, TensorType::Q4_1, first);
        writer.add_tensor("second", {256}, TensorType::Q6_K, second);
        writer.add_tensor("third", {1, 1, 1, 3}, TensorType::F32, test::f32_tensor({1, 2, 3}));
        const Bytes bytes = writer.bytes();
        const OpenedGguf opened(bytes);
        REQUIRE_MESSAGE(opened.status == Status::OK, opened.error.message);
        const GgufFile& file = *opened.file;
        CHECK(file.tensors().size() == 3);
        CHECK(file.file_count() == 1);
        CHECK(file.file_bytes() == bytes.size());
        CHECK(file.tensor_bytes() == 120 + 210 + 12);
        CHECK(file.find_tensor("fourth") == nullptr);
        CHECK(file.find_tensor("") == nullptr);
        const TensorView* tensor = file.find_tensor("first");
        REQUIRE(tensor != nullptr);
        CHECK(tensor->n_dims == 3);
        CHECK(tensor->dims[1] == 3);
        CHECK(tensor->dims[3] == 1);
        CHECK(tensor->bytes == 120);
        CHECK(tensor->row_bytes() == 20);
        CHECK(tensor->rows() == 6);
        CHECK(tensor->offset % alignment == 0);
        Bytes read(120);
        CHECK(file.read_tensor(*tensor, 0, read.data(), 120, nullptr) == Status::OK);
        CHECK(read == first);
        tensor = file.find_tensor("second");
        REQUIRE(tensor != nullptr);
        read.resize(10);
        CHECK(file.read_tensor(*tensor, 200, read.data(), 10, nullptr) == Status::OK);
        CHECK(std::memcmp(read.data(), second.data() + 200, 10) == 0);
        Error error;
        CHECK(file.read_tensor(*tensor, 201, read.data(), 10, &error) == Status::INVALID_ARGUMENT);
        CHECK(file.read_tensor(*tensor, UINT64_MAX, read.data(), 10, &error) == Status::INVALID_ARGUMENT);
    }
}

TEST_CASE("gguf: the tiny llama has what files of that family have") {
    test::TinyLlamaOptions options;
    options.tied_head = false;
    options.set_all(TensorType::Q4_1);
    options.rope_scaling = "linear";
    options.rope_factor = 2;
    options.rope_frequency_factors.assign(8, 1.0f);
    const OpenedGguf opened(test::tiny_llama(1, options).bytes());
    REQUIRE_MESSAGE(opened.status == Status::OK, opened.error.message);
    const Metadata& metadata = opened.file->metadata();
    StringArray tokens;
    CHECK(metadata.get("tokenizer.ggml.tokens", &tokens, nullptr) == Status::OK);
    CHECK(tokens.count == options.vocabulary);
    CHECK(tokens[2] == "<|im_end|>");
    CHECK(tokens[3] == "!");
    CHECK(tokens[258] == "Ń");  // the last byte of the alphabet, 173
    CHECK(opened.file->tensors().size() == 2 * 9 + 4);
    for (const char* name : {"output.weight", "blk.1.ffn_down.weight", "rope_freqs.weight"}) {
        CHECK(opened.file->find_tensor(name) != nullptr);
    }
    CHECK(opened.file->find_tensor("token_embd.weight")->type == TensorType::Q4_1);
    CHECK(test::tiny_llama(1, options).bytes() == test::tiny_llama(1, options).bytes());
    CHECK(test::tiny_llama(1, options).bytes() != test::tiny_llama(2, options).bytes());
    for (int i = 0; i < type_count; ++i) {
        options.hidden = 256;
        options.feed_forward = 256;
        options.head_dim = 64;
        options.set_all(type_at(i).type);
        CHECK(OpenedGguf(test::tiny_llama(1, options).bytes()).status == Status::OK);
    }
}

TEST_CASE("gguf: a split model joins its parts") {
    Siblings siblings;
    for (uint16_t i = 0; i < 3; ++i) siblings.parts.push_back(split_part(i, 3, 3).bytes());
    const OpenedGguf opened(siblings.parts[0], siblings.hook(), &siblings.memory);
    REQUIRE_MESSAGE(opened.status == Status::OK, opened.error.message);
    CHECK(opened.file->file_count() == 3);
    CHECK(opened.file->file_bytes() == siblings.parts[0].size() * 3);
    CHECK(opened.file->tensors().size() == 3);
    for (uint32_t i = 0; i < 3; ++i) {
        const TensorView* tensor = opened.file->find_tensor("t" + std::to_string(i));
        REQUIRE(tensor != nullptr);
        CHECK(tensor->file_index == i);
        float value = -1;
        CHECK(opened.file->read_tensor(*tensor, 4, &value, sizeof value, nullptr) == Status::OK);
        CHECK(value == static_cast<float>(i));
    }
}

TEST_CASE("gguf: parts that do not belong together are refused") {
    const auto refused = [](std::vector<GgufWriter> writers, Status wanted, const char* words) {
        Siblings siblings;
        for (const GgufWriter& writer : writers) siblings.parts.push_back(writer.bytes());
        const OpenedGguf opened(siblings.parts[0], siblings.hook(), &siblings.memory);
        CHECK(opened.status == wanted);
        CHECK_MESSAGE(std::strstr(opened.error.message, words) != nullptr, opened.error.message);
    };
    refused({split_part(1, 3, 3)}, Status::INVALID_ARGUMENT,
            "this is part 2 of 3 of a split model; open its first");
    refused({split_part(0, 0, 1)}, Status::CORRUPT, "\"split.count\" is 0");
    refused({split_part(0, 60000, 1)}, Status::LIMIT, "\"split.count\" is 60000");
    refused({split_part(0, 3, 3), split_part(1, 3, 3)}, Status::NOT_FOUND, "part 3 of 3: no part");
    refused({split_part(0, 2, 2), split_part(0, 2, 2)}, Status::CORRUPT,
            "part 2 of 2: it says to be part 1 of 2");
    refused({split_part(0, 2, 2), split_part(1, 3, 2)}, Status::CORRUPT,
            "part 2 of 2: it says to be part 2 of 3");
    refused({split_part(0, 2, 5), split_part(1, 2, 5)}, Status::CORRUPT,
            "is 5, but the parts hold 2 tensors");
    refused({split_part(0, 2, -1), split_part(1, 2, 5)}, Status::LIMIT, "\"split.tensors.count\" is -1");
    GgufWriter twin = split_part(1, 2, 2);
    twin.tensors[0].name = "t0";
    refused({split_part(0, 2, 2), twin}, Status::CORRUPT, "tensor \"t0\" is there twice");
    GgufWriter broken = split_part(1, 2, 2);
    broken.magic = "GGML";
    refused({split_part(0, 2, 2), broken}, Status::BAD_MAGIC, "part 2 of 2: the file begins with");
    GgufWriter nameless = split_part(1, 2, 2);
    nameless.remove("split.no");
    refused({split_part(0, 2, 2), nameless}, Status::CORRUPT,
            "part 2 of 2: metadata \"split.no\" is missing");

    const OpenedGguf alone(split_part(0, 2, 2).bytes());
    CHECK(alone.status == Status::INVALID_ARGUMENT);
    CHECK(std::strstr(alone.error.message, "split into 2 files") != nullptr);
    CHECK(OpenedGguf(split_part(0, 1, 1).bytes()).status == Status::OK);
}

TEST_CASE("gguf: paths of parts") {
    std::pmr::string path;
    CHECK(split_path("/models/big-00001-of-00012.gguf", 11, 12, &path));
    CHECK(path == "/models/big-00012-of-00012.gguf");
    CHECK(!split_path("/models/big-00001-of-00012.gguf", 12, 12, &path));
    CHECK(!split_path("/models/big-00001-of-00012.gguf", 1, 13, &path));
    CHECK(!split_path("/models/big-00002-of-00012.gguf", 1, 12, &path));
    CHECK(!split_path("big.gguf", 1, 12, &path));
    CHECK(!split_path("", 1, 12, &path));
}

}  // namespace treadle
