// The AVX2-VNNI tier. Its linear kernels, which take long to compile, are in linear_avx2_vnni.cpp.
#include "cpu/kernels_tier.h"
#include "cpu/lanes_dot_avx2_vnni.h"

namespace treadle::cpu::avx2_vnni {
#include "cpu/kernels.inl"
}  // namespace treadle::cpu::avx2_vnni
