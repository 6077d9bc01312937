// Decoding against the PyPI package `gguf` (tests/golden/quant), and unpacking against decoding.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "base/float16.h"
#include "gguf_writer.h"
#include "quant/types.h"

namespace treadle {
namespace {

using test::Bytes;

struct Golden {
    TensorType type;
    uint32_t rows, values, row_bytes;
    const char* blocks;  // (rows, row_bytes)
    const char* floats;  // (rows, values)
};

Bytes read_golden() {
    const auto path =
        std::filesystem::path(__FILE__).parent_path() / ".." / "golden" / "quant" / "blocks.bin";
    std::ifstream file(path, std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(file), {});
}

std::vector<Golden> golden_types(const Bytes& bytes) {
    std::vector<Golden> found;
    REQUIRE(bytes.size() > 8);
    REQUIRE(std::memcmp(bytes.data(), "TRQG", 4) == 0);
    size_t at = 4;
    const auto number = [&] {
        uint32_t value;
        std::memcpy(&value, bytes.data() + at, sizeof value);
        at += sizeof value;
        return value;
    };
    const uint32_t count = number();
    for (uint32_t i = 0; i < count; ++i) {
        Golden golden;
        golden.type = static_cast<TensorType>(number());
        golden.rows = number();
        golden.values = number();
        golden.row_bytes = number();
        golden.blocks = bytes.data() + at;
        at += size_t{golden.rows} * golden.row_bytes;
        golden.floats = bytes.data() + at;
        at += size_t{golden.rows} * golden.values * sizeof(float);
        found.push_back(golden);
    }
    REQUIRE(at == bytes.size());
    return found;
}

// Equal bits; any NaN equals any other.
bool same(float a, float b) {
    return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

struct Unpacked {
    Unpacked(const PackedKind& kind, size_t values)
        : codes(values), scale(values / static_cast<size_t>(kind.scale_values)), minimum(scale.size()),
          sub_scale(values / static_cast<size_t>(kind.group)), sub_minimum(sub_scale.size()) {}
    UnpackedRow row() {
        return {codes.data(), scale.data(), minimum.data(), sub_scale.data(), sub_minimum.data()};
    }
    std::vector<uint8_t> codes;
    std::vector<uint16_t> scale, minimum;
    std::vector<uint8_t> sub_scale, sub_minimum;
};

// The formulas that ScaleKind states, written a second time.
float weight(const PackedKind& kind, const Unpacked& from, size_t index) {
    const size_t group = index / static_cast<size_t>(kind.group);
    const size_t super = index / static_cast<size_t>(kind.scale_values);
    const int code = from.codes[index];
    const auto q = static_cast<float>(kind.table != nullptr ? kind.table[code] : code - kind.offset);
    const float d = f32_from_f16(from.scale[super]);
    const float minimum = f32_from_f16(from.minimum[super]);
    switch (kind.scale) {
        case ScaleKind::f16: return d * q;
        case ScaleKind::f16_min: {
            const float product = d * q;
            return product + minimum;
        }
        case ScaleKind::i8_f16: {
            const float scale = d * static_cast<float>(static_cast<int8_t>(from.sub_scale[group]));
            return scale * q;
        }
        case ScaleKind::u8_f16_min: {
            const float scale = d * static_cast<float>(from.sub_scale[group]);
            const float least = minimum * static_cast<float>(from.sub_minimum[group]);
            const float product = scale * q;
            return product - least;
        }
        case ScaleKind::e8m0: return static_cast<float>(std::ldexp(1.0, from.sub_scale[group] - 128)) * q;
    }
    return 0.0f;
}

void check_unpacked(TensorType type, const Bytes& row, size_t values) {
    const PackedKind& kind = *packed_kind(type);
    Unpacked unpacked(kind, values);
    unpack_row(type, row.data(), values, unpacked.row());
    std::vector<float> decoded(values);
    decode_row(type, row.data(), values, decoded.data());
    size_t different = 0;
    for (size_t i = 0; i < values; ++i) different += !same(decoded[i], weight(kind, unpacked, i));
    CHECK(different == 0);
    const int code_limit = 1 << kind.bits;
    for (const uint8_t code : unpacked.codes) REQUIRE(code < code_limit);
    if (kind.scale == ScaleKind::u8_f16_min) {
        for (const uint8_t sub : unpacked.sub_scale) REQUIRE(sub < 1 << kind.sub_bits);
        for (const uint8_t sub : unpacked.sub_minimum) REQUIRE(sub < 1 << kind.sub_bits);
    } else if (kind.scale == ScaleKind::i8_f16) {
        const int limit = 1 << (kind.sub_bits - 1);
        for (const uint8_t sub : unpacked.sub_scale) {
            const int value = static_cast<int8_t>(sub);
            REQUIRE(value >= -limit);
            REQUIRE(value < limit);
        }
    }
}

}  // namespace

TEST_CASE("quant: the table of types") {
    std::set<uint32_t> seen;
    for (int i = 0; i < type_count; ++i) {
        const TypeInfo& info = type_at(i);
        const auto raw = static_cast<uint32_t>(info.type);
        CHECK(seen.insert(raw).second);
        CHECK(type_info(raw) == &info);
        CHECK(std::string(foreign_type_name(raw)) == info.name);
        const PackedKind* kind = packed_kind(info.type);
        if (kind == nullptr) {
            CHECK(info.block_values == 1);
            continue;
        }
        CHECK((kind->group == 16 || kind->group == 32));
        CHECK(info.block_values % static_cast<uint32_t>(kind->scale_values) == 0);
        CHECK((kind->table == nullptr || (kind->bits == 4 && kind->offset == 0)));
    }
    for (uint32_t raw = 0; raw < 100000; ++raw) CHECK((type_info(raw) != nullptr) == (seen.count(raw) == 1));
    CHECK(type_info(UINT32_MAX) == nullptr);
    CHECK(type_info(1u << 31) == nullptr);
    CHECK(std::string(foreign_type_name(16)) == "IQ2_XXS");
    CHECK(foreign_type_name(40) == nullptr);
}

TEST_CASE("quant: every type decodes to the bytes that PyPI's gguf gives") {
    const Bytes bytes = read_golden();
    const std::vector<Golden> all = golden_types(bytes);
    CHECK(all.size() == type_count);
    for (const Golden& golden : all) {
        const TypeInfo* info = type_info(static_cast<uint32_t>(golden.type));
        REQUIRE(info != nullptr);
        CAPTURE(info->name);
        REQUIRE(golden.row_bytes == golden.values / info->block_values * info->block_bytes);
        std::vector<float> decoded(golden.values), expected(golden.values);
        for (uint32_t row = 0; row < golden.rows; ++row) {
            CAPTURE(row);
            // A copy of the exact size, so that a sanitizer sees a read beyond it.
            const char* from = golden.blocks + size_t{row} * golden.row_bytes;
            const Bytes block(from, from + golden.row_bytes);
            decode_row(golden.type, block.data(), golden.values, decoded.data());
            std::memcpy(expected.data(), golden.floats + size_t{row} * golden.values * sizeof(float),
                        golden.values * sizeof(float));
            size_t different = 0;
            for (uint32_t i = 0; i < golden.values; ++i) different += !same(decoded[i], expected[i]);
            CHECK(different == 0);
            if (packed_kind(golden.type) != nullptr) check_unpacked(golden.type, block, golden.values);
        }
    }
}

TEST_CASE("quant: unpacking and decoding agree on random rows of several blocks") {
    test::Random random(5);
    for (int i = 0; i < type_count; ++i) {
        const TypeInfo& info = type_at(i);
        if (packed_kind(info.type) == nullptr) continue;
        CAPTURE(info.name);
        for (const size_t blocks : {1, 2, 7}) {
            const size_t values = blocks * info.block_values;
            check_unpacked(info.type, test::random_tensor(random, info.type, values, 0.05), values);
            Bytes noise(blocks * info.block_bytes);  // scales of any bits, NaN and infinity among them
            for (char& byte : noise) byte = static_cast<char>(random.next() >> 56);
            check_unpacked(info.type, noise, values);
        }
    }
}

TEST_CASE("quant: a block decodes like a row of one, and outputs a kind has no use for may be null") {
    test::Random random(6);
    for (int i = 0; i < type_count; ++i) {
        const TypeInfo& info = type_at(i);
        CAPTURE(info.name);
        const Bytes block = test::random_tensor(random, info.type, info.block_values, 1.0);
        std::vector<float> one(info.block_values), two(info.block_values);
        decode_block(info.type, block.data(), one.data());
        decode_row(info.type, block.data(), info.block_values, two.data());
        CHECK(std::memcmp(one.data(), two.data(), one.size() * sizeof(float)) == 0);
        const PackedKind* kind = packed_kind(info.type);
        if (kind == nullptr) continue;
        Unpacked unpacked(*kind, info.block_values);
        UnpackedRow row = unpacked.row();
        const bool minimum = kind->scale == ScaleKind::f16_min || kind->scale == ScaleKind::u8_f16_min;
        if (!minimum) row.minimum = nullptr;
        if (kind->scale != ScaleKind::u8_f16_min) row.sub_minimum = nullptr;
        if (kind->scale == ScaleKind::f16 || kind->scale == ScaleKind::f16_min) row.sub_scale = nullptr;
        if (kind->scale == ScaleKind::e8m0) row.scale = nullptr;
        unpack_row(info.type, block.data(), info.block_values, row);
    }
}

TEST_CASE("quant: E8M0 names halves of powers of two") {
    for (int byte = 0; byte < 256; ++byte) {
        CHECK(static_cast<double>(f32_from_e8m0_half(static_cast<uint8_t>(byte))) ==
              std::ldexp(1.0, byte - 128));
    }
}

}  // namespace treadle
