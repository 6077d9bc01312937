// The kernels that work on vectors: norms, rotary positions, gates and what is kept of a row of logits. kernels.h says what each
// computes and puts them into the table of a tier; the order of every operation is written at its kernel in vector.inl and
// vector_candidates.inl, which are compiled once per tier.
//
// Invariant: the tiers write the same bytes; of a NaN only the fact is promised, not its sign or payload.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"

namespace treadle::cpu {

#define TREADLE_VECTOR_KERNELS                                                                            \
    void add_norm(float* residual, const float* delta, const float* gain, float epsilon, int32_t columns, \
                  float* out);                                                                            \
    void rope_write(const AttentionShape& shape, const RopeShape& rope, const float* cos_sin, float* qkv, \
                    int32_t slot, const LayerCache& cache);                                               \
    void gate(GateKind kind, const float* gate_up, int32_t n, float* out);                                \
    void candidates(const float* logits, int32_t vocabulary, float inverse_temperature, RowResult* out);  \
    void exp2_of(const float* x, int32_t n, float* out); /* of each element; for tests and benchmarks */  \
    void exp_of(const float* x, int32_t n, float* out)

namespace scalar {
TREADLE_VECTOR_KERNELS;
}
namespace avx2 {
TREADLE_VECTOR_KERNELS;
}

#undef TREADLE_VECTOR_KERNELS

// Puts the `kept` first of list[0 .. count) by (logit descending, token ascending) in order at its front; the rest is left in
// any order. -0 and +0 are equal logits. No NaN.
void sort_candidates(Candidate* list, int32_t count, int32_t kept);

}  // namespace treadle::cpu
