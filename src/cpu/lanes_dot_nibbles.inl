// Dots that add in 16 bits. Included by lanes_dot_*.h inside the tier's namespace; lanes_dot_scalar.h says what each word means.
// pmaddubsw gives sums of two products in 16 bits, which are added in 16 bits as long as they cannot overflow:
//
//     bits of a code   |sum of two products|   quads until 32,767
//     2                 762                    43
//     3               1,778                    18
//     4               3,810                     8
//     5               7,874                     4
//     6              16,002                     2
//     8              64,770: saturates, so bytes are multiplied as two planes of nibbles

constexpr bool dots_have_16_bits = true;
constexpr int32_t byte_planes = 2;  // low nibbles, high nibbles

struct Dot {
    I32x16 pairs;  // two sums of 16 bits for each lane
};

TREADLE_LANES_WORD Dot dot_zero() { return {set1(0)}; }

template <int32_t plane>
TREADLE_LANES_WORD I32x16 plane_of(I32x16 bytes) {
    return bit_and(shift_right<4 * plane>(bytes), set1(0x0f0f0f0f));
}

constexpr int16_t plane_weight(int32_t plane) { return plane == 0 ? 1 : 16; }
