// The GGUF reader on what strangers send: each fault has its status and a message with the field and the value, in
// bounded time and memory.
#include <doctest/doctest.h>

#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "gguf/quoted.h"
#include "gguf/reader.h"
#include "gguf_fixture.h"
#include "gguf_writer.h"

namespace treadle {
namespace {

using test::append;
using test::append_string;
using test::Bytes;
using test::GgufWriter;
using test::OpenedGguf;

// CPU seconds, so that a busy machine fails nothing; a sanitizer's build is slower by a good part.
constexpr double seconds_max = 0.1;
constexpr size_t memory_factor_max = 8;
constexpr size_t memory_floor_bytes = 16 << 10;

void expect(const Bytes& bytes, Status wanted, const char* words) {
    const std::clock_t start = std::clock();
    const OpenedGguf opened(bytes);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    CHECK(seconds < seconds_max);
    CHECK(opened.memory.bytes_peak() <= memory_floor_bytes + memory_factor_max * bytes.size());
    CHECK(status_name(opened.status) == std::string(status_name(wanted)));
    CHECK(opened.error.status == wanted);
    CHECK_MESSAGE(std::strstr(opened.error.message, words) != nullptr, opened.error.message);
    CHECK((opened.file == nullptr) == (wanted != Status::OK));
}

GgufWriter small() {
    GgufWriter file;
    file.set("general.architecture", "llama");
    file.set("llama.block_count", uint32_t{2});
    file.set("tokenizer.ggml.tokens", std::vector<std::string>{"one", "two"});
    file.add_tensor("a", {32, 2}, TensorType::Q4_0, Bytes(36));
    file.add_tensor("b", {3}, TensorType::F32, Bytes(12));
    return file;
}

// A pair whose value is an array head and nothing else.
Bytes array_head(uint32_t element_type, uint64_t count) {
    Bytes bytes;
    append(bytes, element_type);
    append(bytes, count);
    return bytes;
}

constexpr auto array_type = static_cast<uint32_t>(ValueType::array);
constexpr auto string_type = static_cast<uint32_t>(ValueType::string);

struct Fault {
    const char* name;
    std::function<void(GgufWriter&)> damage;
    Status status;
    const char* words;
};

void expect_faults(const std::vector<Fault>& faults) {
    for (const Fault& fault : faults) {
        const std::string name = fault.name;
        CAPTURE(name);
        GgufWriter file = small();
        fault.damage(file);
        expect(file.bytes(), fault.status, fault.words);
    }
}

void set_string_length(GgufWriter& file, uint64_t length) {
    Bytes value;
    append(value, length);
    value.push_back('x');
    file.set_raw("name", string_type, value);
}

}  // namespace

TEST_CASE("gguf: a whole file is accepted, and its every prefix is not") {
    const GgufWriter writer = small();
    const Bytes whole = writer.bytes();
    CHECK(OpenedGguf(whole).status == Status::OK);
    for (size_t size = 0; size < whole.size(); ++size) {
        CAPTURE(size);
        const OpenedGguf opened(Bytes(whole.begin(), whole.begin() + static_cast<long>(size)));
        CHECK(opened.status == Status::TRUNCATED);
        CHECK(std::strlen(opened.error.message) > 0);
    }
    const Bytes tiny = test::tiny_llama(1).bytes();
    for (size_t size = 0; size < tiny.size(); size += size < 4096 ? 7 : 1009) {
        CAPTURE(size);
        CHECK(OpenedGguf(Bytes(tiny.begin(), tiny.begin() + static_cast<long>(size))).status ==
              Status::TRUNCATED);
    }
}

TEST_CASE("gguf: no damaged byte of a header does harm") {
    const GgufWriter writer = small();
    const Bytes whole = writer.bytes();
    for (size_t at = 0; at < writer.header_bytes(); ++at) {
        for (int value = 0; value < 256; ++value) {
            Bytes bytes = whole;
            bytes[at] = static_cast<char>(value);
            const OpenedGguf opened(bytes);
            const size_t limit = memory_floor_bytes + memory_factor_max * bytes.size();
            if (opened.memory.bytes_peak() > limit) FAIL("byte " << at << " as " << value << " took memory");
            if (opened.status == Status::OK) {  // whatever it now says, its tensors can be read
                Bytes read;
                for (const TensorView& tensor : opened.file->tensors()) {
                    read.resize(tensor.bytes);
                    if (opened.file->read_tensor(tensor, 0, read.data(), read.size(), nullptr) !=
                        Status::OK) {
                        FAIL("byte " << at << " as " << value << " left a tensor that cannot be read");
                    }
                }
            }
        }
    }
}

TEST_CASE("gguf: what is no GGUF file at all") {
    expect({}, Status::TRUNCATED, "the file is empty");
    expect({'G'}, Status::TRUNCATED, "the file ends at byte 1");
    expect({'G', 'G', 'U', 'F'}, Status::TRUNCATED, "the file ends at byte 4");
    expect({'P', 'K', 3, 4}, Status::BAD_MAGIC, "begins with the bytes 50 4b 03 04, not with GGUF");
    expect({'<'}, Status::BAD_MAGIC, "3c");
    expect(Bytes(1 << 20), Status::BAD_MAGIC, "00 00 00 00");
    expect_faults({
        {"other magic", [](GgufWriter& file) { file.magic = "GGML"; }, Status::BAD_MAGIC, "47 47 4d 4c"},
        {"version 0", [](GgufWriter& file) { file.version = 0; }, Status::BAD_VERSION, "GGUF version 0;"},
        {"version 1", [](GgufWriter& file) { file.version = 1; }, Status::BAD_VERSION, "GGUF version 1;"},
        {"version 4", [](GgufWriter& file) { file.version = 4; }, Status::BAD_VERSION, "GGUF version 4;"},
        {"big-endian", [](GgufWriter& file) { file.version = 0x03000000; }, Status::BAD_VERSION,
         "version 3 in big-endian byte order"},
        {"huge version", [](GgufWriter& file) { file.version = UINT32_MAX; }, Status::BAD_VERSION,
         "4294967295"},
    });
}

TEST_CASE("gguf: counts and lengths that lie") {
    expect_faults({
        {"pairs 2^64-1", [](GgufWriter& file) { file.pair_count = UINT64_MAX; }, Status::LIMIT,
         "18446744073709551615 metadata pairs"},
        {"pairs 65536", [](GgufWriter& file) { file.pair_count = 65536; }, Status::TRUNCATED,
         "65536 metadata pairs"},
        {"a pair too many", [](GgufWriter& file) { file.pair_count = 4; }, Status::LIMIT, "tensor number 0"},
        {"a pair too few", [](GgufWriter& file) { file.pair_count = 2; }, Status::LIMIT, "dimensions"},
        {"tensors 2^63", [](GgufWriter& file) { file.tensor_count = uint64_t{1} << 63; }, Status::LIMIT,
         "9223372036854775808 tensors"},
        {"tensors 60000", [](GgufWriter& file) { file.tensor_count = 60000; }, Status::TRUNCATED,
         "60000 tensors"},
        {"empty key", [](GgufWriter& file) { file.pairs[1].key = ""; }, Status::CORRUPT,
         "metadata number 1 has an empty key"},
        {"key of 2^64-1", [](GgufWriter& file) { file.pairs[1].key_length = UINT64_MAX; }, Status::LIMIT,
         "metadata number 1 has a key of 18446744073709551615 bytes"},
        {"key of 65537", [](GgufWriter& file) { file.pairs[1].key.assign(65537, 'k'); }, Status::LIMIT,
         "65537"},
        {"key beyond the end", [](GgufWriter& file) { file.pairs[1].key_length = 60000; }, Status::TRUNCATED,
         "metadata number 1 needs 60000 bytes for its key"},
        {"key no UTF-8", [](GgufWriter& file) { file.pairs[1].key = "a\xff"; }, Status::CORRUPT, "not UTF-8"},
        {"key with a zero", [](GgufWriter& file) { file.pairs[1].key = std::string("a\0b", 3); },
         Status::CORRUPT, "not UTF-8 text: \"a?b\""},
        {"key twice", [](GgufWriter& file) { file.pairs.push_back(file.pairs[1]); }, Status::CORRUPT,
         "metadata \"llama.block_count\" is there twice"},
        {"value type 13", [](GgufWriter& file) { file.pairs[1].type = 13; }, Status::CORRUPT,
         "value type 13"},
        {"value type max", [](GgufWriter& file) { file.pairs[1].type = UINT32_MAX; }, Status::CORRUPT,
         "4294967295"},
        {"bool of 2", [](GgufWriter& file) { file.set_raw("flag", 7, {2}); }, Status::CORRUPT, "the byte 2"},
        {"string 2^64-1", [](GgufWriter& file) { set_string_length(file, UINT64_MAX); }, Status::LIMIT,
         "metadata \"name\" has a string of 18446744073709551615 bytes"},
        {"string 2^31", [](GgufWriter& file) { set_string_length(file, uint64_t{1} << 31); }, Status::LIMIT,
         "2147483648"},
        {"string beyond the end", [](GgufWriter& file) { set_string_length(file, 5000); }, Status::TRUNCATED,
         "metadata \"name\" needs 5000 bytes for its string"},
    });
}

TEST_CASE("gguf: arrays that lie") {
    const auto with_head = [](uint32_t element_type, uint64_t count) {
        return [=](GgufWriter& file) { file.set_raw("list", array_type, array_head(element_type, count)); };
    };
    const auto nested = [](int depth) {
        return [=](GgufWriter& file) {
            Bytes bytes;
            for (int i = 1; i < depth; ++i) {
                const Bytes head = array_head(array_type, 1);
                bytes.insert(bytes.end(), head.begin(), head.end());
            }
            const Bytes last = array_head(0, 0);
            bytes.insert(bytes.end(), last.begin(), last.end());
            file.set_raw("list", array_type, bytes);
        };
    };
    expect_faults({
        {"u8 2^63", with_head(0, uint64_t{1} << 63), Status::LIMIT,
         "an array of 9223372036854775808 elements"},
        {"u64 2^61+1, whose bytes wrap", with_head(10, (uint64_t{1} << 61) + 1), Status::LIMIT, "elements"},
        {"u64 beyond the end", with_head(10, 1 << 24), Status::TRUNCATED,
         "metadata \"list\" needs 134217728 bytes"},
        {"strings 2^64-1", with_head(8, UINT64_MAX), Status::LIMIT, "18446744073709551615 elements"},
        {"strings beyond the end", with_head(8, 1 << 24), Status::TRUNCATED, "metadata \"list\" needs"},
        {"element type 13", with_head(13, 1), Status::CORRUPT, "an array of value type 13"},
        {"nested 4 deep", nested(4), Status::OK, ""},
        {"nested 5 deep", nested(5), Status::LIMIT, "metadata \"list\" nests arrays deeper than 4"},
        {"nested 1100 deep", nested(1100), Status::LIMIT, "nests arrays deeper than 4"},
        {"inner count 2^63",
         [](GgufWriter& file) {
             Bytes bytes = array_head(array_type, 1);
             const Bytes inner = array_head(4, uint64_t{1} << 63);
             bytes.insert(bytes.end(), inner.begin(), inner.end());
             file.set_raw("list", array_type, bytes);
         },
         Status::LIMIT, "9223372036854775808 elements"},
        {"arrays of everything",
         [](GgufWriter& file) {
             Bytes bytes = array_head(array_type, 3);
             Bytes inner = array_head(string_type, 2);
             append_string(inner, "x");
             append_string(inner, "");
             const Bytes numbers = {5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4};
             inner.insert(inner.end(), numbers.begin(), numbers.end());
             const Bytes empty = array_head(array_type, 0);
             inner.insert(inner.end(), empty.begin(), empty.end());
             bytes.insert(bytes.end(), inner.begin(), inner.end());
             file.set_raw("list", array_type, bytes);
         },
         Status::OK, ""},
    });
}

TEST_CASE("gguf: an alignment that lies") {
    const auto with = [](auto value) {
        return [=](GgufWriter& file) { file.set("general.alignment", value); };
    };
    expect_faults({
        {"0", with(uint32_t{0}), Status::CORRUPT, "\"general.alignment\" is 0"},
        {"33", with(uint32_t{33}), Status::CORRUPT, "\"general.alignment\" is 33"},
        {"2^31", with(uint32_t{1} << 31), Status::LIMIT, "\"general.alignment\" is 2147483648"},
        {"2^32", with(uint64_t{1} << 32), Status::LIMIT, "\"general.alignment\" is 4294967296"},
        {"-32", with(int32_t{-32}), Status::LIMIT, "\"general.alignment\" is -32"},
        {"a string", with("32"), Status::CORRUPT, "\"general.alignment\" has type string"},
        {"a float", with(32.0f), Status::CORRUPT, "\"general.alignment\" has type f32"},
        {"other than the data's", with(uint32_t{64}), Status::TRUNCATED, "tensor \"b\" has"},
    });
}

TEST_CASE("gguf: tensors that lie") {
    const auto first = [](auto change) { return [=](GgufWriter& file) { change(file.tensors[0]); }; };
    using Tensor = GgufWriter::Tensor;
    const auto dims = [&](std::vector<uint64_t> sizes, TensorType type) {
        return first([=](Tensor& tensor) {
            tensor.dims = sizes;
            tensor.type = static_cast<uint32_t>(type);
        });
    };
    constexpr uint64_t two_30 = 1 << 30;
    expect_faults({
        {"empty name", first([](Tensor& tensor) { tensor.name = ""; }), Status::CORRUPT,
         "tensor number 0 has an empty"},
        {"name of 2^63", first([](Tensor& tensor) { tensor.name_length = uint64_t{1} << 63; }), Status::LIMIT,
         "tensor number 0 has a name of 9223372036854775808 bytes"},
        {"name of 257", first([](Tensor& tensor) { tensor.name.assign(257, 'n'); }), Status::LIMIT, "257"},
        {"name no UTF-8", first([](Tensor& tensor) { tensor.name = "\xc0\xaf"; }), Status::CORRUPT,
         "\"\?\?\""},
        {"name twice", [](GgufWriter& file) { file.tensors[1].name = "a"; }, Status::CORRUPT,
         "tensor \"a\" is there"},
        {"0 dimensions", first([](Tensor& tensor) { tensor.dims.clear(); }), Status::CORRUPT,
         "\"a\" has 0 dimensions"},
        {"5 dimensions", dims({32, 1, 1, 1, 2}, TensorType::Q4_0), Status::LIMIT, "\"a\" has 5 dimensions"},
        {"9 dimensions", first([](Tensor& tensor) { tensor.n_dims = 9; }), Status::LIMIT, "9 dimensions"},
        {"2^32-1 dimensions", first([](Tensor& tensor) { tensor.n_dims = UINT32_MAX; }), Status::LIMIT,
         "4294967295"},
        {"size 0", dims({32, 0}, TensorType::Q4_0), Status::CORRUPT, "\"a\" has dimension 1 of size 0"},
        {"part of a block", dims({33, 2}, TensorType::Q4_0), Status::CORRUPT, "rows of 33 values"},
        {"part of a super-block", dims({32, 8}, TensorType::Q4_K), Status::CORRUPT,
         "the 256 in a block of Q4_K"},
        {"elements wrap", dims({4, two_30 - 1, two_30 + 1, 16}, TensorType::F32), Status::CORRUPT, "64 bits"},
        {"bytes wrap", dims({uint64_t{1} << 62, 1}, TensorType::F32), Status::CORRUPT, "64 bits"},
        {"INT64_MAX x 2", dims({INT64_MAX, 2}, TensorType::F16), Status::CORRUPT, "64 bits"},
        {"all sizes 2^63", dims({uint64_t{1} << 63, uint64_t{1} << 63, uint64_t{1} << 63}, TensorType::F32),
         Status::CORRUPT, "64 bits"},
        {"bytes beyond the end", dims({4, two_30 - 1, two_30 + 1}, TensorType::F32), Status::TRUNCATED,
         "tensor \"a\" has"},
        {"offset 1", first([](Tensor& tensor) { tensor.offset = 1; }), Status::CORRUPT,
         "offset 1, which is no multiple"},
        {"offset beyond the end", first([](Tensor& tensor) { tensor.offset = 1 << 20; }), Status::TRUNCATED,
         "1048576"},
        {"offset 2^64-32", first([](Tensor& tensor) { tensor.offset = UINT64_MAX - 31; }), Status::TRUNCATED,
         "tensor \"a\" has 36 bytes at offset 18446744073709551584"},
        {"overlap", [](GgufWriter& file) { file.tensors[1].offset = 32; }, Status::CORRUPT,
         "\"b\" overlaps tensor \"a\""},
        {"the same place", [](GgufWriter& file) { file.tensors[1].offset = 0; }, Status::CORRUPT, "overlaps"},
        {"two that sum beyond 2^64",
         [](GgufWriter& file) {
             for (Tensor& tensor : file.tensors) {
                 tensor.type = 0;
                 tensor.dims = {(uint64_t{1} << 61) - 8};
             }
         },
         Status::TRUNCATED, "tensor \"a\" has 9223372036854775776 bytes"},
    });
}

TEST_CASE("gguf: every tensor type that is not ours is refused by its number") {
    const auto with_type = [](uint32_t type) {
        GgufWriter file = small();
        file.tensors[0].type = type;
        file.tensors[0].dims = {256};
        return file.bytes();
    };
    for (uint32_t type = 0; type < 256; ++type) {
        CAPTURE(type);
        const OpenedGguf opened(with_type(type));
        CHECK((opened.status == Status::UNSUPPORTED_TYPE) == (type_info(type) == nullptr));
    }
    expect(with_type(16), Status::UNSUPPORTED_TYPE,
           "tensor \"a\" has type 16 (IQ2_XXS), which is not supported");
    expect(with_type(4), Status::UNSUPPORTED_TYPE, "type 4 (Q4_2)");
    expect(with_type(0x80000000), Status::UNSUPPORTED_TYPE, "type 2147483648 (unknown)");
    expect(with_type(UINT32_MAX), Status::UNSUPPORTED_TYPE, "type 4294967295 (unknown)");
}

TEST_CASE("gguf: a file without tensors, and gaps between tensors, are fine") {
    GgufWriter file;
    file.set("only", "metadata");
    expect(file.bytes(), Status::OK, "");
    expect(GgufWriter().bytes(), Status::OK, "");
    GgufWriter gap = small();
    gap.tensors[1].offset = 96;
    Bytes bytes = gap.bytes();
    bytes.resize(bytes.size() + 32);
    expect(bytes, Status::OK, "");
}

TEST_CASE("gguf: failures of the file reader pass through, and running out of memory leaks nothing") {
    struct Failing final : FileReader {
        Failing(const Bytes& from, int reads) : bytes(from), reads_left(reads) {}
        uint64_t size() const override { return bytes.size(); }
        Status read(uint64_t offset, void* destination, size_t size, Error* error) override {
            if (reads_left-- == 0) return fail(error, Status::IO, "the disk is gone");
            std::memcpy(destination, bytes.data() + offset, size);
            return Status::OK;
        }
        const Bytes& bytes;
        int reads_left;
    };
    GgufWriter writer = small();
    writer.set("long", std::string(300000, 'x').c_str());
    const Bytes bytes = writer.bytes();
    Status status = Status::IO;
    int reads = 0;
    for (; status == Status::IO; ++reads) {
        Memory memory(test::plain_allocator(), MemoryKind::other);
        Failing reader(bytes, reads);
        Owned<GgufFile> file;
        Error error;
        status = read_gguf(reader, {}, &memory, &file, &error);
        CHECK((status == Status::OK || std::strcmp(error.message, "the disk is gone") == 0));
    }
    CHECK(reads > 3);

    struct Meter {
        int allocations_left;
        size_t live;
    };
    int allowed = 0;
    for (bool done = false; !done; ++allowed) {
        Meter meter{allowed, 0};
        AllocatorHooks hooks;
        hooks.user = &meter;
        hooks.alloc = [](void* user, size_t size, size_t alignment, int32_t) -> void* {
            auto* from = static_cast<Meter*>(user);
            if (from->allocations_left-- <= 0) return nullptr;
            from->live += size;
            return ::operator new(size, std::align_val_t(alignment));
        };
        hooks.free = [](void* user, void* pointer, size_t size, size_t alignment, int32_t) {
            static_cast<Meter*>(user)->live -= size;
            ::operator delete(pointer, std::align_val_t(alignment));
        };
        {
            Memory memory(hooks, MemoryKind::other);
            Failing reader(bytes, 1000);
            Owned<GgufFile> file;
            try {
                done = read_gguf(reader, {}, &memory, &file, nullptr) == Status::OK;
            } catch (const std::bad_alloc&) {
                CHECK(file == nullptr);
            }
        }
        CHECK(meter.live == 0);
    }
    CHECK(allowed > 5);
}

TEST_CASE("gguf: a large honest vocabulary costs little memory") {
    GgufWriter writer;
    std::vector<std::string> tokens;
    for (int i = 0; i < 100000; ++i) tokens.push_back("token" + std::to_string(i));
    writer.set("tokenizer.ggml.tokens", tokens);
    const Bytes bytes = writer.bytes();
    const OpenedGguf opened(bytes);
    REQUIRE(opened.status == Status::OK);
    CHECK(opened.memory.bytes_in_use() < bytes.size() * 5 / 4 + 4096);
    CHECK(opened.memory.bytes_peak() < bytes.size() * 4);
    StringArray read;
    CHECK(opened.file->metadata().get("tokenizer.ggml.tokens", &read, nullptr) == Status::OK);
    REQUIRE(read.count == tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (read[i] != tokens[i]) FAIL("token " << i);
    }
}

TEST_CASE("gguf: names are shown short, printable and whole") {
    CHECK(std::string(Quoted("llama.block_count").text) == "\"llama.block_count\"");
    CHECK(std::string(Quoted("a\x1b[31m\n\x7f").text) == "\"a?[31m??\"");
    CHECK(std::string(Quoted("\xc2\x9b"
                             "1m \xff\xe2\x82")
                          .text) == "\"?1m ???\"");
    CHECK(std::string(Quoted("läuft €").text) == "\"läuft €\"");
    CHECK(std::string(Quoted("").text) == "\"\"");
    for (const char* piece : {"x", "ä", "€", "😀"}) {
        std::string name;
        while (name.size() < 300) name += piece;
        const std::string shown = Quoted(name).text;
        CHECK(shown.size() <= Quoted::shown_bytes_max + 4);
        CHECK(shown.ends_with("...\""));
        CHECK(is_utf8(shown));
    }
    CHECK(is_utf8("\xf4\x8f\xbf\xbf"));
    for (const char* bad : {"\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                            "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "a\xc3"}) {
        CHECK(!is_utf8(bad));
    }
}

}  // namespace treadle
