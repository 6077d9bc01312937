// The linear kernels: the avx512 tier.
#include "cpu/lanes_dot_avx512.h"
#include "cpu/linear.h"

namespace treadle::cpu::avx512 {
#include "cpu/linear.inl"
}  // namespace treadle::cpu::avx512
