// The AVX2 tier of attention.

#include <cstddef>
#include <limits>

#include "base/math.h"
#include "cpu/attention.h"
#include "cpu/lanes_avx2.h"

namespace treadle::cpu::avx2 {

#include "cpu/vector_math.inl"

#include "cpu/attention.inl"

}  // namespace treadle::cpu::avx2
