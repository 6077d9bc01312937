// The table of the scalar tier: the specification that every other tier equals by bytes.
#include "cpu/attention.h"
#include "cpu/kernels.h"
#include "cpu/linear.h"
#include "cpu/vector.h"

namespace treadle::cpu {

const Kernels& scalar_kernels() {
    static constexpr Kernels table = {
        .tier = "scalar",
        .embed = scalar::embed,
        .add_norm = scalar::add_norm,
        .quantize = scalar::quantize,
        .linear = scalar::linear,
        .rope_write = scalar::rope_write,
        .attend = scalar::attend,
        .gate = scalar::gate,
        .candidates = scalar::candidates,
    };
    return table;
}

}  // namespace treadle::cpu
