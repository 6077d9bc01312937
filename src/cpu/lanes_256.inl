// The vocabulary of 16 lanes in two registers of 256 bits. Included by lanes_*.h inside the tier's namespace; lanes_scalar.h says what
// each word means.

struct F32x16 {
    __m256 low, high;  // lanes 0 .. 7, 8 .. 15
};

struct I32x16 {
    __m256i low, high;
};

constexpr int32_t accumulators_max = 6;  // values that registers hold beside what else a loop needs

// ---- Making, loading, storing. Pointers need no alignment.

TREADLE_LANES_WORD F32x16 set1(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }

TREADLE_LANES_WORD I32x16 set1(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }

TREADLE_LANES_WORD F32x16 zero_f32() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

TREADLE_LANES_WORD I32x16 lane_numbers() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

TREADLE_LANES_WORD F32x16 load(const float* from) {
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}

TREADLE_LANES_WORD I32x16 load(const int32_t* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 8))};
}

TREADLE_LANES_WORD I32x16 first_lanes(int count) {  // the mask of lanes below `count`
    const __m256i limit = _mm256_set1_epi32(count);
    const I32x16 lanes = lane_numbers();
    return {_mm256_cmpgt_epi32(limit, lanes.low), _mm256_cmpgt_epi32(limit, lanes.high)};
}

TREADLE_LANES_WORD F32x16 load_first(const float* from, int count) {
    const I32x16 mask = first_lanes(count);
    return {_mm256_maskload_ps(from, mask.low), _mm256_maskload_ps(from + 8, mask.high)};
}

TREADLE_LANES_WORD void store(float* to, F32x16 a) {
    _mm256_storeu_ps(to, a.low);
    _mm256_storeu_ps(to + 8, a.high);
}

TREADLE_LANES_WORD void store(int32_t* to, I32x16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), a.high);
}

TREADLE_LANES_WORD void store_first(float* to, F32x16 a, int count) {
    const I32x16 mask = first_lanes(count);
    _mm256_maskstore_ps(to, mask.low, a.low);
    _mm256_maskstore_ps(to + 8, mask.high, a.high);
}

TREADLE_LANES_WORD void store_i8(int8_t* to, I32x16 a) {
    // Packing works in 128-bit halves: words of lanes 0-3, 8-11, 4-7, 12-15, put in order before the
    // bytes are packed.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

TREADLE_LANES_WORD I32x16 load_i8(const int8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes))};
}

TREADLE_LANES_WORD I32x16 load_u8(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))};
}

// ---- f16, round to nearest even; stored as caches do: beyond ±65504 saturating, NaN stays NaN.

TREADLE_LANES_WORD F32x16 load_f16(const uint16_t* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 8)))};
}

TREADLE_LANES_WORD void store_f16(uint16_t* to, F32x16 a) {
    const __m256 most = _mm256_set1_ps(65504.0f);
    const __m256 least = _mm256_set1_ps(-65504.0f);
    // The second operand wins where it is NaN.
    const __m256 low = _mm256_min_ps(most, _mm256_max_ps(least, a.low));
    const __m256 high = _mm256_min_ps(most, _mm256_max_ps(least, a.high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT));
}

TREADLE_LANES_WORD F32x16 load_bf16(const uint16_t* from) {
    const __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 8)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
}

// ---- Nibbles that index a table of 16 small integers, as floats.

#include "cpu/lanes_levels.inl"

template <int half>
TREADLE_LANES_WORD F32x16 look_up(const Levels& levels, const uint8_t* from) {
    const __m128i found = levels_of<half>(levels, from);
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(found)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(found, found)))};
}

// ---- Float arithmetic, each result rounded once.

TREADLE_LANES_WORD F32x16 add(F32x16 a, F32x16 b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

TREADLE_LANES_WORD F32x16 sub(F32x16 a, F32x16 b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

TREADLE_LANES_WORD F32x16 mul(F32x16 a, F32x16 b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

TREADLE_LANES_WORD F32x16 div(F32x16 a, F32x16 b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}

TREADLE_LANES_WORD F32x16 sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }

TREADLE_LANES_WORD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

TREADLE_LANES_WORD F32x16 min(F32x16 a, F32x16 b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}

TREADLE_LANES_WORD F32x16 max(F32x16 a, F32x16 b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

// ---- Integer arithmetic, wrapping.

TREADLE_LANES_WORD I32x16 add(I32x16 a, I32x16 b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}

TREADLE_LANES_WORD I32x16 sub(I32x16 a, I32x16 b) {
    return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}

TREADLE_LANES_WORD I32x16 max(I32x16 a, I32x16 b) {
    return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)};
}

template <int count>
TREADLE_LANES_WORD I32x16 shift_left(I32x16 a) {
    return {_mm256_slli_epi32(a.low, count), _mm256_slli_epi32(a.high, count)};
}

template <int count>
TREADLE_LANES_WORD I32x16 shift_right(I32x16 a) {
    return {_mm256_srli_epi32(a.low, count), _mm256_srli_epi32(a.high, count)};
}

template <int count>
TREADLE_LANES_WORD I32x16 shift_right_signed(I32x16 a) {
    return {_mm256_srai_epi32(a.low, count), _mm256_srai_epi32(a.high, count)};
}

// ---- Bits.

TREADLE_LANES_WORD I32x16 bits_of(F32x16 a) {
    return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)};
}

TREADLE_LANES_WORD F32x16 f32_of_bits(I32x16 a) {
    return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)};
}

TREADLE_LANES_WORD I32x16 bit_and(I32x16 a, I32x16 b) {
    return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}

TREADLE_LANES_WORD I32x16 bit_or(I32x16 a, I32x16 b) {
    return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}

TREADLE_LANES_WORD I32x16 bit_xor(I32x16 a, I32x16 b) {
    return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}

// ---- Conversions.

TREADLE_LANES_WORD F32x16 to_f32(I32x16 a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }

TREADLE_LANES_WORD I32x16 to_i32(F32x16 a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }

// ---- Comparing and choosing. A comparison with a NaN is false.

TREADLE_LANES_WORD I32x16 less(F32x16 a, F32x16 b) {
    return {_mm256_castps_si256(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
            _mm256_castps_si256(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}

TREADLE_LANES_WORD I32x16 equal(F32x16 a, F32x16 b) {
    return {_mm256_castps_si256(_mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ)),
            _mm256_castps_si256(_mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ))};
}

TREADLE_LANES_WORD I32x16 less(I32x16 a, I32x16 b) {
    return {_mm256_cmpgt_epi32(b.low, a.low), _mm256_cmpgt_epi32(b.high, a.high)};
}

TREADLE_LANES_WORD F32x16 select(I32x16 mask, F32x16 yes, F32x16 no) {
    return {_mm256_blendv_ps(no.low, yes.low, _mm256_castsi256_ps(mask.low)),
            _mm256_blendv_ps(no.high, yes.high, _mm256_castsi256_ps(mask.high))};
}

TREADLE_LANES_WORD I32x16 select(I32x16 mask, I32x16 yes, I32x16 no) {
    return {_mm256_blendv_epi8(no.low, yes.low, mask.low), _mm256_blendv_epi8(no.high, yes.high, mask.high)};
}

TREADLE_LANES_WORD uint32_t mask_bits(I32x16 mask) {
    const int low = _mm256_movemask_ps(_mm256_castsi256_ps(mask.low));
    const int high = _mm256_movemask_ps(_mm256_castsi256_ps(mask.high));
    return static_cast<uint32_t>(low | high << 8);
}

// ---- Across lanes.

template <int stride>
TREADLE_LANES_WORD F32x16 swap_lanes(F32x16 a) {
    if constexpr (stride == 8) return {a.high, a.low};
    if constexpr (stride == 4)
        return {_mm256_permute2f128_ps(a.low, a.low, 1), _mm256_permute2f128_ps(a.high, a.high, 1)};
    constexpr int order = stride == 2 ? 0x4e : 0xb1;
    return {_mm256_permute_ps(a.low, order), _mm256_permute_ps(a.high, order)};
}

// Trees of strides 8, 4, 2, 1, lane i taking in lane i + stride.

TREADLE_LANES_WORD float sum(F32x16 a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

TREADLE_LANES_WORD int32_t sum(I32x16 a) {
    const __m256i eight = _mm256_add_epi32(a.low, a.high);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

TREADLE_LANES_WORD float max_lane(F32x16 a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

TREADLE_LANES_WORD int32_t max_lane(I32x16 a) {
    const __m256i eight = _mm256_max_epi32(a.low, a.high);
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 1)));
}
