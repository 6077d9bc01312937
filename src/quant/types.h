// The tensor types of model files: their block layouts, exact decoding to f32, and unpacking to codes and
// scales for the backends that pack weights their own way. Called by the model reader (sizes), the CPU and
// CUDA backends (unpack_row, when weights are loaded) and by tests and embedding look-ups (decode_row).
//
// Invariant: decoding is a function of the bytes alone and equals the PyPI package `gguf` by bytes, except
// that of a NaN only the fact is promised, not sign or payload (0 × infinity has another sign on another
// CPU).
//
// A block of a quantized type holds `block_values` neighbours of a row. All numbers are little-endian:
//
//     Q4_0    | d f16 | 16 × 2 nibbles |                                  low nibbles are values 0..15,
//     high 16..31 Q4_1    | d f16 | m f16 | 16 × 2 nibbles | Q5_0    | d f16 | 32 high bits | 16 × 2 nibbles
//     | Q5_1    | d f16 | m f16 | 32 high bits | 16 × 2 nibbles | Q8_0    | d f16 | 32 × i8 | IQ4_NL  | d f16
//     | 16 × 2 nibbles |                                  nibbles index a table MXFP4   | e8m0  | 16 × 2
//     nibbles |                                  nibbles index a table Q2_K    | 16 × (scale 4, minimum 4) |
//     64 × 4 crumbs | d f16 | dmin f16 | Q3_K    | 32 × 8 high bits | 64 × 4 crumbs | 16 × scale 6 | d f16 |
//     Q4_K    | d f16 | dmin f16 | 8 × (scale 6, minimum 6) | 128 × 2 nibbles |
//     Q5_K    | d f16 | dmin f16 | 8 × (scale 6, minimum 6) | 32 × 8 high bits | 128 × 2 nibbles |
//     Q6_K    | 128 × 2 nibbles | 64 × 4 high crumbs | 16 × scale i8 | d f16 |
//     IQ4_XS  | d f16 | 8 × high crumbs of scales | 8 × low nibbles of scales | 128 × 2 nibbles |
#pragma once

#include <cstddef>
#include <cstdint>

namespace treadle {

enum class TensorType : uint32_t {  // GGUF's numbers
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ4_NL = 20,
    IQ4_XS = 23,
    BF16 = 30,
    MXFP4 = 39,
};

struct TypeInfo {
    TensorType type;
    const char* name;
    uint32_t block_values;
    uint32_t block_bytes;
};

// Null for a number that is no supported type.
const TypeInfo* type_info(uint32_t raw_id);
inline const TypeInfo& type_info(TensorType type) { return *type_info(static_cast<uint32_t>(type)); }

// All supported types, for tables and tests.
constexpr int type_count = 16;
const TypeInfo& type_at(int index);

// The name that other programs give a type number, supported or not ("IQ2_XXS"); null if it is unknown to
// all.
const char* foreign_type_name(uint32_t raw_id);

// How a quantized weight w comes from its code. With q = code - offset, or q = table[code], exact in f32, and
// every product and sum below rounded to f32 on its own:
enum class ScaleKind : uint8_t {
    f16,         // w = d · q
    f16_min,     // w = d · q + minimum
    i8_f16,      // w = (d · i8(sub_scale)) · q
    u8_f16_min,  // w = (d · u8(sub_scale)) · q - (minimum · u8(sub_minimum))
    e8m0,        // w = f32_from_e8m0_half(sub_scale) · q
};

struct PackedKind {
    int bits;             // of a code: 2 to 6, or 8
    const int8_t* table;  // 16 entries, or null: code - offset
    int offset;           // Q8_0's i8 is stored + 128
    ScaleKind scale;
    int group;         // values that share a sub-scale, or for the one-level kinds a scale: 16 or 32
    int scale_values;  // values that share d (and the f16 minimum): `group`, or 256 for the two-level kinds
    int sub_bits;      // that sub-scales and sub-minimums need: 0 (none), 4 (Q2_K: both fit one byte), 6 or 8
};

// Null for F32, F16 and BF16.
const PackedKind* packed_kind(TensorType type);

// Half of the power of two that an E8M0 byte names, 2^(byte - 128); the tables of MXFP4 hold doubled values.
float f32_from_e8m0_half(uint8_t byte);

// Where unpack_row writes. A pointer that the kind has no use for may be null.
struct UnpackedRow {
    uint8_t* codes;        // (values)
    uint16_t* scale;       // (values / scale_values) bits of d, except e8m0
    uint16_t* minimum;     // (values / scale_values) bits of m or dmin; f16_min and u8_f16_min
    uint8_t* sub_scale;    // (values / group) i8 or u8 sub-scale, or the E8M0 byte
    uint8_t* sub_minimum;  // (values / group) u8_f16_min
};

// Takes a row of a quantized type apart, scales as they stand in the file. `values` is a multiple of the
// block's values.
void unpack_row(TensorType type, const void* row, size_t values, const UnpackedRow& out);

// Decodes a row of any type to f32. `values` is a multiple of the block's values; `row` needs no alignment.
void decode_row(TensorType type, const void* row, size_t values, float* out);

// The same for one block.
void decode_block(TensorType type, const void* block, float* out);

}  // namespace treadle
