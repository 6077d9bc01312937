// A table of 16 int8 in a register of 128 bits. Included by lanes_*.h inside the tier's namespace; lanes_scalar.h says what each
// word means.

struct Levels {
    __m128i at;
};

TREADLE_LANES_WORD Levels load_levels(const int8_t* levels) {
    return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels))};
}

// The int8 that look_up widens.
template <int half>
TREADLE_LANES_WORD __m128i levels_of(const Levels& levels, const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i indices = _mm_and_si128(half == 0 ? bytes : _mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    return _mm_shuffle_epi8(levels.at, indices);
}
