// Quantization of activations: the scalar tier.
#include "cpu/lanes_scalar.h"
#include "cpu/linear.h"

namespace treadle::cpu::scalar {
#include "cpu/quantize.inl"
}  // namespace treadle::cpu::scalar
