// How the CPU lays out the cache, in bytes, and the constants of its formats (ops/kv_type.h says what they are).
//
// Keys and values of one layer lie apart. A block holds 16 positions of all KV heads of one layer: all codes, then all scales, so
// that codes stay aligned to 64:
//
//     | codes (kv_heads) | kept codes (kv_heads) | scales (kv_heads, groups, 16) f16 | kept scales (kv_heads, 16) f16 | to 64 |
//
// Keys of a head: the 16 positions are the lanes of a score.
//
//     f16          (head_dim, 16) f16
//     q8_0, kept   (head_dim / 4) lines as in packed.h, lane = position, a byte each, with 128 added
//     tbq4         (head_dim / 32, 4) lines of nibbles as in packed.h, which index tbq_levels
//
// Values of a head: a position's dimensions lie side by side, lanes of an output.
//
//     f16          (16, head_dim) f16
//     q8_0         (16, head_dim) int8
//     tbq4         (16, head_dim / 32, 16) bytes: byte i holds dimension i of the 32 in its low bits, 16 + i in its high ones
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/kv_type.h"

namespace treadle::cpu {

// One side of one layer of a group. Offsets are bytes within a block, steps lead from a KV head to the next.
struct KvLayout {
    KvFormat format;
    int32_t kv_heads = 0;
    int32_t group = 0;  // KvFormat's, as plain numbers for the kernels
    int32_t groups = 0;
    int32_t kept = 0;
    size_t code_step = 0;
    size_t kept_at = 0;
    size_t kept_step = 0;
    size_t scales_at = 0;
    size_t scale_step = 0;
    size_t kept_scales_at = 0;
    size_t block_bytes = 0;
};

KvLayout kv_layout(const KvFormat& format, int32_t kv_heads);

// ---- tbq4

constexpr int32_t tbq_codes = 16;
constexpr int32_t tbq_group_max = 128;

// What a code stands for, in units of the scale.
constexpr std::array<int8_t, tbq_codes> tbq_levels = {-127, -96, -75, -58, -44, -31, -18, -6,
                                                      6,    18,  31,  44,  58,  75,  96,  127};

// The same as what packed codes are looked up in: 128 added.
constexpr std::array<uint8_t, tbq_codes> tbq_level_bytes = [] {
    std::array<uint8_t, tbq_codes> all = {};
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(tbq_levels[i] + 128);
    return all;
}();

// A code is the number of these that lie below the value: halfway between two levels, for values of variance 1.
constexpr std::array<float, tbq_codes - 1> tbq_thresholds = [] {
    constexpr double halfway[8] = {0, 12, 24.5, 37.5, 51, 66.5, 85.5, 111.5};
    std::array<float, tbq_codes - 1> all = {};
    for (size_t i = 0; i < 8; ++i) {
        all[7 + i] = static_cast<float>(halfway[i] * 2.7325896 / 127);
        all[7 - i] = -all[7 + i];
    }
    all[7] = 0;
    return all;
}();

// The bit of the sign of D(i), which is set where the top bit of splitmix64, i + 1 steps from 0, is.
constexpr std::array<int32_t, tbq_group_max> tbq_signs = [] {
    std::array<int32_t, tbq_group_max> all = {};
    uint64_t state = 0;
    for (int32_t& sign : all) {
        state += 0x9e3779b97f4a7c15;
        uint64_t x = state;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
        x = (x ^ x >> 27) * 0x94d049bb133111eb;
        x ^= x >> 31;
        sign = x >> 63 != 0 ? INT32_MIN : 0;
    }
    return all;
}();

// f32(√n) and f32(1 / √n) of a group.
constexpr float tbq_root(int32_t n) { return n == 64 ? 8.0f : 0x1.6a09e6p+3f; }
constexpr float tbq_inverse_root(int32_t n) { return n == 64 ? 0.125f : 0x1.6a09e6p-4f; }

}  // namespace treadle::cpu
