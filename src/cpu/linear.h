// The kernels that read packed weights, the linear ones per tier; kernels.h says what each does and
// kernels.inl puts them into the tables.
//
// Order of a quantized dot product (rules 1 to 4 of the numerics contract), for one output and one row
// of activations: values are cut into slices of 1,024, each a chain from +0. In a slice the weight
// groups (32 values, or 16) ascend, and each takes the steps
//
//     acc = fma(float(Σ q_w · q_a), w_scale · a_scale, acc)      the dot is exact, the product is rounded
//     acc = fma(w_minimum, a_scale · float(Σ q_a), acc)          where the type has a minimum
//
// with w_scale = d, or the rounded product d · sub_scale; w_minimum = m, or the negated rounded product
// dmin · sub_minimum. Float weights take acc = fma(w, a, acc) for each value. The total starts as the
// first slice, each further one is added, then the bias.
#pragma once

#include "cpu/kernels.h"

namespace treadle::cpu {

constexpr int32_t slice_values = 1024;

// The same code serves every tier: it decodes one row with single rounded products and sums only.
void embed(const PackedMatrix& w, int32_t token, float scale, float* out);

#define TREADLE_LINEAR_KERNEL(tier)                                                                        \
    namespace tier {                                                                                       \
    void linear(const PackedMatrix& w, const float* bias, const Act& act, const int32_t* rows,             \
                int32_t row_count, int32_t panel_begin, int32_t panel_end, float* out, size_t out_stride); \
    }
TREADLE_CPU_TIERS(TREADLE_LINEAR_KERNEL)
#undef TREADLE_LINEAR_KERNEL

}  // namespace treadle::cpu
