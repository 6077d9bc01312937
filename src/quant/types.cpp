// Taking blocks apart, and the one formula per scale kind that puts them together again. The layouts are
// drawn in types.h.
#include "quant/types.h"

#include <bit>
#include <cstring>

#include "base/float16.h"

namespace treadle {
namespace {

// The blocks as structs. They hold bytes only, so that any address may be viewed as one and no byte order is
// assumed.
struct BlockQ4_0 {
    uint8_t d[2], nibbles[16];
};
struct BlockQ4_1 {
    uint8_t d[2], minimum[2], nibbles[16];
};
struct BlockQ5_0 {
    uint8_t d[2], high[4], nibbles[16];
};
struct BlockQ5_1 {
    uint8_t d[2], minimum[2], high[4], nibbles[16];
};
struct BlockQ8_0 {
    uint8_t d[2], values[32];
};
struct BlockMXFP4 {
    uint8_t exponent, nibbles[16];
};
struct BlockQ2_K {
    uint8_t scales[16], crumbs[64], d[2], minimum[2];
};
struct BlockQ3_K {
    uint8_t high[32], crumbs[64], scales[12], d[2];
};
struct BlockQ4_K {
    uint8_t d[2], minimum[2], scales[12], nibbles[128];
};
struct BlockQ5_K {
    uint8_t d[2], minimum[2], scales[12], high[32], nibbles[128];
};
struct BlockQ6_K {
    uint8_t nibbles[128], crumbs[64], scales[16], d[2];
};
struct BlockIQ4_XS {
    uint8_t d[2], scales_high[2], scales_low[4], nibbles[128];
};
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22 &&
              sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockMXFP4) == 17 && sizeof(BlockQ2_K) == 84 &&
              sizeof(BlockQ3_K) == 110);
static_assert(sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210 &&
              sizeof(BlockIQ4_XS) == 136);

constexpr int super_block = 256;

constexpr TypeInfo types[type_count] = {
    {TensorType::F32, "F32", 1, 4},
    {TensorType::F16, "F16", 1, 2},
    {TensorType::Q4_0, "Q4_0", 32, sizeof(BlockQ4_0)},
    {TensorType::Q4_1, "Q4_1", 32, sizeof(BlockQ4_1)},
    {TensorType::Q5_0, "Q5_0", 32, sizeof(BlockQ5_0)},
    {TensorType::Q5_1, "Q5_1", 32, sizeof(BlockQ5_1)},
    {TensorType::Q8_0, "Q8_0", 32, sizeof(BlockQ8_0)},
    {TensorType::Q2_K, "Q2_K", super_block, sizeof(BlockQ2_K)},
    {TensorType::Q3_K, "Q3_K", super_block, sizeof(BlockQ3_K)},
    {TensorType::Q4_K, "Q4_K", super_block, sizeof(BlockQ4_K)},
    {TensorType::Q5_K, "Q5_K", super_block, sizeof(BlockQ5_K)},
    {TensorType::Q6_K, "Q6_K", super_block, sizeof(BlockQ6_K)},
    {TensorType::IQ4_NL, "IQ4_NL", 32, sizeof(BlockQ4_0)},
    {TensorType::IQ4_XS, "IQ4_XS", super_block, sizeof(BlockIQ4_XS)},
    {TensorType::BF16, "BF16", 1, 2},
    {TensorType::MXFP4, "MXFP4", 32, sizeof(BlockMXFP4)},
};

constexpr const char* foreign_names[] = {
    "F32",      "F16",      "Q4_0",    "Q4_1",  "Q4_2",       "Q4_3",       "Q5_0",       "Q5_1",
    "Q8_0",     "Q8_1",     "Q2_K",    "Q3_K",  "Q4_K",       "Q5_K",       "Q6_K",       "Q8_K",
    "IQ2_XXS",  "IQ2_XS",   "IQ3_XXS", "IQ1_S", "IQ4_NL",     "IQ3_S",      "IQ2_S",      "IQ4_XS",
    "I8",       "I16",      "I32",     "I64",   "F64",        "IQ1_M",      "BF16",       "Q4_0_4_4",
    "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",
};

constexpr int8_t table_nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t table_fp4_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr PackedKind kind_q4_0{4, nullptr, 8, ScaleKind::f16, 32, 32, 0};
constexpr PackedKind kind_q4_1{4, nullptr, 0, ScaleKind::f16_min, 32, 32, 0};
constexpr PackedKind kind_q5_0{5, nullptr, 16, ScaleKind::f16, 32, 32, 0};
constexpr PackedKind kind_q5_1{5, nullptr, 0, ScaleKind::f16_min, 32, 32, 0};
constexpr PackedKind kind_q8_0{8, nullptr, 128, ScaleKind::f16, 32, 32, 0};
constexpr PackedKind kind_q2_k{2, nullptr, 0, ScaleKind::u8_f16_min, 16, super_block, 4};
constexpr PackedKind kind_q3_k{3, nullptr, 4, ScaleKind::i8_f16, 16, super_block, 6};
constexpr PackedKind kind_q4_k{4, nullptr, 0, ScaleKind::u8_f16_min, 32, super_block, 6};
constexpr PackedKind kind_q5_k{5, nullptr, 0, ScaleKind::u8_f16_min, 32, super_block, 6};
constexpr PackedKind kind_q6_k{6, nullptr, 32, ScaleKind::i8_f16, 16, super_block, 8};
constexpr PackedKind kind_iq4_nl{4, table_nonlinear, 0, ScaleKind::f16, 32, 32, 0};
constexpr PackedKind kind_iq4_xs{4, table_nonlinear, 0, ScaleKind::i8_f16, 32, super_block, 6};
constexpr PackedKind kind_mxfp4{4, table_fp4_doubled, 0, ScaleKind::e8m0, 32, 32, 8};

uint16_t u16_at(const uint8_t* bytes) { return static_cast<uint16_t>(bytes[0] | bytes[1] << 8); }

// 16 bytes of nibbles: the low ones are the first half of the group.
void split_nibbles_16(const uint8_t* nibbles, uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = nibbles[i] & 15;
        codes[i + 16] = nibbles[i] >> 4;
    }
}

// A super-block's 128 bytes: each 32 give 32 low nibbles, then the same bytes' 32 high ones.
void split_nibbles_256(const uint8_t* nibbles, uint8_t* codes) {
    for (int part = 0; part < 4; ++part) {
        for (int i = 0; i < 32; ++i) {
            codes[64 * part + i] = nibbles[32 * part + i] & 15;
            codes[64 * part + 32 + i] = nibbles[32 * part + i] >> 4;
        }
    }
}

// The fifth bits of 32 values, bit i for value i.
void add_fifth_bits_32(const uint8_t* high, uint8_t* codes) {
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (high[i / 8] >> i % 8 & 1) << 4);
}

// Q2_K and Q3_K: each 32 bytes give 4 runs of 32 two-bit codes.
void split_crumbs_256(const uint8_t* crumbs, uint8_t* codes) {
    for (int run = 0; run < 8; ++run) {
        const uint8_t* bytes = crumbs + 32 * (run / 4);
        for (int i = 0; i < 32; ++i) codes[32 * run + i] = bytes[i] >> 2 * (run % 4) & 3;
    }
}

// 32 bytes hold one more bit for each of 8 runs of 32 codes.
void add_bits_256(const uint8_t* high, int position, uint8_t* codes) {
    for (int run = 0; run < 8; ++run) {
        for (int i = 0; i < 32; ++i) {
            codes[32 * run + i] =
                static_cast<uint8_t>(codes[32 * run + i] | (high[i] >> run & 1) << position);
        }
    }
}

// Q3_K's 16 signed scales of 6 bits: low nibbles of 16 in 8 bytes, then high crumbs of 16 in 4; stored + 32.
void split_scales_q3_k(const uint8_t* packed, uint8_t* scales) {
    for (int i = 0; i < 16; ++i) {
        const int low = packed[i % 8] >> 4 * (i / 8) & 15;
        const int high = packed[8 + i % 4] >> 2 * (i / 4) & 3;
        scales[i] = static_cast<uint8_t>((low | high << 4) - 32);
    }
}

// The 8 pairs of Q4_K and Q5_K in 12 bytes: the first four pairs as low six bits, whose tops hold the high
// crumbs of the last four.
void split_scales_q4_k(const uint8_t* packed, uint8_t* scales, uint8_t* minimums) {
    for (int i = 0; i < 4; ++i) {
        scales[i] = packed[i] & 63;
        minimums[i] = packed[4 + i] & 63;
        scales[4 + i] = static_cast<uint8_t>((packed[8 + i] & 15) | packed[i] >> 6 << 4);
        minimums[4 + i] = static_cast<uint8_t>(packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4);
    }
}

void unpack(const BlockQ4_0& block, const UnpackedRow& out) {  // also IQ4_NL, whose codes index a table
    *out.scale = u16_at(block.d);
    split_nibbles_16(block.nibbles, out.codes);
}

void unpack(const BlockQ4_1& block, const UnpackedRow& out) {
    *out.scale = u16_at(block.d);
    *out.minimum = u16_at(block.minimum);
    split_nibbles_16(block.nibbles, out.codes);
}

void unpack(const BlockQ5_0& block, const UnpackedRow& out) {
    *out.scale = u16_at(block.d);
    split_nibbles_16(block.nibbles, out.codes);
    add_fifth_bits_32(block.high, out.codes);
}

void unpack(const BlockQ5_1& block, const UnpackedRow& out) {
    *out.scale = u16_at(block.d);
    *out.minimum = u16_at(block.minimum);
    split_nibbles_16(block.nibbles, out.codes);
    add_fifth_bits_32(block.high, out.codes);
}

void unpack(const BlockQ8_0& block, const UnpackedRow& out) {
    *out.scale = u16_at(block.d);
    for (int i = 0; i < 32; ++i) out.codes[i] = block.values[i] ^ 0x80;  // i8 + 128
}

void unpack(const BlockMXFP4& block, const UnpackedRow& out) {
    *out.sub_scale = block.exponent;
    split_nibbles_16(block.nibbles, out.codes);
}

void unpack(const BlockQ2_K& block, const UnpackedRow& out) {
    *out.scale = u16_at(block.d);
    *out.minimum = u16_at(block.minimum);
    for (int i = 0; i < 16; ++i) {
        out.sub_scale[i] = block.scales[i] & 15;
        out.sub_minimum[i] = block.scales[i] >> 4;
    }
    split_crumbs_256(block.crumbs, out.codes);
}

void unpack(const BlockQ3_K& block, const UnpackedRow& out) {
    *out.scale = u16_at(block.d);
    split_scales_q3_k(block.scales, out.sub_scale);
    split_crumbs_256(block.crumbs, out.codes);
    add_bits_256(block.high, 2, out.codes);
}

void unpack(const BlockQ4_K& block, const UnpackedRow& out) {
    *out.scale = u16_at(block.d);
    *out.minimum = u16_at(block.minimum);
    split_scales_q4_k(block.scales, out.sub_scale, out.sub_minimum);
    split_nibbles_256(block.nibbles, out.codes);
}

void unpack(const BlockQ5_K& block, const UnpackedRow& out) {
    *out.scale = u16_at(block.d);
    *out.minimum = u16_at(block.minimum);
    split_scales_q4_k(block.scales, out.sub_scale, out.sub_minimum);
    split_nibbles_256(block.nibbles, out.codes);
    add_bits_256(block.high, 4, out.codes);
}

// Each half of 128 values: 64 bytes of nibbles (low: values 0..63, high: 64..127) and 32 bytes of crumbs for
// four runs of 32.
void unpack(const BlockQ6_K& block, const UnpackedRow& out) {
    *out.scale = u16_at(block.d);
    std::memcpy(out.sub_scale, block.scales, sizeof block.scales);
    for (int i = 0; i < super_block; ++i) {
        const int half = i / 128;
        const int low = block.nibbles[64 * half + i % 64] >> 4 * (i % 128 / 64) & 15;
        const int high = block.crumbs[32 * half + i % 32] >> 2 * (i % 128 / 32) & 3;
        out.codes[i] = static_cast<uint8_t>(low | high << 4);
    }
}

// Each 16 bytes of nibbles are one group of 32; scales are stored + 32.
void unpack(const BlockIQ4_XS& block, const UnpackedRow& out) {
    *out.scale = u16_at(block.d);
    const int scales_high = u16_at(block.scales_high);
    for (int group = 0; group < 8; ++group) {
        const int low = block.scales_low[group / 2] >> 4 * (group % 2) & 15;
        const int high = scales_high >> 2 * group & 3;
        out.sub_scale[group] = static_cast<uint8_t>((low | high << 4) - 32);
        split_nibbles_16(block.nibbles + 16 * group, out.codes + 32 * group);
    }
}

template <class T>
T* after(T* pointer, size_t count) {
    return pointer == nullptr ? nullptr : pointer + count;
}

// `unpack` on each block of a row, with the outputs moving along.
template <class Block>
void unpack_blocks(const PackedKind& kind, size_t block_values, const void* row, size_t values,
                   UnpackedRow out) {
    const size_t groups = block_values / static_cast<size_t>(kind.group);
    const size_t scales = block_values / static_cast<size_t>(kind.scale_values);
    const auto* bytes = static_cast<const uint8_t*>(row);
    for (size_t first = 0; first < values; first += block_values) {
        Block block;
        std::memcpy(&block, bytes, sizeof block);
        unpack(block, out);
        bytes += sizeof block;
        out.codes += block_values;
        out.scale = after(out.scale, scales);
        out.minimum = after(out.minimum, scales);
        out.sub_scale = after(out.sub_scale, groups);
        out.sub_minimum = after(out.sub_minimum, groups);
    }
}

// One group of weights from its codes: the formulas that ScaleKind states.
void decode_group(const PackedKind& kind, const UnpackedRow& block, int group, float* out) {
    const float d = kind.scale == ScaleKind::e8m0 ? 0.0f : f32_from_f16(block.scale[0]);
    const uint8_t* codes = block.codes + group * kind.group;
    float scale = d;
    float minimum = 0.0f;
    switch (kind.scale) {
        case ScaleKind::f16: break;
        case ScaleKind::f16_min: minimum = f32_from_f16(block.minimum[0]); break;
        case ScaleKind::i8_f16:
            scale = d * static_cast<float>(static_cast<int8_t>(block.sub_scale[group]));
            break;
        case ScaleKind::u8_f16_min:
            scale = d * static_cast<float>(block.sub_scale[group]);
            minimum = f32_from_f16(block.minimum[0]) * static_cast<float>(block.sub_minimum[group]);
            break;
        case ScaleKind::e8m0: scale = f32_from_e8m0_half(block.sub_scale[group]); break;
    }
    for (int i = 0; i < kind.group; ++i) {
        const int q = kind.table != nullptr ? kind.table[codes[i]] : codes[i] - kind.offset;
        const float product = scale * static_cast<float>(q);
        out[i] = kind.scale == ScaleKind::f16_min      ? product + minimum
                 : kind.scale == ScaleKind::u8_f16_min ? product - minimum
                                                       : product;
    }
}

}  // namespace

const TypeInfo* type_info(uint32_t raw_id) {
    for (const TypeInfo& info : types) {
        if (static_cast<uint32_t>(info.type) == raw_id) return &info;
    }
    return nullptr;
}

const TypeInfo& type_at(int index) { return types[index]; }

const char* foreign_type_name(uint32_t raw_id) {
    return raw_id < sizeof foreign_names / sizeof foreign_names[0] ? foreign_names[raw_id] : nullptr;
}

const PackedKind* packed_kind(TensorType type) {
    switch (type) {
        case TensorType::F32:
        case TensorType::F16:
        case TensorType::BF16: return nullptr;
        case TensorType::Q4_0: return &kind_q4_0;
        case TensorType::Q4_1: return &kind_q4_1;
        case TensorType::Q5_0: return &kind_q5_0;
        case TensorType::Q5_1: return &kind_q5_1;
        case TensorType::Q8_0: return &kind_q8_0;
        case TensorType::Q2_K: return &kind_q2_k;
        case TensorType::Q3_K: return &kind_q3_k;
        case TensorType::Q4_K: return &kind_q4_k;
        case TensorType::Q5_K: return &kind_q5_k;
        case TensorType::Q6_K: return &kind_q6_k;
        case TensorType::IQ4_NL: return &kind_iq4_nl;
        case TensorType::IQ4_XS: return &kind_iq4_xs;
        case TensorType::MXFP4: return &kind_mxfp4;
    }
    return nullptr;
}

float f32_from_e8m0_half(uint8_t byte) {
    const uint32_t bits = byte < 2 ? 0x00200000u << byte : (byte - 1u) << 23;
    return std::bit_cast<float>(bits);
}

void unpack_row(TensorType type, const void* row, size_t values, const UnpackedRow& out) {
    const PackedKind* kind = packed_kind(type);
    const size_t block_values = type_info(type).block_values;
    switch (type) {
        case TensorType::F32:
        case TensorType::F16:
        case TensorType::BF16: return;
        case TensorType::IQ4_NL:
        case TensorType::Q4_0: return unpack_blocks<BlockQ4_0>(*kind, block_values, row, values, out);
        case TensorType::Q4_1: return unpack_blocks<BlockQ4_1>(*kind, block_values, row, values, out);
        case TensorType::Q5_0: return unpack_blocks<BlockQ5_0>(*kind, block_values, row, values, out);
        case TensorType::Q5_1: return unpack_blocks<BlockQ5_1>(*kind, block_values, row, values, out);
        case TensorType::Q8_0: return unpack_blocks<BlockQ8_0>(*kind, block_values, row, values, out);
        case TensorType::Q2_K: return unpack_blocks<BlockQ2_K>(*kind, block_values, row, values, out);
        case TensorType::Q3_K: return unpack_blocks<BlockQ3_K>(*kind, block_values, row, values, out);
        case TensorType::Q4_K: return unpack_blocks<BlockQ4_K>(*kind, block_values, row, values, out);
        case TensorType::Q5_K: return unpack_blocks<BlockQ5_K>(*kind, block_values, row, values, out);
        case TensorType::Q6_K: return unpack_blocks<BlockQ6_K>(*kind, block_values, row, values, out);
        case TensorType::IQ4_XS: return unpack_blocks<BlockIQ4_XS>(*kind, block_values, row, values, out);
        case TensorType::MXFP4: return unpack_blocks<BlockMXFP4>(*kind, block_values, row, values, out);
    }
}

void decode_row(TensorType type, const void* row, size_t values, float* out) {
    const TypeInfo& info = type_info(type);
    const auto* bytes = static_cast<const uint8_t*>(row);
    if (type == TensorType::F32) {
        std::memcpy(out, bytes, values * sizeof(float));
        return;
    }
    const PackedKind* kind = packed_kind(type);
    if (kind == nullptr) {
        for (size_t i = 0; i < values; ++i) {
            const uint16_t half = u16_at(bytes + 2 * i);
            out[i] = type == TensorType::F16 ? f32_from_f16(half) : f32_from_bf16(half);
        }
        return;
    }
    uint8_t codes[super_block], sub_scale[super_block / 16], sub_minimum[super_block / 16];
    uint16_t scale[1], minimum[1];
    const UnpackedRow block{codes, scale, minimum, sub_scale, sub_minimum};
    for (size_t first = 0; first < values; first += info.block_values, bytes += info.block_bytes) {
        unpack_row(type, bytes, info.block_values, block);
        const int groups = static_cast<int>(info.block_values) / kind->group;
        for (int group = 0; group < groups; ++group) {
            decode_group(*kind, block, group, out + first + static_cast<size_t>(group * kind->group));
        }
    }
}

void decode_block(TensorType type, const void* block, float* out) {
    decode_row(type, block, type_info(type).block_values, out);
}

}  // namespace treadle
