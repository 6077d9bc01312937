// Quantization of activations, written once over the words of a tier. The including file opens the
// namespace of that tier.

// One group of 32: q (32) in -127 .. 127, one scale, sum (2) of 16 each. The largest magnitude is found
// as the largest bit pattern without sign, so that NaN and infinity win over every number.
TREADLE_LANES_WORD void quantize_group(const float* x, int8_t* q, float* scale, int32_t* sums) {
    const I32x16 magnitude = set1(0x7fffffff);
    const F32x16 first = load(x);
    const F32x16 second = load(x + 16);
    const int32_t largest_bits =
        max_lane(max(bit_and(bits_of(first), magnitude), bit_and(bits_of(second), magnitude)));
    if (largest_bits >= 0x7f800000 || largest_bits < 0x0d800000) {  // not finite, or below 2^-100
        const int32_t scale_bits = largest_bits >= 0x7f800000 ? 0x7fc00000 : 0;
        __builtin_memset(q, 0, 32);
        __builtin_memcpy(scale, &scale_bits, 4);
        sums[0] = sums[1] = 0;
        return;
    }
    float largest;
    __builtin_memcpy(&largest, &largest_bits, 4);
    // largest · (127 / largest) is at most 127 (1 + 2^-23), which rounds to 127.
    const F32x16 factor = set1(127.0f / largest);
    const I32x16 first_q = to_i32(mul(first, factor));
    const I32x16 second_q = to_i32(mul(second, factor));
    store_i8(q, first_q);
    store_i8(q + 16, second_q);
    *scale = largest / 127.0f;
    sums[0] = sum(first_q);
    sums[1] = sum(second_q);
}

static void quantize(const float* x, int32_t columns, int8_t* q, float* scale, int32_t* sums) {
    for (int32_t k = 0; k < columns; k += 32) quantize_group(x + k, q + k, scale + k / 32, sums + k / 16);
}
