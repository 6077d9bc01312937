// The table of the AVX2 tier (with FMA and F16C). Taking it runs no such instruction; cpu_has_avx2 says
// whether its kernels may run.
#include "cpu/attention.h"
#include "cpu/kernels.h"
#include "cpu/linear.h"
#include "cpu/vector.h"

namespace treadle::cpu {

const Kernels* avx2_kernels() {
    static constexpr Kernels table = {
        .tier = "avx2",
        .embed = avx2::embed,
        .add_norm = avx2::add_norm,
        .quantize = avx2::quantize,
        .linear = avx2::linear,
        .rope_write = avx2::rope_write,
        .attend = avx2::attend,
        .gate = avx2::gate,
        .candidates = avx2::candidates,
    };
    return &table;
}

}  // namespace treadle::cpu
