// What is kept of a row of logits (rule 7), once for all tiers. Included by kernels.inl.
//
// The best 256 are found without sorting the row: the row is cut into at most 1,024 slices; the 256th largest of the slices'
// maxima is a lower bound of the 256th largest logit, since each of 256 slices holds a logit that reaches it. What reaches the
// bound is collected; if that is more than the room (ties, or an unlucky order), the best 256 so far give a new bound, which later
// ids must exceed, as of equal logits the lower id goes first.

static constexpr int32_t candidate_slices_max = 1024;
static constexpr int32_t candidate_room = 1024;

struct LogitSlices {
    int32_t length = 0;  // a multiple of 16; the last one may be shorter
    int32_t count = 0;
    float maxima[candidate_slices_max];
    bool has_nan = false;
};

static void find_maxima(const float* logits, int32_t vocabulary, LogitSlices* slices) {
    const F32x16 lowest = set1(-std::numeric_limits<float>::infinity());
    slices->length = ((vocabulary + candidate_slices_max - 1) / candidate_slices_max + 15) / 16 * 16;
    I32x16 numbers = equal(lowest, lowest);
    for (int32_t begin = 0; begin < vocabulary; begin += slices->length) {
        const int32_t end = vocabulary - begin < slices->length ? vocabulary : begin + slices->length;
        F32x16 most = lowest;
        int32_t i = begin;
        for (; i + 16 <= end; i += 16) {
            const F32x16 x = load(logits + i);
            numbers = bit_and(numbers, equal(x, x));
            most = max(x, most);
        }
        if (i < end) {
            const F32x16 x = load_first(logits + i, end - i);
            numbers = bit_and(numbers, equal(x, x));
            most = max(select(less(lane_numbers(), set1(end - i)), x, lowest), most);
        }
        slices->maxima[slices->count++] = max_lane(most);
    }
    slices->has_nan = mask_bits(numbers) != 0xffff;
}

static float largest(const LogitSlices& slices) {
    float most = -std::numeric_limits<float>::infinity();
    for (int32_t i = 0; i < slices.count; i++) most = slices.maxima[i] > most ? slices.maxima[i] : most;
    return most;
}

// Σ exp2((l - most) * factor): slices of 4,096 ids, in each 16 lanes (id mod 16) of ascending adds from +0 and the tree; the
// slices' sums are added ascending from +0.
static float sum_of_powers(const float* logits, int32_t vocabulary, float most, float factor) {
    float total = 0;
    for (int32_t begin = 0; begin < vocabulary; begin += 4096) {
        const int32_t end = vocabulary - begin < 4096 ? vocabulary : begin + 4096;
        F32x16 lanes = zero_f32();
        int32_t i = begin;
        for (; i + 16 <= end; i += 16)
            lanes = add(lanes, exp2(mul(sub(load(logits + i), set1(most)), set1(factor))));
        if (i < end) {
            const F32x16 powers = exp2(mul(sub(load_first(logits + i, end - i), set1(most)), set1(factor)));
            lanes = add(lanes, select(less(lane_numbers(), set1(end - i)), powers, zero_f32()));
        }
        total = total + sum(lanes);
    }
    return total;
}

// The candidates seen so far, and what a logit must be to become one.
struct CandidatePool {
    Candidate list[candidate_room];
    int32_t count = 0;
    float bound = 0;
    bool must_exceed = false;  // else must reach
};

static void collect(const float* logits, int32_t begin, int32_t end, CandidatePool* pool) {
    for (int32_t i = begin; i < end; i += 16) {
        if (pool->count > candidate_room - 16) {
            sort_candidates(pool->list, pool->count, limits::candidates_kept);
            pool->count = limits::candidates_kept;
            pool->bound = pool->list[limits::candidates_kept - 1].logit;
            pool->must_exceed = true;
        }
        const int32_t count = end - i < 16 ? end - i : 16;
        const F32x16 x = load_first(logits + i, count);
        const F32x16 bound = set1(pool->bound);
        I32x16 taken = less(bound, x);
        if (!pool->must_exceed) taken = bit_or(taken, equal(bound, x));
        uint32_t bits = mask_bits(taken) & ((1u << count) - 1);
        for (; bits != 0; bits &= bits - 1) {
            const int32_t token = i + std::countr_zero(bits);
            pool->list[pool->count++] = {logits[token], token};
        }
    }
}

static void candidates(const float* logits, int32_t vocabulary, float inverse_temperature, RowResult* out) {
    *out = RowResult{};
    LogitSlices slices;
    find_maxima(logits, vocabulary, &slices);
    const float most = largest(slices);
    if (slices.has_nan || !(most - most == 0)) return;  // the difference is NaN where the maximum is infinite

    CandidatePool pool;
    pool.bound = -std::numeric_limits<float>::infinity();
    if (slices.count >= limits::candidates_kept) {
        Candidate maxima[candidate_slices_max];
        for (int32_t i = 0; i < slices.count; i++) maxima[i] = {slices.maxima[i], i};
        sort_candidates(maxima, slices.count, limits::candidates_kept);
        pool.bound = maxima[limits::candidates_kept - 1].logit;
    }
    for (int32_t slice = 0; slice < slices.count; slice++) {
        const int32_t begin = slice * slices.length;
        const int32_t end = vocabulary - begin < slices.length ? vocabulary : begin + slices.length;
        if (slices.maxima[slice] >= pool.bound) collect(logits, begin, end, &pool);
    }
    out->usable = 1;
    out->count = vocabulary < limits::candidates_kept ? vocabulary : limits::candidates_kept;
    sort_candidates(pool.list, pool.count, out->count);
    for (int32_t i = 0; i < out->count; i++) out->best[i] = pool.list[i];

    const float scaled_factor = math::log2e * inverse_temperature;
    out->max = out->best[0].logit;
    out->sum = sum_of_powers(logits, vocabulary, out->max, math::log2e);
    out->sum_scaled =
        scaled_factor == math::log2e ? out->sum : sum_of_powers(logits, vocabulary, out->max, scaled_factor);
}
