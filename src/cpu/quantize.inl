// Quantization to int8, of activations, queries and keys, written once over the words of a tier. The including file opens the
// namespace of that tier.

// n values, a multiple of 16: q (n) in -127 .. 127, one scale, sums (n / 16) of 16 each. The largest magnitude is found as the
// largest bit pattern without sign, so that NaN and infinity win over every number: then q = 0 and scale NaN.
TREADLE_LANES_WORD void quantize_run(const float* x, int32_t n, int8_t* q, float* scale, int32_t* sums) {
    const I32x16 magnitude = set1(0x7fffffff);
    I32x16 most = bit_and(bits_of(load(x)), magnitude);
    for (int32_t i = 16; i < n; i += 16) most = max(most, bit_and(bits_of(load(x + i)), magnitude));
    const int32_t largest_bits = max_lane(most);
    if (largest_bits >= 0x7f800000 || largest_bits < 0x0d800000) {  // not finite, or below 2^-100
        const int32_t scale_bits = largest_bits >= 0x7f800000 ? 0x7fc00000 : 0;
        __builtin_memset(q, 0, static_cast<size_t>(n));
        __builtin_memcpy(scale, &scale_bits, 4);
        for (int32_t i = 0; i < n / 16; i++) sums[i] = 0;
        return;
    }
    float largest;
    __builtin_memcpy(&largest, &largest_bits, 4);
    // largest · (127 / largest) is at most 127 (1 + 2^-23), which rounds to 127.
    const F32x16 factor = set1(127.0f / largest);
    for (int32_t i = 0; i < n; i += 16) {
        const I32x16 rounded = to_i32(mul(load(x + i), factor));
        store_i8(q + i, rounded);
        sums[i / 16] = sum(rounded);
    }
    *scale = largest / 127.0f;
}

static void quantize(const float* x, int32_t columns, int8_t* q, float* scale, int32_t* sums) {
    for (int32_t k = 0; k < columns; k += 32) quantize_run(x + k, 32, q + k, scale + k / 32, sums + k / 16);
}
