// Packed weights: what load makes of a file's matrix (pack.cpp), and what the linear kernels and the
// embedding read.
//
// A panel is 16 rows (outputs); rows are padded to 16 with zeros. SIMD lanes are the rows of a panel.
// Per panel the codes lie in one plane and the scales in another, each a multiple of 64 bytes; all
// panels' code planes come first, then all scale planes.
//
// Codes go by groups of 32 values along a row. The four values k = 4i .. 4i + 3 are quad i (0 .. 7); a
// line is 64 bytes, in which lane r owns bytes 4r .. 4r + 3, one for each value of a quad:
//
//     line   | row 0: b0 b1 b2 b3 | row 1: b0 b1 b2 b3 | … | row 15: b0 b1 b2 b3 |
//
//     bytes    line i                 holds quad i                                           8 lines
//     nibbles  line i % 4             holds quad i in its low (i < 4) or high (i >= 4) bits  4 lines
//     crumbs   line i / 4             holds quad i in bits 2 (i % 4) .. 2 (i % 4) + 1        2 lines
//     bits     the only line          holds quad i in bit i                                  1 line
//
//     u2 = crumbs · u3 = crumbs, then the third bits · u4 = nibbles · u5 = nibbles, then the fifth bits ·
//     u6 = nibbles, then the upper two bits as crumbs · u8 = bytes · table4 = nibbles that index a table
//
// Scales go by records, one for each 32 values, or for each 256 where a sub-scale stands beside d. All
// are as in the file:
//
//     f16         | d f16 × 16 |                                    w = d · q, where q = code - offset
//     f16_min     | d f16 × 16 | m f16 × 16 |                       w = d · q + m
//     i8_f16      | d f16 × 16 | sub i8 × 16 per group |            w = (d · sub) · q
//     u8_f16_min  | d f16 × 16 | dmin f16 × 16 | sub u8 × 16, sub_minimum u8 × 16 per group |
//                                                                   w = (d · sub) · q - dmin · sub_minimum
//     u4_f16_min  | d f16 × 16 | dmin f16 × 16 | u8 × 16 per group: low 4 bits sub, high 4 sub_minimum |
//     e8m0        | power u8 × 16 |                                 w = 2^(power - 128) · q
//
// Float weights have no scale plane: their panel is (columns, 16 rows) in their own width.
#pragma once

#include <cstddef>
#include <cstdint>

namespace treadle::cpu {

enum class PackedCodes : uint8_t { u2, u3, u4, u5, u6, u8, table4, f32, f16, bf16 };
enum class PackedScale : uint8_t { none, f16, f16_min, i8_f16, u8_f16_min, u4_f16_min, e8m0 };

// A row for each kind that kernels are written for: name, codes, scale, values in a group that has its
// own (sub-)scale, offset. The table of table4 is stored with 128 added, hence its offset.
#define TREADLE_PACKED_FORMATS(X)                      \
    X(u4_f16, u4, f16, 32, 8)             /* Q4_0 */   \
    X(u4_f16_min, u4, f16_min, 32, 0)     /* Q4_1 */   \
    X(u5_f16, u5, f16, 32, 16)            /* Q5_0 */   \
    X(u5_f16_min, u5, f16_min, 32, 0)     /* Q5_1 */   \
    X(u8_f16, u8, f16, 32, 128)           /* Q8_0 */   \
    X(table4_f16, table4, f16, 32, 128)   /* IQ4_NL */ \
    X(table4_e8m0, table4, e8m0, 32, 128) /* MXFP4 */  \
    X(u2_u4_min, u2, u4_f16_min, 16, 0)   /* Q2_K */   \
    X(u3_i8, u3, i8_f16, 16, 4)           /* Q3_K */   \
    X(u4_u8_min, u4, u8_f16_min, 32, 0)   /* Q4_K */   \
    X(u5_u8_min, u5, u8_f16_min, 32, 0)   /* Q5_K */   \
    X(u6_i8, u6, i8_f16, 16, 32)          /* Q6_K */   \
    X(table4_i8, table4, i8_f16, 32, 128) /* IQ4_XS */ \
    X(f32, f32, none, 0, 0)                            \
    X(f16, f16, none, 0, 0)                            \
    X(bf16, bf16, none, 0, 0)

enum class PackedFormat : uint8_t {
#define TREADLE_PACKED_FORMAT_VALUE(name, codes, scale, group, offset) name,
    TREADLE_PACKED_FORMATS(TREADLE_PACKED_FORMAT_VALUE)
#undef TREADLE_PACKED_FORMAT_VALUE
};

struct PackedLayout {
    PackedCodes codes;
    PackedScale scale;
    int32_t group;
    int32_t offset;

    constexpr bool is_float() const { return scale == PackedScale::none; }
    constexpr bool has_minimum() const {
        return scale == PackedScale::f16_min || scale == PackedScale::u8_f16_min ||
               scale == PackedScale::u4_f16_min;
    }
    constexpr int32_t lines_per_32() const {  // of codes
        switch (codes) {
            case PackedCodes::u2: return 2;
            case PackedCodes::u3: return 3;
            case PackedCodes::u4: return 4;
            case PackedCodes::u5: return 5;
            case PackedCodes::u6: return 6;
            case PackedCodes::u8: return 8;
            case PackedCodes::table4: return 4;
            default: return 0;
        }
    }
    constexpr int32_t value_bytes() const { return codes == PackedCodes::f32 ? 4 : 2; }  // of float weights
    constexpr int32_t record_values() const {
        return scale == PackedScale::f16 || scale == PackedScale::f16_min || scale == PackedScale::e8m0 ? 32
                                                                                                        : 256;
    }
    constexpr int32_t record_head_bytes() const {  // before the sub-scales
        if (scale == PackedScale::e8m0) return 16;
        return has_minimum() ? 64 : 32;
    }
    constexpr int32_t group_scale_bytes() const {  // of the sub-scales of one group
        switch (scale) {
            case PackedScale::u8_f16_min: return 32;
            case PackedScale::i8_f16:
            case PackedScale::u4_f16_min: return 16;
            default: return 0;
        }
    }
    constexpr int32_t record_bytes() const {
        return record_head_bytes() +
               (group_scale_bytes() == 0 ? 0 : record_values() / group * group_scale_bytes());
    }
};

constexpr PackedLayout packed_layout(PackedFormat format) {
    switch (format) {
#define TREADLE_PACKED_LAYOUT_CASE(name, codes, scale, group, offset) \
    case PackedFormat::name: return {PackedCodes::codes, PackedScale::scale, group, offset};
        TREADLE_PACKED_FORMATS(TREADLE_PACKED_LAYOUT_CASE)
#undef TREADLE_PACKED_LAYOUT_CASE
    }
    return {PackedCodes::f32, PackedScale::none, 0, 0};
}

constexpr int32_t panel_rows = 16;

struct PackedMatrix {
    int32_t rows = 0;
    int32_t columns = 0;
    bool reads_f32 = false;  // float weights meet f32 activations; all others int8 groups
    PackedFormat format = PackedFormat::f32;
    uint8_t table[16] = {};           // table4: the entries, each with 128 added
    const uint8_t* codes = nullptr;   // (panels) planes, 64-byte aligned
    const uint8_t* scales = nullptr;  // (panels) planes, 64-byte aligned
    size_t code_bytes_per_panel = 0;
    size_t scale_bytes_per_panel = 0;

    int32_t panels() const { return (rows + panel_rows - 1) / panel_rows; }
};

}  // namespace treadle::cpu
