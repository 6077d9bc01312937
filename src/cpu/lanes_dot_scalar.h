// The vocabulary of exact integer dots in plain C++, an addition to lanes_scalar.h that only the linear
// kernels need: each lane multiplies four unsigned codes, the bytes of an I32x16, by the same four
// activations.
//
// Invariant: sums are exact within the stated bounds. The AVX2 words add in 16 bits, so a Dot takes at most
// dot_quads_max(bits) quads before it is finished; activations lie in -127 .. 127.
#pragma once

#include <cstring>

#include "cpu/lanes_scalar.h"

#define TREADLE_UNROLL  // loops over the rows of a tile: only where their values live in registers

namespace treadle::cpu::scalar {

constexpr int32_t tile_rows = 1;

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

struct Dot {
    I32x16 total;
};

TREADLE_LANES_WORD Dot dot_zero() { return {set1(0)}; }

TREADLE_LANES_WORD Dot dot(Dot sum, I32x16 codes, const int8_t* four) {  // codes of at most 6 bits
    TREADLE_EACH_LANE {
        const auto bytes = static_cast<uint32_t>(codes.at[lane]);
        sum.total.at[lane] += static_cast<int32_t>(bytes & 255) * four[0];
        sum.total.at[lane] += static_cast<int32_t>(bytes >> 8 & 255) * four[1];
        sum.total.at[lane] += static_cast<int32_t>(bytes >> 16 & 255) * four[2];
        sum.total.at[lane] += static_cast<int32_t>(bytes >> 24) * four[3];
    }
    return sum;
}

TREADLE_LANES_WORD I32x16 finish(Dot sum) { return sum.total; }

// Codes of 8 bits, split into what the tier multiplies by; at most 8 quads before finish.
struct Codes8 {
    I32x16 bytes;
};

struct Dot8 {
    Dot total;
};

struct Table16 {
    uint8_t entries[16];
};

TREADLE_LANES_WORD Codes8 split(I32x16 bytes) { return {bytes}; }

TREADLE_LANES_WORD Table16 load_table(const uint8_t* entries) {
    Table16 r;
    std::memcpy(r.entries, entries, sizeof r.entries);
    return r;
}

TREADLE_LANES_WORD Codes8 look_up(const Table16& table, I32x16 indices) {  // each byte is 0 .. 15
    Codes8 r;
    TREADLE_EACH_LANE {
        const auto bytes = static_cast<uint32_t>(indices.at[lane]);
        uint32_t found = 0;
        for (int shift = 0; shift < 32; shift += 8)
            found |= static_cast<uint32_t>(table.entries[bytes >> shift & 15]) << shift;
        r.bytes.at[lane] = static_cast<int32_t>(found);
    }
    return r;
}

TREADLE_LANES_WORD Dot8 dot8_zero() { return {dot_zero()}; }

TREADLE_LANES_WORD Dot8 dot(Dot8 sum, const Codes8& codes, const int8_t* four) {
    return {dot(sum.total, codes.bytes, four)};
}

TREADLE_LANES_WORD I32x16 finish(Dot8 sum) { return sum.total.total; }

TREADLE_LANES_WORD void prefetch(const uint8_t*) {}

}  // namespace treadle::cpu::scalar
