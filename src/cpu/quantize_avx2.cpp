// Quantization of activations: the avx2 tier.
#include "cpu/lanes_avx2.h"
#include "cpu/linear.h"

namespace treadle::cpu::avx2 {
#include "cpu/quantize.inl"
}  // namespace treadle::cpu::avx2
