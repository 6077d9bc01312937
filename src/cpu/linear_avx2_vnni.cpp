// The linear kernels: the avx2_vnni tier.
#include "cpu/lanes_dot_avx2_vnni.h"
#include "cpu/linear.h"

namespace treadle::cpu::avx2_vnni {
#include "cpu/linear.inl"
}  // namespace treadle::cpu::avx2_vnni
