// The linear kernels: the sse41 tier.
#include "cpu/lanes_dot_sse41.h"
#include "cpu/linear.h"

namespace treadle::cpu::sse41 {
#include "cpu/linear.inl"
}  // namespace treadle::cpu::sse41
