// Packing: what goes in comes out of the embedding by bits, packed bytes and staging stay within their
// bounds, and every wrong size, failing read, stop and failed allocation leaves no trace.
#include <doctest/doctest.h>

#include <new>
#include <string>

#include "base/limits.h"
#include "test_linear_support.h"

using namespace treadle;
using namespace treadle::test;

namespace {

Status pack(BytesSource& source, WeightUse use, TestMemory& memory, cpu::PackedWeight* out, Error* error,
            const ProgressHook& progress = {}) {
    return cpu::pack_weight(source, use, progress, &memory.weights, &memory.scratch, out, error);
}

}  // namespace

TEST_CASE("pack: the embedding of every row of every type equals its decoded row by bits") {
    std::mt19937 random(31);
    for (int index = 0; index < type_count; ++index) {
        const TypeInfo& info = type_at(index);
        INFO(std::string(info.name));
        BytesSource source(info.type, 21, 768);
        fill_random(source, random);
        TestMemory memory;
        cpu::PackedWeight packed;
        Error error;
        REQUIRE(pack(source, WeightUse::matrix, memory, &packed, &error) == Status::OK);
        CHECK(packed.matrix.reads_f32 == (packed_kind(info.type) == nullptr));
        std::vector<float> expected(768), found(768);
        int different = 0;
        for (int32_t row = 0; row < 21; ++row) {
            decode_row(info.type, source.row(row), 768, expected.data());
            for (const float scale : {1.0f, 27.7128f}) {
                cpu::embed(packed.matrix, row, scale, found.data());
                for (size_t k = 0; k < 768; ++k) different += same_f32(expected[k] * scale, found[k]) ? 0 : 1;
            }
        }
        CHECK(different == 0);
    }
}

TEST_CASE("pack: at most 1.06 times the file's bytes, and little staging") {
    for (int index = 0; index < type_count; ++index) {
        const TypeInfo& info = type_at(index);
        INFO(std::string(info.name));
        for (const int64_t columns : {int64_t{256}, int64_t{1536}}) {
            BytesSource source(info.type, 16 * 200, columns);
            TestMemory memory;
            cpu::PackedWeight packed;
            Error error;
            REQUIRE(pack(source, WeightUse::matrix, memory, &packed, &error) == Status::OK);
            CHECK(static_cast<double>(packed.bytes()) <= 1.06 * static_cast<double>(source.bytes));
            CHECK(packed.bytes() == cpu::packed_bytes(packed.matrix.format, source.rows, source.columns));
            CHECK(memory.weights.bytes_in_use() == packed.bytes());
            CHECK(memory.scratch.bytes_in_use() == 0);
            CHECK(memory.scratch.bytes_peak() <= (1 << 20) + (16 << 10));
            CHECK(reinterpret_cast<uintptr_t>(packed.matrix.scales) % 64 == 0);
            CHECK(packed.matrix.code_bytes_per_panel % 64 == 0);
            CHECK(packed.matrix.scale_bytes_per_panel % 64 == 0);
        }
    }
}

TEST_CASE("pack: vectors are one row of floats, padded with zeros") {
    std::mt19937 random(37);
    for (const TensorType type : {TensorType::F32, TensorType::F16, TensorType::BF16}) {
        BytesSource source(type, 1, 50);
        fill_random(source, random);
        TestMemory memory;
        cpu::PackedWeight packed;
        Error error;
        REQUIRE(pack(source, WeightUse::vector, memory, &packed, &error) == Status::OK);
        REQUIRE(packed.vector.size() == 64);
        std::vector<float> expected(64, 0.0f);
        decode_row(type, source.row(0), 50, expected.data());
        for (size_t i = 0; i < 64; ++i) CHECK(same_f32(packed.vector[i], expected[i]));
    }
    TestMemory memory;
    cpu::PackedWeight packed;
    Error error;
    BytesSource quantized(TensorType::Q8_0, 1, 64);
    CHECK(pack(quantized, WeightUse::vector, memory, &packed, &error) == Status::UNSUPPORTED_TYPE);
    BytesSource rows(TensorType::F32, 2, 64);
    CHECK(pack(rows, WeightUse::vector, memory, &packed, &error) == Status::CORRUPT);
}

TEST_CASE("pack: wrong shapes and types have their status and name the tensor") {
    const auto status_of = [](auto change) {
        BytesSource source(TensorType::Q4_1, 32, 64);
        change(source);
        TestMemory memory;
        cpu::PackedWeight packed;
        Error error;
        const Status status = pack(source, WeightUse::matrix, memory, &packed, &error);
        CHECK(packed.bytes() == 0);
        CHECK(memory.weights.bytes_in_use() == 0);
        CHECK(std::string(error.message).find("test.weight") != std::string::npos);
        return status;
    };
    CHECK(status_of([](BytesSource& s) { s.type = 16; }) == Status::UNSUPPORTED_TYPE);  // IQ2_XXS
    CHECK(status_of([](BytesSource& s) { s.type = 0xffffffff; }) == Status::UNSUPPORTED_TYPE);
    CHECK(status_of([](BytesSource& s) { s.columns = 48; }) == Status::CORRUPT);
    CHECK(status_of([](BytesSource& s) { s.bytes -= 1; }) == Status::CORRUPT);
    CHECK(status_of([](BytesSource& s) { s.rows = 33; }) == Status::CORRUPT);
    CHECK(status_of([](BytesSource& s) { s.rows = 0; }) == Status::LIMIT);
    CHECK(status_of([](BytesSource& s) { s.columns = -32; }) == Status::LIMIT);
    CHECK(status_of([](BytesSource& s) { s.rows = INT64_MAX; }) == Status::LIMIT);
    CHECK(status_of([](BytesSource& s) { s.columns = int64_t{limits::vocabulary_max} + 32; }) ==
          Status::LIMIT);
}

TEST_CASE("pack: a failing read or a stop leaves nothing behind") {
    BytesSource source(TensorType::Q8_0, 4096, 1024);  // some stretches long
    struct Stop {
        int asked = 0;
        int limit = 0;
    };
    int ended = -1;
    for (int limit = 0; ended < 0; ++limit) {
        REQUIRE(limit < 100);
        Stop stop{0, limit};
        const ProgressHook progress{&stop, [](void* user, uint64_t done, uint64_t total) {
                                        auto* s = static_cast<Stop*>(user);
                                        return done <= total && s->asked++ < s->limit;
                                    }};
        TestMemory memory;
        cpu::PackedWeight packed;
        Error error;
        const Status status = pack(source, WeightUse::matrix, memory, &packed, &error, progress);
        if (status == Status::OK)
            ended = limit;
        else
            CHECK(status == Status::STOPPED);
        CHECK(memory.weights.bytes_in_use() == packed.bytes());
    }
    CHECK(ended >= 5);
    for (int reads = 0; reads < 3; ++reads) {
        source.reads = 0;
        source.reads_allowed = reads;
        TestMemory memory;
        cpu::PackedWeight packed;
        Error error;
        CHECK(pack(source, WeightUse::matrix, memory, &packed, &error) == Status::IO);
        CHECK(packed.bytes() == 0);
        CHECK(memory.weights.bytes_in_use() == 0);
        CHECK(memory.scratch.bytes_in_use() == 0);
    }
}

TEST_CASE("pack: whichever allocation fails, it is bad_alloc and nothing is kept") {
    struct Countdown {
        int left = 0;
    };
    for (int allowed = 0;; ++allowed) {
        REQUIRE(allowed < 50);
        Countdown countdown{allowed};
        const AllocatorHooks hooks{&countdown,
                                   [](void* user, size_t size, size_t alignment, int32_t kind) -> void* {
                                       auto* count = static_cast<Countdown*>(user);
                                       if (count->left-- <= 0) return nullptr;
                                       return allocate_for_test(nullptr, size, alignment, kind);
                                   },
                                   free_for_test};
        Memory weights(hooks, MemoryKind::weights);
        Memory scratch(hooks, MemoryKind::scratch);
        BytesSource source(TensorType::Q4_K, 32, 512);
        bool packed_whole = false;
        {
            cpu::PackedWeight packed;
            try {
                packed_whole = cpu::pack_weight(source, WeightUse::matrix, {}, &weights, &scratch, &packed,
                                                nullptr) == Status::OK;
            } catch (const std::bad_alloc&) {
                CHECK(packed.bytes() == 0);
            }
        }
        CHECK(weights.bytes_in_use() == 0);
        CHECK(scratch.bytes_in_use() == 0);
        if (packed_whole) break;
    }
}
