// Packing, panel by panel: 16 rows of the file are taken apart into codes and scales, a stretch of columns at a
// time, which are then laid into the planes of packed.h. A lane's four codes of a quad are one word, so that
// shifts and masks work on all four.
#include "cpu/pack.h"

#include <algorithm>
#include <cstring>

#include "base/float16.h"
#include "base/limits.h"
#include "quant/types.h"

namespace treadle::cpu {
namespace {

constexpr int64_t side_max = limits::vocabulary_max;  // no matrix of a model has a longer side
constexpr int32_t stretch_values = 256;               // of a row, taken apart at once
constexpr int32_t group_values = 32;

bool format_of(TensorType type, PackedFormat* out) {
    switch (type) {
        case TensorType::F32: *out = PackedFormat::f32; return true;
        case TensorType::F16: *out = PackedFormat::f16; return true;
        case TensorType::BF16: *out = PackedFormat::bf16; return true;
        case TensorType::Q4_0: *out = PackedFormat::u4_f16; return true;
        case TensorType::Q4_1: *out = PackedFormat::u4_f16_min; return true;
        case TensorType::Q5_0: *out = PackedFormat::u5_f16; return true;
        case TensorType::Q5_1: *out = PackedFormat::u5_f16_min; return true;
        case TensorType::Q8_0: *out = PackedFormat::u8_f16; return true;
        case TensorType::IQ4_NL: *out = PackedFormat::table4_f16; return true;
        case TensorType::MXFP4: *out = PackedFormat::table4_e8m0; return true;
        case TensorType::Q2_K: *out = PackedFormat::u2_u4_min; return true;
        case TensorType::Q3_K: *out = PackedFormat::u3_i8; return true;
        case TensorType::Q4_K: *out = PackedFormat::u4_u8_min; return true;
        case TensorType::Q5_K: *out = PackedFormat::u5_u8_min; return true;
        case TensorType::Q6_K: *out = PackedFormat::u6_i8; return true;
        case TensorType::IQ4_XS: *out = PackedFormat::table4_i8; return true;
    }
    return false;
}

size_t round_up_64(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t code_plane_bytes(const PackedLayout& layout, int64_t columns) {
    const auto values = static_cast<size_t>(columns);
    if (layout.is_float())
        return round_up_64(values * panel_rows * static_cast<size_t>(layout.value_bytes()));
    return values / group_values * static_cast<size_t>(layout.lines_per_32()) * 64;
}

size_t scale_plane_bytes(const PackedLayout& layout, int64_t columns) {
    if (layout.is_float()) return 0;
    const size_t records = static_cast<size_t>(columns) / static_cast<size_t>(layout.record_values());
    return round_up_64(records * static_cast<size_t>(layout.record_bytes()));
}

size_t panels_of(int64_t rows) { return static_cast<size_t>((rows + panel_rows - 1) / panel_rows); }

size_t row_bytes_of(const TypeInfo& info, int64_t columns) {
    return static_cast<size_t>(columns) / info.block_values * info.block_bytes;
}

// Up to 16 rows of the file that become one panel.
struct FilePanel {
    const uint8_t* bytes;
    size_t row_bytes;
    int32_t rows;

    const uint8_t* row(int32_t lane) const { return bytes + static_cast<size_t>(lane) * row_bytes; }
};

uint32_t word_at(const uint8_t* bytes) {
    uint32_t word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
}

void put_word(uint8_t* lines, int32_t line, int32_t lane, uint32_t word) {
    std::memcpy(lines + line * 64 + lane * 4, &word, sizeof word);
}

void put_f16(uint8_t* sixteen, int32_t lane, uint16_t value) { std::memcpy(sixteen + lane * 2, &value, 2); }

// ---- Any quantized type -------------------------------------------------------------------------------

// A stretch of one row as unpack_row gives it.
struct Stretch {
    uint8_t codes[stretch_values];
    uint16_t scale[stretch_values / 32];
    uint16_t minimum[stretch_values / 32];
    uint8_t sub_scale[stretch_values / 16];
    uint8_t sub_minimum[stretch_values / 16];
};

uint32_t quad(const uint8_t* codes, int32_t index, int32_t from_bit, uint32_t mask) {
    return word_at(codes + index * 4) >> from_bit & mask;
}

void lay_nibbles(const uint8_t* codes, int32_t lane, uint8_t* lines) {
    for (int32_t i = 0; i < 4; ++i)
        put_word(lines, i, lane, quad(codes, i, 0, 0x0f0f0f0f) | quad(codes, i + 4, 0, 0x0f0f0f0f) << 4);
}

void lay_crumbs(const uint8_t* codes, int32_t from_bit, int32_t lane, uint8_t* lines) {
    for (int32_t i = 0; i < 2; ++i) {
        uint32_t word = 0;
        for (int32_t j = 0; j < 4; ++j) word |= quad(codes, i * 4 + j, from_bit, 0x03030303) << 2 * j;
        put_word(lines, i, lane, word);
    }
}

void lay_bits(const uint8_t* codes, int32_t from_bit, int32_t lane, uint8_t* line) {
    uint32_t word = 0;
    for (int32_t j = 0; j < 8; ++j) word |= quad(codes, j, from_bit, 0x01010101) << j;
    put_word(line, 0, lane, word);
}

template <PackedCodes kind>
void lay_group(const uint8_t* codes, int32_t lane, uint8_t* lines) {
    switch (kind) {
        case PackedCodes::u2: lay_crumbs(codes, 0, lane, lines); break;
        case PackedCodes::u3:
            lay_crumbs(codes, 0, lane, lines);
            lay_bits(codes, 2, lane, lines + 2 * 64);
            break;
        case PackedCodes::u5:
            lay_nibbles(codes, lane, lines);
            lay_bits(codes, 4, lane, lines + 4 * 64);
            break;
        case PackedCodes::u6:
            lay_nibbles(codes, lane, lines);
            lay_crumbs(codes, 4, lane, lines + 4 * 64);
            break;
        default: lay_nibbles(codes, lane, lines); break;
    }
}

// The scales of `values` columns into a lane of consecutive records.
void lay_scales(const PackedLayout& layout, const Stretch& row, int32_t values, int32_t lane,
                uint8_t* plane) {
    const int32_t groups_per_record = layout.record_values() / layout.group;
    for (int32_t record = 0; record < values / layout.record_values();
         ++record, plane += layout.record_bytes()) {
        put_f16(plane, lane, row.scale[record]);
        if (layout.has_minimum()) put_f16(plane + 32, lane, row.minimum[record]);
        uint8_t* to = plane + layout.record_head_bytes();
        for (int32_t i = 0; layout.group_scale_bytes() != 0 && i < groups_per_record;
             ++i, to += layout.group_scale_bytes()) {
            const int32_t group = record * groups_per_record + i;
            to[lane] = row.sub_scale[group];
            if (layout.scale == PackedScale::u8_f16_min) to[16 + lane] = row.sub_minimum[group];
            if (layout.scale == PackedScale::u4_f16_min)
                to[lane] = static_cast<uint8_t>((row.sub_scale[group] & 15) | row.sub_minimum[group] << 4);
        }
    }
}

template <PackedCodes kind>
void pack_stretches(const PackedWeight& weight, const FilePanel& from, uint8_t* codes, uint8_t* scales) {
    const TypeInfo& info = type_info(weight.type);
    const PackedLayout layout = packed_layout(weight.matrix.format);
    const size_t line_bytes = static_cast<size_t>(layout.lines_per_32()) * 64;
    Stretch row;
    for (int32_t first = 0; first < weight.matrix.columns; first += stretch_values) {
        const int32_t values = std::min(stretch_values, weight.matrix.columns - first);
        const size_t skipped = row_bytes_of(info, first);
        for (int32_t lane = 0; lane < from.rows; ++lane) {
            unpack_row(weight.type, from.row(lane) + skipped, static_cast<size_t>(values),
                       {row.codes, row.scale, row.minimum, row.sub_scale, row.sub_minimum});
            for (int32_t group = 0; group < values / group_values; ++group)
                lay_group<kind>(row.codes + group * group_values, lane,
                                codes + static_cast<size_t>(group) * line_bytes);
            lay_scales(layout, row, values, lane, scales);
        }
        codes += static_cast<size_t>(values / group_values) * line_bytes;
        scales += values / layout.record_values() * layout.record_bytes();
    }
}

// ---- Types whose blocks of 32 hold a panel's words already ---------------------------------------------

// A block is `head_bytes` of scales, then the words of its lane, but for the bits in `flip`.
template <int32_t head_bytes, int32_t words, uint32_t flip>
void pack_words(const FilePanel& from, int32_t columns, uint8_t* codes, uint8_t* scales) {
    constexpr int32_t block_bytes = head_bytes + words * 4;
    for (int32_t block = 0; block < columns / group_values; ++block) {
        for (int32_t lane = 0; lane < from.rows; ++lane) {
            const uint8_t* bytes = from.row(lane) + block * block_bytes;
            for (int32_t i = 0; i < words; ++i)
                put_word(codes, i, lane, word_at(bytes + head_bytes + i * 4) ^ flip);
            if (head_bytes == 1) scales[lane] = bytes[0];
            if (head_bytes >= 2) std::memcpy(scales + lane * 2, bytes, 2);
            if (head_bytes == 4) std::memcpy(scales + 32 + lane * 2, bytes + 2, 2);
        }
        codes += words * 64;
        scales += head_bytes * panel_rows;
    }
}

// ---- Floats ---------------------------------------------------------------------------------------------

template <class Value>
void pack_floats(const FilePanel& from, int32_t columns, uint8_t* codes) {
    for (int32_t lane = 0; lane < from.rows; ++lane) {
        const uint8_t* row = from.row(lane);
        uint8_t* to = codes + static_cast<size_t>(lane) * sizeof(Value);
        for (int32_t k = 0; k < columns; ++k, row += sizeof(Value), to += panel_rows * sizeof(Value))
            std::memcpy(to, row, sizeof(Value));
    }
}

// Zeros wherever the panel's rows may leave bytes of a plane alone: its last line, or all of it where rows are missing.
void clear_padding(int32_t rows, uint8_t* plane, size_t bytes) {
    const size_t cleared = rows == panel_rows ? std::min<size_t>(bytes, 64) : bytes;
    std::memset(plane + bytes - cleared, 0, cleared);
}

void pack_panel(const PackedWeight& weight, const FilePanel& from, uint8_t* codes, uint8_t* scales) {
    const PackedMatrix& matrix = weight.matrix;
    const int32_t columns = matrix.columns;
    switch (weight.type) {
        case TensorType::F32: return pack_floats<uint32_t>(from, columns, codes);
        case TensorType::F16:
        case TensorType::BF16: return pack_floats<uint16_t>(from, columns, codes);
        case TensorType::IQ4_NL:
        case TensorType::Q4_0: return pack_words<2, 4, 0>(from, columns, codes, scales);
        case TensorType::Q4_1: return pack_words<4, 4, 0>(from, columns, codes, scales);
        case TensorType::Q8_0: return pack_words<2, 8, 0x80808080>(from, columns, codes, scales);
        case TensorType::MXFP4: return pack_words<1, 4, 0>(from, columns, codes, scales);
        default: break;
    }
    switch (packed_layout(matrix.format).codes) {
        case PackedCodes::u2: return pack_stretches<PackedCodes::u2>(weight, from, codes, scales);
        case PackedCodes::u3: return pack_stretches<PackedCodes::u3>(weight, from, codes, scales);
        case PackedCodes::u5: return pack_stretches<PackedCodes::u5>(weight, from, codes, scales);
        case PackedCodes::u6: return pack_stretches<PackedCodes::u6>(weight, from, codes, scales);
        default: return pack_stretches<PackedCodes::u4>(weight, from, codes, scales);
    }
}

void lay_out_matrix(const WeightShape& tensor, const TypeInfo& info, PackedFormat format, PackedWeight* out) {
    const PackedLayout layout = packed_layout(format);
    PackedMatrix& matrix = out->matrix;
    matrix.rows = static_cast<int32_t>(tensor.rows);
    matrix.columns = static_cast<int32_t>(tensor.columns);
    matrix.reads_f32 = layout.is_float();
    matrix.format = format;
    matrix.code_bytes_per_panel = code_plane_bytes(layout, tensor.columns);
    matrix.scale_bytes_per_panel = scale_plane_bytes(layout, tensor.columns);
    if (layout.codes == PackedCodes::table4)
        for (size_t i = 0; i < 16; ++i)
            matrix.table[i] = static_cast<uint8_t>(packed_kind(info.type)->table[i] + 128);
    out->bytes = packed_bytes(format, tensor.rows, tensor.columns);
}

}  // namespace

size_t packed_bytes(PackedFormat format, int64_t rows, int64_t columns) {
    const PackedLayout layout = packed_layout(format);
    return panels_of(rows) * (code_plane_bytes(layout, columns) + scale_plane_bytes(layout, columns));
}

Status lay_out_weight(const WeightShape& tensor, WeightUse use, PackedWeight* out, Error* error) {
    const TypeInfo* info = type_info(tensor.type);
    PackedFormat format = PackedFormat::f32;
    if (info == nullptr || !format_of(info->type, &format)) {
        const char* name = foreign_type_name(tensor.type);
        return fail(error, Status::UNSUPPORTED_TYPE, "tensor %s has type %u (%s), which is not supported",
                    tensor.name, tensor.type, name == nullptr ? "unknown" : name);
    }
    if (tensor.rows < 1 || tensor.columns < 1 || tensor.rows > side_max || tensor.columns > side_max)
        return fail(error, Status::LIMIT, "tensor %s is %lld x %lld; each side may be 1 to %lld", tensor.name,
                    static_cast<long long>(tensor.rows), static_cast<long long>(tensor.columns),
                    static_cast<long long>(side_max));
    const auto rows = static_cast<uint64_t>(tensor.rows);
    const auto columns = static_cast<uint64_t>(tensor.columns);
    if (columns % info->block_values != 0)
        return fail(error, Status::CORRUPT,
                    "tensor %s has rows of %llu values, no multiple of the %u in a block of %s", tensor.name,
                    static_cast<unsigned long long>(columns), info->block_values, info->name);
    const uint64_t bytes = rows * (columns / info->block_values * info->block_bytes);
    if (tensor.bytes != bytes)
        return fail(error, Status::CORRUPT, "tensor %s has %llu bytes where its shape and type need %llu",
                    tensor.name, static_cast<unsigned long long>(tensor.bytes),
                    static_cast<unsigned long long>(bytes));
    if (use == WeightUse::vector && !packed_layout(format).is_float())
        return fail(error, Status::UNSUPPORTED_TYPE,
                    "tensor %s has type %s; gains and biases must be F32, F16 or BF16", tensor.name,
                    info->name);
    if (use == WeightUse::vector && rows != 1)
        return fail(error, Status::CORRUPT, "tensor %s has %lld rows where one is expected", tensor.name,
                    static_cast<long long>(tensor.rows));
    PackedWeight weight;
    weight.type = info->type;
    if (use == WeightUse::matrix) {
        lay_out_matrix(tensor, *info, format, &weight);
    } else {
        weight.matrix.columns = static_cast<int32_t>(tensor.columns);
        weight.bytes = round_up_64(columns * sizeof(float));
    }
    *out = weight;
    return Status::OK;
}

void place_weight(uint8_t* memory, PackedWeight* weight) {
    PackedMatrix& matrix = weight->matrix;
    weight->planes = memory;
    if (weight->is_vector()) {
        weight->vector = {reinterpret_cast<float*>(memory), weight->bytes / sizeof(float)};
    } else {
        matrix.codes = memory;
        matrix.scales = memory + static_cast<size_t>(matrix.panels()) * matrix.code_bytes_per_panel;
    }
}

void pack_rows(const PackedWeight& weight, int64_t first_row, int64_t rows, const void* bytes) {
    const PackedMatrix& matrix = weight.matrix;
    if (weight.is_vector()) {
        std::fill(weight.vector.begin(), weight.vector.end(), 0.0f);
        decode_row(weight.type, bytes, static_cast<size_t>(matrix.columns), weight.vector.data());
        return;
    }
    const size_t row_bytes = row_bytes_of(type_info(weight.type), matrix.columns);
    uint8_t* scale_planes =
        weight.planes + static_cast<size_t>(matrix.panels()) * matrix.code_bytes_per_panel;
    for (int64_t row = 0; row < rows; row += panel_rows) {
        const auto panel = static_cast<size_t>((first_row + row) / panel_rows);
        const FilePanel from = {static_cast<const uint8_t*>(bytes) + static_cast<size_t>(row) * row_bytes,
                                row_bytes, static_cast<int32_t>(std::min<int64_t>(panel_rows, rows - row))};
        uint8_t* codes = weight.planes + panel * matrix.code_bytes_per_panel;
        uint8_t* scales = scale_planes + panel * matrix.scale_bytes_per_panel;
        clear_padding(from.rows, codes, matrix.code_bytes_per_panel);
        clear_padding(from.rows, scales, matrix.scale_bytes_per_panel);
        pack_panel(weight, from, codes, scales);
    }
}

}  // namespace treadle::cpu
