// The linear kernels: the scalar tier.
#include "cpu/lanes_dot_scalar.h"
#include "cpu/linear.h"

namespace treadle::cpu::scalar {
#include "cpu/linear.inl"
}  // namespace treadle::cpu::scalar
