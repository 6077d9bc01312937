// The vocabulary of 16 lanes for AVX2 with AVX-VNNI, which only lanes_dot_avx2_vnni.h uses. Only files named *_avx2_vnni.cpp may
// include it.
//
// Invariant: equal by bits to the scalar word; always_inline in this tier's own namespace.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/lanes.h"

namespace treadle::cpu::avx2_vnni {

constexpr const char* tier_name = "avx2_vnni";
constexpr Rates rates = {40, 8, 4, 1, 10};

#include "cpu/lanes_256.inl"

}  // namespace treadle::cpu::avx2_vnni
