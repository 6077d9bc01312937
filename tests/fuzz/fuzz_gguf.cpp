// Promise: whatever the bytes are, read_gguf gives a status, within memory proportional to them, and when it is OK every
// key can be looked up as every type and every tensor lies inside the file and overlaps no other.
//
//     clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -ffp-contract=off -Isrc -Itests/unit
//         tests/fuzz/fuzz_gguf.cpp tests/unit/gguf_writer.cpp src/base/*.cpp src/quant/*.cpp src/gguf/*.cpp
//
// Without libFuzzer (-DTREADLE_FUZZ_REPLAY) it is a program that runs the files it is given, once each.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

#include "gguf/reader.h"
#include "gguf_fixture.h"

namespace treadle {
namespace {

// A failed promise: the fuzzer reports the input.
void promise(bool kept, const char* words) {
    if (kept) return;
    std::fprintf(stderr, "broken promise: %s\n", words);
    std::abort();
}

template <class T>
void look_up(const Metadata& metadata, std::string_view key) {
    T value{};
    Error error;
    const Status status = metadata.get(key, &value, &error);
    promise(status == Status::OK || status == Status::CORRUPT || status == Status::LIMIT,
            "a lookup's status");
    promise(status == error.status || status == Status::OK, "a lookup's error");
}

void look_up_all(const Metadata& metadata) {
    uint64_t sum = 0;
    for (size_t i = 0; i < metadata.size(); ++i) {
        const std::string_view key = metadata.key_at(i);
        promise(metadata.has(key), "a key is found");
        promise(i == 0 || metadata.key_at(i - 1) < key, "keys are in order");
        look_up<uint32_t>(metadata, key);
        look_up<int32_t>(metadata, key);
        look_up<uint64_t>(metadata, key);
        look_up<float>(metadata, key);
        look_up<bool>(metadata, key);
        look_up<std::string_view>(metadata, key);
        StringArray strings;
        if (metadata.get(key, &strings, nullptr) == Status::OK) {
            for (uint64_t at = 0; at < strings.count; ++at) {
                for (const char byte : strings[at]) sum += static_cast<uint8_t>(byte);
            }
        }
        NumberArray numbers;
        if (metadata.get(key, &numbers, nullptr) == Status::OK) {
            for (uint64_t at = 0; at < numbers.count; ++at) {
                int64_t integer = 0;
                if (numbers.integer_at(at, &integer)) sum += static_cast<uint64_t>(integer);
                promise(numbers.number_at(at) != 0.1234567890123, "a number is read");
            }
        }
    }
    promise(sum != 1, "sums are used");
}

void check_tensors(const GgufFile& file) {
    uint64_t end = 0, sum = 0;
    for (const TensorView& tensor : file.tensors()) {
        promise(file.find_tensor(tensor.name) == &tensor, "a tensor is found by its name");
        promise(tensor.bytes > 0 && tensor.rows() > 0, "a tensor has bytes");
        promise(tensor.offset + tensor.bytes <= file.file_bytes(), "a tensor lies in the file");
        promise(tensor.offset >= 24, "a tensor is no header");
        char byte;
        promise(file.read_tensor(tensor, tensor.bytes - 1, &byte, 1, nullptr) == Status::OK,
                "its last byte is read");
        promise(file.read_tensor(tensor, tensor.bytes, &byte, 1, nullptr) != Status::OK,
                "no byte after it is");
        end = tensor.offset + tensor.bytes > end ? tensor.offset + tensor.bytes : end;
        sum += tensor.bytes;
    }
    promise(sum <= end, "tensors overlap nowhere");
    promise(sum == file.tensor_bytes(), "the sum of tensor bytes");
}

}  // namespace
}  // namespace treadle

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace treadle;
    const test::Bytes bytes(data, data + size);
    const test::OpenedGguf opened(bytes);
    promise(opened.memory.bytes_peak() <= (16 << 10) + 8 * size, "memory is proportional to the file");
    promise((opened.file != nullptr) == (opened.status == Status::OK), "a file comes with OK only");
    if (opened.status != Status::OK) {
        promise(opened.error.status == opened.status && opened.error.message[0] != '\0',
                "a failure says why");
        return 0;
    }
    look_up_all(opened.file->metadata());
    check_tensors(*opened.file);
    return 0;
}

#ifdef TREADLE_FUZZ_REPLAY
int main(int count, char** paths) {
    for (int i = 1; i < count; ++i) {
        std::ifstream file(paths[i], std::ios::binary);
        const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    }
    return 0;
}
#endif
