// exp2 and exp of base/math.h in lanes. Included by kernels.inl.
//
// Invariant: equal by bits to math::exp2 and math::exp for every input.

TREADLE_LANES_WORD F32x16 exp2_of_parts(F32x16 n_plus_magic, F32x16 f) {
    F32x16 q = fma(f, set1(math::exp2_q6), set1(math::exp2_q5));
    q = fma(f, q, set1(math::exp2_q4));
    q = fma(f, q, set1(math::exp2_q3));
    q = fma(f, q, set1(math::exp2_q2));
    q = fma(f, q, set1(math::exp2_q1));
    const I32x16 exponent = shift_left<23>(bits_of(n_plus_magic));
    return f32_of_bits(add(bits_of(fma(f, q, set1(1.0f))), exponent));
}

// `result` where x is a number and log2_of_result is in range, else +0, +inf or x.
TREADLE_LANES_WORD F32x16 with_exp2_edges(F32x16 result, F32x16 log2_of_result, F32x16 x) {
    result = select(less(log2_of_result, set1(math::exp2_ceiling)), result,
                    set1(std::numeric_limits<float>::infinity()));
    result = select(less(log2_of_result, set1(math::exp2_floor)), zero_f32(), result);
    return select(equal(x, x), result, x);
}

TREADLE_LANES_WORD F32x16 exp2(F32x16 x) {
    const F32x16 magic = set1(math::rint_magic);
    const F32x16 n_plus_magic = add(x, magic);
    return with_exp2_edges(exp2_of_parts(n_plus_magic, sub(x, sub(n_plus_magic, magic))), x, x);
}

TREADLE_LANES_WORD F32x16 exp(F32x16 x) {
    const F32x16 magic = set1(math::rint_magic);
    const F32x16 t = mul(x, set1(math::log2e));
    const F32x16 r = fma(x, set1(math::log2e_rest), fma(x, set1(math::log2e), sub(zero_f32(), t)));
    const F32x16 n_plus_magic = add(t, magic);
    return with_exp2_edges(exp2_of_parts(n_plus_magic, add(sub(t, sub(n_plus_magic, magic)), r)), t, x);
}
