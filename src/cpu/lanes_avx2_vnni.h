// The vocabulary of 16 lanes for AVX2 with AVX-VNNI: AVX2's. What VNNI adds is in lanes_dot_avx2_vnni.h. Only files named
// *_avx2_vnni.cpp may include it.
#pragma once

#include "cpu/lanes_avx2.h"

namespace treadle::cpu::avx2_vnni {

using namespace avx2;

constexpr const char* tier_name = "avx2_vnni";
constexpr Rates rates = {40, 8, 4, 1, 10};

}  // namespace treadle::cpu::avx2_vnni
