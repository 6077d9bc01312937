// The linear kernels: the avx2 tier.
#include "cpu/lanes_dot_avx2.h"
#include "cpu/linear.h"

namespace treadle::cpu::avx2 {
#include "cpu/linear.inl"
}  // namespace treadle::cpu::avx2
