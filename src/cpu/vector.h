// The kernels that work on vectors: norms, rotary positions, gates and what is kept of a row of logits. kernels.h says what each
// computes and puts them into the table of a tier; the order of every operation is written at its kernel in vector.inl and
// vector_candidates.inl, which are compiled once per tier.
//
// Invariant: the tiers write the same bytes; of a NaN only the fact is promised, not its sign or payload.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"

namespace treadle::cpu {

// Puts the `kept` first of list[0 .. count) by (logit descending, token ascending) in order at its front; the rest is left in
// any order. -0 and +0 are equal logits. No NaN.
void sort_candidates(Candidate* list, int32_t count, int32_t kept);

}  // namespace treadle::cpu
