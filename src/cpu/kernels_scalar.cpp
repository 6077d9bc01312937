// The scalar tier: the specification that every other one equals by bytes. Its linear kernels, which take long to compile, are in
// linear_scalar.cpp.
#include "cpu/kernels_tier.h"
#include "cpu/lanes_dot_scalar.h"

namespace treadle::cpu::scalar {
#include "cpu/kernels.inl"
}  // namespace treadle::cpu::scalar
