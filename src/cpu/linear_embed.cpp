// Reading one row back out of the packed planes: the embedding of a token.
#include <bit>
#include <cstring>

#include "base/float16.h"
#include "cpu/linear.h"

namespace treadle::cpu {
namespace {

uint16_t load_u16(const uint8_t* from) {
    uint16_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

float load_f32(const uint8_t* from) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// How the values of one group are made: w = scale · q + minimum, or without the minimum.
struct GroupScale {
    float scale;
    float minimum;
};

GroupScale group_scale(const PackedLayout& layout, const uint8_t* plane, int32_t lane, int32_t group) {
    const int32_t groups_per_record = layout.record_values() / layout.group;
    const uint8_t* record =
        plane + static_cast<size_t>(group / groups_per_record) * static_cast<size_t>(layout.record_bytes());
    if (layout.scale == PackedScale::e8m0) {
        const uint32_t power = record[lane];  // 2^(power - 128), below 2 a subnormal
        return {std::bit_cast<float>(power < 2 ? 0x00200000u << power : (power - 1) << 23), 0.0f};
    }
    const float d = f32_from_f16(load_u16(record + lane * 2));
    const float minimum = layout.has_minimum() ? f32_from_f16(load_u16(record + 32 + lane * 2)) : 0.0f;
    const uint8_t* sub =
        record + layout.record_head_bytes() +
        static_cast<size_t>(group % groups_per_record) * static_cast<size_t>(layout.group_scale_bytes());
    switch (layout.scale) {
        case PackedScale::i8_f16: return {d * static_cast<float>(static_cast<int8_t>(sub[lane])), 0.0f};
        case PackedScale::u8_f16_min:
            return {d * static_cast<float>(sub[lane]), -(minimum * static_cast<float>(sub[16 + lane]))};
        case PackedScale::u4_f16_min:
            return {d * static_cast<float>(sub[lane] & 15), -(minimum * static_cast<float>(sub[lane] >> 4))};
        default: return {d, minimum};
    }
}

int32_t code_at(const PackedMatrix& w, const PackedLayout& layout, const uint8_t* plane, int32_t lane,
                int32_t k) {
    const int32_t quad = k % 32 / 4;
    const uint8_t* line = plane +
                          static_cast<size_t>(k / 32) * static_cast<size_t>(layout.lines_per_32()) * 64 +
                          static_cast<size_t>(lane) * 4 + static_cast<size_t>(k % 4);
    const int32_t nibble = line[quad % 4 * 64] >> quad / 4 * 4 & 15;
    switch (layout.codes) {
        case PackedCodes::u2: return line[quad / 4 * 64] >> quad % 4 * 2 & 3;
        case PackedCodes::u3: return (line[quad / 4 * 64] >> quad % 4 * 2 & 3) | (line[128] >> quad & 1) << 2;
        case PackedCodes::u5: return nibble | (line[256] >> quad & 1) << 4;
        case PackedCodes::u6: return nibble | (line[256 + quad / 4 * 64] >> quad % 4 * 2 & 3) << 4;
        case PackedCodes::u8: return line[quad * 64];
        case PackedCodes::table4: return w.table[nibble];
        default: return nibble;
    }
}

}  // namespace

void embed(const PackedMatrix& w, int32_t token, float scale, float* out) {
    const PackedLayout layout = packed_layout(w.format);
    const auto panel = static_cast<size_t>(token / panel_rows);
    const int32_t lane = token % panel_rows;
    const uint8_t* codes = w.codes + panel * w.code_bytes_per_panel;
    const uint8_t* scales = w.scales + panel * w.scale_bytes_per_panel;
    if (layout.is_float()) {
        for (int32_t k = 0; k < w.columns; ++k) {
            const uint8_t* value = codes + (static_cast<size_t>(k) * panel_rows + static_cast<size_t>(lane)) *
                                               static_cast<size_t>(layout.value_bytes());
            const float decoded = layout.codes == PackedCodes::f32   ? load_f32(value)
                                  : layout.codes == PackedCodes::f16 ? f32_from_f16(load_u16(value))
                                                                     : f32_from_bf16(load_u16(value));
            out[k] = decoded * scale;
        }
        return;
    }
    for (int32_t group = 0; group < w.columns / layout.group; ++group) {
        const GroupScale of_group = group_scale(layout, scales, lane, group);
        for (int32_t k = group * layout.group; k < (group + 1) * layout.group; ++k) {
            const int32_t code = code_at(w, layout, codes, lane, k) - layout.offset;
            const float product = of_group.scale * static_cast<float>(code);
            out[k] = (layout.has_minimum() ? product + of_group.minimum : product) * scale;
        }
    }
}

}  // namespace treadle::cpu
