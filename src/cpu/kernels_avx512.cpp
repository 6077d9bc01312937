// The AVX-512 tier. Its linear kernels, which take long to compile, are in linear_avx512.cpp.
#include "cpu/kernels_tier.h"
#include "cpu/lanes_dot_avx512.h"

namespace treadle::cpu::avx512 {
#include "cpu/kernels.inl"
}  // namespace treadle::cpu::avx512
