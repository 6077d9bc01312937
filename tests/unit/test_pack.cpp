// Packing: what goes in comes out of the embedding by bits, every packed byte is what the drawing of the planes says,
// whatever the pieces, and wrong sizes are named.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/limits.h"
#include "test_linear_support.h"

using namespace treadle;
using namespace treadle::test;

namespace {

Status pack(const TensorBytes& source, WeightUse use, TestMemory& memory, WholeWeight* out, Error* error) {
    return pack_whole(source, use, source.data.data(), &memory.weights, out, error);
}

// The planes of a matrix as packed.h draws them, value by value.
class DrawnPlanes {
public:
    explicit DrawnPlanes(const TensorBytes& source, cpu::PackedFormat format)
        : layout_(cpu::packed_layout(format)), columns_(static_cast<size_t>(source.columns)) {
        const auto panels = static_cast<size_t>((source.rows + 15) / 16);
        const size_t width = static_cast<size_t>(layout_.value_bytes());
        code_bytes_ = up_64(layout_.is_float() ? columns_ * 16 * width
                                               : columns_ * 2 * static_cast<size_t>(layout_.lines_per_32()));
        if (!layout_.is_float())
            scale_bytes_ = up_64(columns_ / static_cast<size_t>(layout_.record_values()) *
                                 static_cast<size_t>(layout_.record_bytes()));
        bytes.resize(panels * (code_bytes_ + scale_bytes_));
        for (int64_t row = 0; row < source.rows; ++row) {
            const auto panel = static_cast<size_t>(row / 16);
            codes_ = bytes.data() + panel * code_bytes_;
            scales_ = bytes.data() + panels * code_bytes_ + panel * scale_bytes_;
            lane_ = static_cast<size_t>(row % 16);
            if (layout_.is_float())
                for (size_t k = 0; k < columns_; ++k)
                    std::memcpy(codes_ + (k * 16 + lane_) * width, source.row(row) + k * width, width);
            else
                draw_row(static_cast<TensorType>(source.type), source.row(row));
        }
    }
    std::vector<uint8_t> bytes;

private:
    static size_t up_64(size_t size) { return (size + 63) / 64 * 64; }

    void draw_row(TensorType type, const uint8_t* row) {
        const PackedKind& kind = *packed_kind(type);
        const size_t groups = columns_ / static_cast<size_t>(kind.group);
        const size_t scales = columns_ / static_cast<size_t>(kind.scale_values);
        std::vector<uint8_t> codes(columns_), sub_scale(groups), sub_minimum(groups);
        std::vector<uint16_t> scale(scales), minimum(scales);
        unpack_row(type, row, columns_,
                   {codes.data(), scale.data(), minimum.data(), sub_scale.data(), sub_minimum.data()});
        for (size_t k = 0; k < columns_; ++k) draw_code(k, codes[k]);
        const auto values = static_cast<size_t>(layout_.record_values());
        const size_t record_groups = values / static_cast<size_t>(layout_.group);
        for (size_t record = 0; record < columns_ / values; ++record) {
            uint8_t* to = scales_ + record * static_cast<size_t>(layout_.record_bytes());
            if (layout_.scale == cpu::PackedScale::e8m0) {
                to[lane_] = sub_scale[record];
                continue;
            }
            std::memcpy(to + lane_ * 2, &scale[record], 2);
            if (layout_.has_minimum()) std::memcpy(to + 32 + lane_ * 2, &minimum[record], 2);
            to += layout_.record_head_bytes();
            for (size_t i = record * record_groups; i < (record + 1) * record_groups; ++i) {
                if (layout_.scale == cpu::PackedScale::i8_f16) to[lane_] = sub_scale[i];
                if (layout_.scale == cpu::PackedScale::u8_f16_min) {
                    to[lane_] = sub_scale[i];
                    to[16 + lane_] = sub_minimum[i];
                }
                if (layout_.scale == cpu::PackedScale::u4_f16_min)
                    to[lane_] = static_cast<uint8_t>(sub_scale[i] | sub_minimum[i] << 4);
                to += layout_.group_scale_bytes();
            }
        }
    }

    void draw_code(size_t k, int code) {
        using cpu::PackedCodes;
        const size_t quad = k % 32 / 4;
        const auto put = [&](size_t line, size_t shift, int part) {
            uint8_t& to = codes_[(k / 32 * static_cast<size_t>(layout_.lines_per_32()) + line) * 64 +
                                 lane_ * 4 + k % 4];
            to = static_cast<uint8_t>(to | part << shift);
        };
        switch (layout_.codes) {
            case PackedCodes::u2: return put(quad / 4, quad % 4 * 2, code);
            case PackedCodes::u3: put(quad / 4, quad % 4 * 2, code & 3); return put(2, quad, code >> 2);
            case PackedCodes::u8: return put(quad, 0, code);
            case PackedCodes::u5: put(4, quad, code >> 4); break;
            case PackedCodes::u6: put(4 + quad / 4, quad % 4 * 2, code >> 4); break;
            default: break;
        }
        put(quad % 4, quad / 4 * 4, code & 15);
    }

    cpu::PackedLayout layout_;
    size_t columns_;
    size_t code_bytes_ = 0;
    size_t scale_bytes_ = 0;
    uint8_t* codes_ = nullptr;
    uint8_t* scales_ = nullptr;
    size_t lane_ = 0;
};

bool same_bytes(const cpu::PackedWeight& packed, const std::vector<uint8_t>& expected) {
    return packed.bytes == expected.size() && std::memcmp(packed.planes, expected.data(), packed.bytes) == 0;
}

}  // namespace

TEST_CASE("pack: the embedding of every row of every type equals its decoded row by bits") {
    std::mt19937 random(31);
    for (int index = 0; index < type_count; ++index) {
        const TypeInfo& info = type_at(index);
        INFO(std::string(info.name));
        TensorBytes source(info.type, 21, 768);
        fill_random(source, random);
        TestMemory memory;
        WholeWeight packed;
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

TEST_CASE("pack: every byte of every type is where the drawing has it, in memory that was not clear") {
    std::mt19937 random(33);
    for (int index = 0; index < type_count; ++index) {
        const TypeInfo& info = type_at(index);
        INFO(std::string(info.name));
        for (const int64_t rows : {1, 15, 16, 17, 40}) {
            for (const int64_t blocks : {1, 2, 3, 9}) {
                TensorBytes source(info.type, rows, blocks * info.block_values);
                fill_random(source, random);
                TestMemory memory;
                WholeWeight packed;
                REQUIRE(pack(source, WeightUse::matrix, memory, &packed, nullptr) == Status::OK);
                const DrawnPlanes drawn(source, packed.matrix.format);
                CHECK(same_bytes(packed, drawn.bytes));
                std::memset(packed.planes, 0xdd, packed.bytes);
                cpu::pack_rows(packed, 0, rows, source.data.data());
                CHECK(same_bytes(packed, drawn.bytes));
            }
        }
    }
}

TEST_CASE("pack: in pieces, in any order, it is the same bytes") {
    std::mt19937 random(35);
    for (int index = 0; index < type_count; ++index) {
        const TypeInfo& info = type_at(index);
        INFO(std::string(info.name));
        TensorBytes source(info.type, 16 * 13 + 5, 512);
        fill_random(source, random);
        TestMemory memory;
        WholeWeight packed;
        REQUIRE(pack(source, WeightUse::matrix, memory, &packed, nullptr) == Status::OK);
        const std::vector<uint8_t> whole(packed.planes, packed.planes + packed.bytes);
        for (const int64_t step : {int64_t{16}, int64_t{48}, int64_t{160}}) {
            std::vector<int64_t> pieces;
            for (int64_t row = 0; row < source.rows; row += step) pieces.push_back(row);
            std::shuffle(pieces.begin(), pieces.end(), random);
            std::memset(packed.planes, 0xdd, packed.bytes);
            for (const int64_t row : pieces)
                cpu::pack_rows(packed, row, std::min(step, source.rows - row), source.row(row));
            CHECK(same_bytes(packed, whole));
        }
    }
}

TEST_CASE("pack: at most 1.06 times the file's bytes") {
    for (int index = 0; index < type_count; ++index) {
        const TypeInfo& info = type_at(index);
        INFO(std::string(info.name));
        for (const int64_t columns : {int64_t{256}, int64_t{1536}}) {
            TensorBytes source(info.type, 16 * 200, columns);
            TestMemory memory;
            WholeWeight packed;
            Error error;
            REQUIRE(pack(source, WeightUse::matrix, memory, &packed, &error) == Status::OK);
            CHECK(static_cast<double>(packed.bytes) <= 1.06 * static_cast<double>(source.bytes));
            CHECK(packed.bytes == cpu::packed_bytes(packed.matrix.format, source.rows, source.columns));
            CHECK(memory.weights.bytes_in_use() == packed.bytes);
            CHECK(memory.scratch.bytes_peak() == 0);
            CHECK(reinterpret_cast<uintptr_t>(packed.matrix.scales) % 64 == 0);
            CHECK(packed.matrix.code_bytes_per_panel % 64 == 0);
            CHECK(packed.matrix.scale_bytes_per_panel % 64 == 0);
        }
    }
}

TEST_CASE("pack: vectors are one row of floats, padded with zeros") {
    std::mt19937 random(37);
    for (const TensorType type : {TensorType::F32, TensorType::F16, TensorType::BF16}) {
        TensorBytes source(type, 1, 50);
        fill_random(source, random);
        TestMemory memory;
        WholeWeight packed;
        Error error;
        REQUIRE(pack(source, WeightUse::vector, memory, &packed, &error) == Status::OK);
        REQUIRE(packed.vector.size() == 64);
        std::vector<float> expected(64, 0.0f);
        decode_row(type, source.row(0), 50, expected.data());
        for (size_t i = 0; i < 64; ++i) CHECK(same_f32(packed.vector[i], expected[i]));
    }
    TestMemory memory;
    WholeWeight packed;
    Error error;
    TensorBytes quantized(TensorType::Q8_0, 1, 64);
    CHECK(pack(quantized, WeightUse::vector, memory, &packed, &error) == Status::UNSUPPORTED_TYPE);
    TensorBytes rows(TensorType::F32, 2, 64);
    CHECK(pack(rows, WeightUse::vector, memory, &packed, &error) == Status::CORRUPT);
}

TEST_CASE("pack: wrong shapes and types have their status and name the tensor") {
    const auto status_of = [](auto change) {
        TensorBytes source(TensorType::Q4_1, 32, 64);
        change(source);
        TestMemory memory;
        WholeWeight packed;
        Error error;
        const Status status = pack(source, WeightUse::matrix, memory, &packed, &error);
        CHECK(packed.bytes == 0);
        CHECK(memory.weights.bytes_in_use() == 0);
        CHECK(std::string(error.message).find("test.weight") != std::string::npos);
        return status;
    };
    CHECK(status_of([](TensorBytes& s) { s.type = 16; }) == Status::UNSUPPORTED_TYPE);  // IQ2_XXS
    CHECK(status_of([](TensorBytes& s) { s.type = 0xffffffff; }) == Status::UNSUPPORTED_TYPE);
    CHECK(status_of([](TensorBytes& s) { s.columns = 48; }) == Status::CORRUPT);
    CHECK(status_of([](TensorBytes& s) { s.bytes -= 1; }) == Status::CORRUPT);
    CHECK(status_of([](TensorBytes& s) { s.rows = 33; }) == Status::CORRUPT);
    CHECK(status_of([](TensorBytes& s) { s.rows = 0; }) == Status::LIMIT);
    CHECK(status_of([](TensorBytes& s) { s.columns = -32; }) == Status::LIMIT);
    CHECK(status_of([](TensorBytes& s) { s.rows = INT64_MAX; }) == Status::LIMIT);
    CHECK(status_of([](TensorBytes& s) { s.columns = int64_t{limits::vocabulary_max} + 32; }) ==
          Status::LIMIT);
}
