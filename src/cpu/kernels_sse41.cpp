// The SSE4.1 tier. Its linear kernels, which take long to compile, are in linear_sse41.cpp.
#include "cpu/kernels_tier.h"
#include "cpu/lanes_dot_sse41.h"

namespace treadle::cpu::sse41 {
#include "cpu/kernels.inl"
}  // namespace treadle::cpu::sse41
