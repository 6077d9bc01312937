// Norm, rotary positions and gate, once for all tiers. Included by kernels.inl.
//
// Invariant: elements are independent of how they fall into lanes; sums have the contract's order (rule 6).

// The sum of squares has 256 virtual lanes, lane = i mod 256, each an ascending chain of fma from +0: 16 values of 16 lanes.
// Lanes beyond the last column take in zeros, which change nothing.
TREADLE_LANES_WORD F32x16 add_and_square(float* residual, const float* delta, int32_t count, F32x16 squares) {
    F32x16 x = load_first(residual, count);
    if (delta != nullptr) {
        x = add(x, load_first(delta, count));
        store_first(residual, x, count);
    }
    return fma(x, x, squares);
}

TREADLE_LANES_WORD F32x16 add_and_square(float* residual, const float* delta, F32x16 squares) {
    F32x16 x = load(residual);
    if (delta != nullptr) {
        x = add(x, load(delta));
        store(residual, x);
    }
    return fma(x, x, squares);
}

// residual = residual + delta, one add. mean = (sum of squares) / columns; r = 1 / sqrt(mean + epsilon), each step rounded;
// out = (residual * r) * gain, two rounded products.
static void add_norm(float* residual, const float* delta, const float* gain, float epsilon, int32_t columns,
              float* out) {
    F32x16 squares[16];
    for (int32_t group = 0; group < 16; group++) {
        F32x16 sum_of_group = zero_f32();
        int32_t i = 16 * group;
        for (; i + 16 <= columns; i += 256)
            sum_of_group = add_and_square(residual + i, delta == nullptr ? nullptr : delta + i, sum_of_group);
        if (i < columns)
            sum_of_group = add_and_square(residual + i, delta == nullptr ? nullptr : delta + i, columns - i,
                                          sum_of_group);
        squares[group] = sum_of_group;
    }
    for (int32_t stride = 8; stride > 0;
         stride /= 2)  // strides 128 .. 16 of the tree; sum() goes on with 8 .. 1
        for (int32_t group = 0; group < stride; group++)
            squares[group] = add(squares[group], squares[group + stride]);

    const float mean = sum(squares[0]) / static_cast<float>(columns);
    const F32x16 r = div(set1(1.0f), sqrt(set1(mean + epsilon)));
    int32_t i = 0;
    for (; i + 16 <= columns; i += 16) store(out + i, mul(mul(load(residual + i), r), load(gain + i)));
    if (i < columns) {
        const F32x16 x = load_first(residual + i, columns - i);
        store_first(out + i, mul(mul(x, r), load_first(gain + i, columns - i)), columns - i);
    }
}

// The table of one row spread over the rotated dimensions, so that both pair orders are one formula:
// rotated[d] = fma(x[d], cosine[d], x[partner[d]] * sine[d]), the sine negated for the first of a pair. That is
// x0' = fma(x0, c, -(x1 * s)) and x1' = fma(x1, c, x0 * s).
struct Rotation {
    float cosine[limits::head_dim_max];
    float sine[limits::head_dim_max];
    int32_t partner[limits::head_dim_max];
};

static void spread_rotation(const RopeShape& rope, const float* cos_sin, Rotation* out) {
    const int32_t pairs = rope.rotary_dims / 2;
    for (int32_t pair = 0; pair < pairs; pair++) {
        const bool adjacent = rope.pair_order == PairOrder::adjacent;
        const int32_t first = adjacent ? 2 * pair : pair;
        const int32_t second = adjacent ? 2 * pair + 1 : pair + pairs;
        out->cosine[first] = out->cosine[second] = cos_sin[2 * pair];
        out->sine[first] = -cos_sin[2 * pair + 1];
        out->sine[second] = cos_sin[2 * pair + 1];
        out->partner[first] = second;
        out->partner[second] = first;
    }
}

// Rotates the first `dims` of a head in place; the others stay.
static void rotate(const Rotation& rotation, int32_t dims, float* head) {
    float others[limits::head_dim_max];
    for (int32_t d = 0; d < dims; d++) others[d] = head[rotation.partner[d]];
    int32_t d = 0;
    for (; d + 16 <= dims; d += 16) {
        const F32x16 product = mul(load(others + d), load(rotation.sine + d));
        store(head + d, fma(load(head + d), load(rotation.cosine + d), product));
    }
    if (d < dims) {
        const int32_t rest = dims - d;
        const F32x16 product = mul(load_first(others + d, rest), load_first(rotation.sine + d, rest));
        const F32x16 rotated =
            fma(load_first(head + d, rest), load_first(rotation.cosine + d, rest), product);
        store_first(head + d, rotated, rest);
    }
}

// Queries are multiplied by query_scale first (one rounded product), then rotated. head_dim is a multiple of 16.
static void rope(const AttentionShape& shape, const RopeShape& rope, const float* cos_sin, float* qkv) {
    Rotation rotation;
    spread_rotation(rope, cos_sin, &rotation);
    const int32_t head_dim = shape.head_dim;
    const F32x16 query_scale = set1(rope.query_scale);
    for (int32_t head = 0; head < shape.heads; head++) {
        float* query = qkv + static_cast<size_t>(head) * head_dim;
        for (int32_t d = 0; d < head_dim; d += 16) store(query + d, mul(load(query + d), query_scale));
        rotate(rotation, rope.rotary_dims, query);
    }
    float* const keys = qkv + static_cast<size_t>(shape.heads) * head_dim;
    for (int32_t head = 0; head < shape.kv_heads; head++)
        rotate(rotation, rope.rotary_dims, keys + static_cast<size_t>(head) * head_dim);
}

// (x / (1 + exp(-x))) * y, each step rounded.
TREADLE_LANES_WORD F32x16 silu_gate(F32x16 x, F32x16 y) {
    const F32x16 denominator = add(set1(1.0f), exp(sub(zero_f32(), x)));
    return mul(div(x, denominator), y);
}

static void gate([[maybe_unused]] GateKind kind, const float* gate_up, int32_t n, float* out) {
    const float* const up = gate_up + n;
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, silu_gate(load(gate_up + i), load(up + i)));
    if (i < n)
        store_first(out + i, silu_gate(load_first(gate_up + i, n - i), load_first(up + i, n - i)), n - i);
}

static void exp2_of(const float* x, int32_t n, float* out) {
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t count = n - i < 16 ? n - i : 16;
        store_first(out + i, exp2(load_first(x + i, count)), count);
    }
}

static void exp_of(const float* x, int32_t n, float* out) {
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t count = n - i < 16 ? n - i : 16;
        store_first(out + i, exp(load_first(x + i, count)), count);
    }
}
