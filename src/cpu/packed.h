// Packed weights: what load makes of a file's matrix, and what the linear kernels and the embedding read.
//
// A panel is 16 rows (outputs); rows are padded to 16 with zero weights. Per panel the quants lie in one plane and the scales
// (and minimums, where the type has them) in another, both 64-byte aligned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace treadle::cpu {

struct PackedMatrix {
    int32_t rows = 0;
    int32_t columns = 0;
    bool reads_f32 = false;  // float weights meet f32 activations; all others int8 groups
};

}  // namespace treadle::cpu
