// One correctly rounded fused multiply-add in plain arithmetic, for code that must run where the CPU
// has no FMA. Called by the scalar lanes of src/cpu and wherever scalar code takes a step of the
// numerics contract.
//
// Invariant: equal by bits to a hardware FMA in round-to-nearest, for subnormals, infinities and signed
// zeros too; of a NaN only the fact is promised, not its sign or payload.
//
// Why it is exact: the product of two floats has at most 48 bits and lies in double's range, so it is
// exact there. The sum is rounded to odd (towards zero, then the last bit set if anything was lost); a
// value that is rounded to odd with at least two bits more than the result can be rounded again without
// harm, also where the result is subnormal.
#pragma once

#include <bit>
#include <cfloat>
#include <cstdint>

static_assert(FLT_EVAL_METHOD == 0, "float arithmetic with excess precision would change results");

namespace treadle {

constexpr float exact_fma(float a, float b, float c) {
    const double product = static_cast<double>(a) * static_cast<double>(b);
    const double addend = static_cast<double>(c);
    const double sum = product + addend;
    // What the rounding of the sum lost, exactly (Knuth); a NaN if the sum is not finite.
    const double addend_taken = sum - product;
    const double lost = (product - (sum - addend_taken)) + (addend - addend_taken);
    uint64_t bits = std::bit_cast<uint64_t>(sum);
    const bool inexact = lost < 0 || lost > 0;
    if (inexact && (bits & 1) == 0) {
        const bool away_from_zero = (lost > 0) == (sum > 0);  // the true value lies beyond the sum
        bits = away_from_zero ? bits + 1 : bits - 1;
    }
    return static_cast<float>(std::bit_cast<double>(bits));
}

}  // namespace treadle
