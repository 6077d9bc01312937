// The AVX2 tier of the vector kernels of vector.h.

#include <bit>
#include <cstddef>
#include <limits>

#include "base/limits.h"
#include "base/math.h"
#include "cpu/lanes_avx2.h"
#include "cpu/vector.h"

namespace treadle::cpu::avx2 {

#include "cpu/vector_math.inl"

#include "cpu/vector.inl"

#include "cpu/vector_candidates.inl"

}  // namespace treadle::cpu::avx2
