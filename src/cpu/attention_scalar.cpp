// The scalar tier: the specification of attention.

#include <cstddef>
#include <limits>

#include "base/math.h"
#include "cpu/attention.h"
#include "cpu/lanes_scalar.h"

namespace treadle::cpu::scalar {

#include "cpu/vector_math.inl"

#include "cpu/attention.inl"

}  // namespace treadle::cpu::scalar
