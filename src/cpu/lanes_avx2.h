// The vocabulary of 16 lanes for AVX2 with FMA and F16C. Only files named *_avx2.cpp may include it.
//
// Invariant: equal by bits to the scalar word; always_inline in this tier's own namespace.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/lanes.h"

namespace treadle::cpu::avx2 {

constexpr const char* tier_name = "avx2";
constexpr Rates rates = {30, 8, 4, 1, 10};

#include "cpu/lanes_256.inl"

}  // namespace treadle::cpu::avx2
