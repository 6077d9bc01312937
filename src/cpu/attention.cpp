// The part of attention that has no lanes: how much scratch it needs.

#include "cpu/attention.h"

namespace treadle::cpu {

size_t attention_scratch_bytes(const AttentionShape& shape, int32_t positions_max) {
    return AttentionScratch(shape, attend_rows_max, positions_max).floats * sizeof(float);
}

}  // namespace treadle::cpu
