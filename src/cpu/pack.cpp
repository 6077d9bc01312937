// Packing: each row of the file is taken apart into codes and scales, which are then laid into the
// planes of packed.h.
#include "cpu/pack.h"

#include <algorithm>
#include <cstring>

#include "base/float16.h"
#include "base/limits.h"
#include "quant/types.h"

namespace treadle::cpu {
namespace {

constexpr int64_t side_max = limits::vocabulary_max;  // no matrix of a model has a longer side
constexpr size_t stretch_bytes = 1 << 20;             // of the file, read at once
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

// What stays the same over the rows of one tensor.
struct Packer {
    TensorType type;
    PackedLayout layout;
    int32_t columns;
    size_t row_bytes;             // in the file
    AlignedArray<uint8_t> codes;  // of one row, as unpack_row gives them
    AlignedArray<uint16_t> scale;
    AlignedArray<uint16_t> minimum;
    AlignedArray<uint8_t> sub_scale;
    AlignedArray<uint8_t> sub_minimum;
};

// Where quad `quad` of a group lies: lines from `line` on, shifted left by `shift`.
struct Place {
    int32_t line;
    int32_t shift;
};

Place place_of_nibble(int32_t quad) { return {quad % 4, quad / 4 * 4}; }
Place place_of_crumb(int32_t quad) { return {quad / 4, quad % 4 * 2}; }

// Lays the low `bits` of the four codes of a quad into its lane of a line.
void lay(uint8_t* lines, int32_t lane, Place place, const uint8_t* quad_codes, int32_t from_bit,
         int32_t bits) {
    uint8_t* to = lines + place.line * 64 + lane * 4;
    for (int32_t i = 0; i < 4; ++i) {
        const int32_t part = quad_codes[i] >> from_bit & ((1 << bits) - 1);
        to[i] = static_cast<uint8_t>(to[i] | part << place.shift);
    }
}

void lay_group(PackedCodes kind, const uint8_t* codes, int32_t lane, uint8_t* lines) {
    for (int32_t quad = 0; quad < 8; ++quad) {
        const uint8_t* four = codes + quad * 4;
        switch (kind) {
            case PackedCodes::u2:
            case PackedCodes::u3: lay(lines, lane, place_of_crumb(quad), four, 0, 2); break;
            case PackedCodes::u8: lay(lines, lane, {quad, 0}, four, 0, 8); break;
            default: lay(lines, lane, place_of_nibble(quad), four, 0, 4); break;
        }
        if (kind == PackedCodes::u3) lay(lines + 2 * 64, lane, {0, quad}, four, 2, 1);
        if (kind == PackedCodes::u5) lay(lines + 4 * 64, lane, {0, quad}, four, 4, 1);
        if (kind == PackedCodes::u6) lay(lines + 4 * 64, lane, place_of_crumb(quad), four, 4, 2);
    }
}

void put_f16(uint8_t* sixteen, int32_t lane, uint16_t value) { std::memcpy(sixteen + lane * 2, &value, 2); }

// The scales of one row into its lane of the panel's scale plane.
void lay_scales(const Packer& packer, int32_t lane, uint8_t* plane) {
    const PackedLayout& layout = packer.layout;
    const int32_t groups_per_record = layout.record_values() / layout.group;
    const int32_t records = packer.columns / layout.record_values();
    for (int32_t record = 0; record < records; ++record, plane += layout.record_bytes()) {
        if (layout.scale == PackedScale::e8m0) {
            plane[lane] = packer.sub_scale[static_cast<size_t>(record)];
            continue;
        }
        put_f16(plane, lane, packer.scale[static_cast<size_t>(record)]);
        if (layout.has_minimum()) put_f16(plane + 32, lane, packer.minimum[static_cast<size_t>(record)]);
        uint8_t* to = plane + layout.record_head_bytes();
        for (int32_t i = 0; layout.group_scale_bytes() != 0 && i < groups_per_record;
             ++i, to += layout.group_scale_bytes()) {
            const auto group =
                static_cast<size_t>(record) * static_cast<size_t>(groups_per_record) + static_cast<size_t>(i);
            to[lane] = packer.sub_scale[group];
            if (layout.scale == PackedScale::u8_f16_min) to[16 + lane] = packer.sub_minimum[group];
            if (layout.scale == PackedScale::u4_f16_min)
                to[lane] =
                    static_cast<uint8_t>((packer.sub_scale[group] & 15) | packer.sub_minimum[group] << 4);
        }
    }
}

void lay_row(Packer& packer, const uint8_t* row, int32_t lane, uint8_t* code_plane, uint8_t* scale_plane) {
    const PackedLayout& layout = packer.layout;
    const auto columns = static_cast<size_t>(packer.columns);
    if (layout.is_float()) {
        const auto width = static_cast<size_t>(layout.value_bytes());
        for (size_t k = 0; k < columns; ++k)
            std::memcpy(code_plane + (k * panel_rows + static_cast<size_t>(lane)) * width, row + k * width,
                        width);
        return;
    }
    unpack_row(packer.type, row, columns,
               {packer.codes.data(), packer.scale.data(), packer.minimum.data(), packer.sub_scale.data(),
                packer.sub_minimum.data()});
    const size_t line_bytes = static_cast<size_t>(layout.lines_per_32()) * 64;
    for (size_t group = 0; group < columns / group_values; ++group)
        lay_group(layout.codes, packer.codes.data() + group * group_values, lane,
                  code_plane + group * line_bytes);
    lay_scales(packer, lane, scale_plane);
}

Packer make_packer(const TypeInfo& info, PackedFormat format, const WeightSource& source, Memory* scratch) {
    Packer packer = {info.type,
                     packed_layout(format),
                     static_cast<int32_t>(source.columns),
                     static_cast<size_t>(source.columns) / info.block_values * info.block_bytes,
                     {},
                     {},
                     {},
                     {},
                     {}};
    const PackedKind* kind = packed_kind(info.type);
    if (kind == nullptr) return packer;
    const auto columns = static_cast<size_t>(source.columns);
    const size_t groups = columns / static_cast<size_t>(kind->group);
    const size_t scales = columns / static_cast<size_t>(kind->scale_values);
    packer.codes = AlignedArray<uint8_t>(scratch, columns);
    packer.scale = AlignedArray<uint16_t>(scratch, scales);
    packer.minimum = AlignedArray<uint16_t>(scratch, scales);
    packer.sub_scale = AlignedArray<uint8_t>(scratch, groups);
    packer.sub_minimum = AlignedArray<uint8_t>(scratch, groups);
    return packer;
}

Status stopped(const WeightSource& source, Error* error) {
    return fail(error, Status::STOPPED, "loading was stopped in tensor %s", source.name);
}

Status pack_matrix(WeightSource& source, const TypeInfo& info, PackedFormat format,
                   const ProgressHook& progress, Memory* weights, Memory* scratch, PackedWeight* out,
                   Error* error) {
    Packer packer = make_packer(info, format, source, scratch);
    const PackedLayout& layout = packer.layout;
    const size_t panels = panels_of(source.rows);

    PackedWeight packed;
    packed.planes = AlignedArray<uint8_t>(weights, packed_bytes(format, source.rows, source.columns));
    std::memset(packed.planes.data(), 0, packed.planes.bytes());
    PackedMatrix& matrix = packed.matrix;
    matrix.rows = static_cast<int32_t>(source.rows);
    matrix.columns = packer.columns;
    matrix.reads_f32 = layout.is_float();
    matrix.format = format;
    matrix.code_bytes_per_panel = code_plane_bytes(layout, source.columns);
    matrix.scale_bytes_per_panel = scale_plane_bytes(layout, source.columns);
    uint8_t* const code_planes = packed.planes.data();
    uint8_t* const scale_planes = code_planes + panels * matrix.code_bytes_per_panel;
    matrix.codes = code_planes;
    matrix.scales = scale_planes;
    if (layout.codes == PackedCodes::table4)
        for (size_t i = 0; i < 16; ++i)
            matrix.table[i] = static_cast<uint8_t>(packed_kind(info.type)->table[i] + 128);

    const size_t panel_file_bytes = packer.row_bytes * panel_rows;
    const size_t stretch_panels = std::min(std::max<size_t>(stretch_bytes / panel_file_bytes, 1), panels);
    const size_t stretch_rows = std::min(stretch_panels * panel_rows, static_cast<size_t>(source.rows));
    AlignedArray<uint8_t> stretch(scratch, stretch_rows * packer.row_bytes);
    const auto rows = static_cast<size_t>(source.rows);
    for (size_t first = 0; first < rows; first += stretch_rows) {
        const size_t offset = first * packer.row_bytes;
        if (!progress.go_on(offset, source.bytes)) return stopped(source, error);
        const size_t count = std::min(stretch_rows, rows - first);
        TREADLE_TRY(source.read(offset, stretch.data(), count * packer.row_bytes, error));
        for (size_t i = 0; i < count; ++i) {
            const size_t panel = (first + i) / panel_rows;
            lay_row(packer, stretch.data() + i * packer.row_bytes,
                    static_cast<int32_t>((first + i) % panel_rows),
                    code_planes + panel * matrix.code_bytes_per_panel,
                    scale_planes + panel * matrix.scale_bytes_per_panel);
        }
    }
    if (!progress.go_on(source.bytes, source.bytes)) return stopped(source, error);
    *out = std::move(packed);
    return Status::OK;
}

Status pack_vector(WeightSource& source, const TypeInfo& info, const ProgressHook& progress, Memory* weights,
                   Memory* scratch, PackedWeight* out, Error* error) {
    if (source.rows != 1)
        return fail(error, Status::CORRUPT, "tensor %s has %lld rows where one is expected", source.name,
                    static_cast<long long>(source.rows));
    const auto columns = static_cast<size_t>(source.columns);
    AlignedArray<uint8_t> raw(scratch, columns * info.block_bytes);
    if (!progress.go_on(0, source.bytes)) return stopped(source, error);
    TREADLE_TRY(source.read(0, raw.data(), raw.bytes(), error));
    PackedWeight packed;
    packed.vector = AlignedArray<float>(weights, (columns + 15) / 16 * 16);
    std::fill(packed.vector.begin(), packed.vector.end(), 0.0f);
    decode_row(info.type, raw.data(), columns, packed.vector.data());
    if (!progress.go_on(source.bytes, source.bytes)) return stopped(source, error);
    *out = std::move(packed);
    return Status::OK;
}

}  // namespace

size_t packed_bytes(PackedFormat format, int64_t rows, int64_t columns) {
    const PackedLayout layout = packed_layout(format);
    return panels_of(rows) * (code_plane_bytes(layout, columns) + scale_plane_bytes(layout, columns));
}

Status pack_weight(WeightSource& source, WeightUse use, const ProgressHook& progress, Memory* weights,
                   Memory* scratch, PackedWeight* out, Error* error) {
    const TypeInfo* info = type_info(source.type);
    PackedFormat format = PackedFormat::f32;
    if (info == nullptr || !format_of(info->type, &format)) {
        const char* name = foreign_type_name(source.type);
        return fail(error, Status::UNSUPPORTED_TYPE, "tensor %s has type %u (%s), which is not supported",
                    source.name, source.type, name == nullptr ? "unknown" : name);
    }
    if (source.rows < 1 || source.columns < 1 || source.rows > side_max || source.columns > side_max)
        return fail(error, Status::LIMIT, "tensor %s is %lld x %lld; each side may be 1 to %lld", source.name,
                    static_cast<long long>(source.rows), static_cast<long long>(source.columns),
                    static_cast<long long>(side_max));
    const auto rows = static_cast<uint64_t>(source.rows);
    const auto columns = static_cast<uint64_t>(source.columns);
    if (columns % info->block_values != 0)
        return fail(error, Status::CORRUPT,
                    "tensor %s has rows of %llu values, no multiple of the %u in a block of %s", source.name,
                    static_cast<unsigned long long>(columns), info->block_values, info->name);
    const uint64_t bytes = rows * (columns / info->block_values * info->block_bytes);
    if (source.bytes != bytes)
        return fail(error, Status::CORRUPT, "tensor %s has %llu bytes where its shape and type need %llu",
                    source.name, static_cast<unsigned long long>(source.bytes),
                    static_cast<unsigned long long>(bytes));
    if (use == WeightUse::matrix)
        return pack_matrix(source, *info, format, progress, weights, scratch, out, error);
    if (!packed_layout(format).is_float())
        return fail(error, Status::UNSUPPORTED_TYPE,
                    "tensor %s has type %s; gains and biases must be F32, F16 or BF16", source.name,
                    info->name);
    return pack_vector(source, *info, progress, weights, scratch, out, error);
}

}  // namespace treadle::cpu
