// The vocabulary of exact integer dots in plain C++, an addition to lanes_scalar.h that only the linear
// kernels need: each lane multiplies four unsigned codes, the bytes of an I32x16, by the same four
// activations.
//
// Invariant: sums are exact as long as activations lie in -127 .. 127 and a Dot takes no more quads than the
// AVX2 words, which add in 16 bits, can hold: 8 of codes up to 4 bits, 4 of 5 bits, 2 of 6 bits.
#pragma once

#include <cstring>

#include "cpu/lanes_scalar.h"

namespace treadle::cpu::scalar {

constexpr int32_t tile_rows = 1;

// What a tier multiplies bytes as and how it sums: dots_have_16_bits, byte_planes, Dot. Codes of 8 bits meet the activations as
// one plane or more, each with its own Dot of at most 8 quads; the finished planes add up to the dot of the bytes.
#include "cpu/lanes_dot_bytes.inl"

TREADLE_LANES_WORD I32x16 load_line(const uint8_t* from) {  // 64 bytes, 64-byte aligned
    I32x16 r;
    std::memcpy(r.at, from, sizeof r.at);
    return r;
}

// What a slice needs of each group's sum of activations: 16 sums of two neighbours.
TREADLE_LANES_WORD I32x16 load_add_pairs(const int32_t* from) {
    I32x16 r;
    TREADLE_EACH_LANE r.at[lane] = from[2 * lane] + from[2 * lane + 1];
    return r;
}

TREADLE_LANES_WORD Dot dot(Dot sum, I32x16 codes, const int8_t* four) {
    TREADLE_EACH_LANE {
        const auto bytes = static_cast<uint32_t>(codes.at[lane]);
        sum.total.at[lane] += static_cast<int32_t>(bytes & 255) * four[0];
        sum.total.at[lane] += static_cast<int32_t>(bytes >> 8 & 255) * four[1];
        sum.total.at[lane] += static_cast<int32_t>(bytes >> 16 & 255) * four[2];
        sum.total.at[lane] += static_cast<int32_t>(bytes >> 24) * four[3];
    }
    return sum;
}

struct Table16 {
    uint8_t entries[16];
};

TREADLE_LANES_WORD Table16 load_table(const uint8_t* entries) {
    Table16 r;
    std::memcpy(r.entries, entries, sizeof r.entries);
    return r;
}

template <int32_t plane>
TREADLE_LANES_WORD I32x16 look_up(const Table16& table, I32x16 indices) {  // plane_of the entries
    I32x16 r;
    TREADLE_EACH_LANE {
        const auto bytes = static_cast<uint32_t>(indices.at[lane]);  // each 0 .. 15
        const uint32_t low = table.entries[bytes & 15] | uint32_t{table.entries[bytes >> 8 & 15]} << 8;
        const uint32_t high = table.entries[bytes >> 16 & 15] | uint32_t{table.entries[bytes >> 24]} << 8;
        r.at[lane] = static_cast<int32_t>(low | high << 16);
    }
    return r;
}

}  // namespace treadle::cpu::scalar
