// A packed weight with memory of its own, packed from a whole tensor at once: for tests and benches of what reads
// packed weights.
#pragma once

#include "base/memory.h"
#include "cpu/pack.h"

namespace treadle::test {

struct WholeWeight : cpu::PackedWeight {
    AlignedArray<uint8_t> memory;
};

// `bytes` are those of the tensor in the file.
inline Status pack_whole(const WeightShape& tensor, WeightUse use, const void* bytes, Memory* memory,
                         WholeWeight* out, Error* error) {
    WholeWeight made;
    TREADLE_TRY(cpu::lay_out_weight(tensor, use, &made, error));
    made.memory = AlignedArray<uint8_t>(memory, made.bytes);
    cpu::place_weight(made.memory.data(), &made);
    cpu::pack_rows(made, 0, tensor.rows, bytes);
    *out = std::move(made);
    return Status::OK;
}

}  // namespace treadle::test
