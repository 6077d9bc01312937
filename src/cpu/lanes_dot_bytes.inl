// Dots that add in 32 bits, so that no sum of a group overflows and bytes are one plane. Included by lanes_dot_*.h inside the
// tier's namespace; lanes_dot_scalar.h says what each word means.

constexpr bool dots_have_16_bits = false;
constexpr int32_t byte_planes = 1;

struct Dot {
    I32x16 total;
};

TREADLE_LANES_WORD Dot dot_zero() { return {set1(0)}; }

template <int32_t plane>
TREADLE_LANES_WORD I32x16 plane_of(I32x16 bytes) {
    return bytes;
}

template <int32_t plane>
TREADLE_LANES_WORD I32x16 finish(Dot sum) {
    return sum.total;
}
