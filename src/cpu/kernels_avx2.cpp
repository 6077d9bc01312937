// The AVX2 tier. Its linear kernels, which take long to compile, are in linear_avx2.cpp.
#include "cpu/kernels_tier.h"
#include "cpu/lanes_dot_avx2.h"

namespace treadle::cpu::avx2 {
#include "cpu/kernels.inl"
}  // namespace treadle::cpu::avx2
