// The scalar tier: the specification of the vector kernels of vector.h.

#include <bit>
#include <cstddef>
#include <limits>

#include "base/limits.h"
#include "base/math.h"
#include "cpu/lanes_scalar.h"
#include "cpu/vector.h"

namespace treadle::cpu::scalar {

#include "cpu/vector_math.inl"

#include "cpu/vector.inl"

#include "cpu/vector_candidates.inl"

}  // namespace treadle::cpu::scalar
