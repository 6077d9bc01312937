// Packing of a file's tensors into the forms that the kernels read. Called by the CPU's weight store
// when a model is loaded.
//
// Invariant: packed bytes are a function of the tensor alone; beyond them packing holds only a bounded
// stretch of the file.
#pragma once

#include "base/hooks.h"
#include "base/memory.h"
#include "cpu/packed.h"
#include "ops/backend.h"

namespace treadle::cpu {

// One tensor, ready for the kernels. `matrix` points into `planes`, also after a move.
struct PackedWeight {
    PackedMatrix matrix;         // of WeightUse::matrix
    AlignedArray<float> vector;  // of WeightUse::vector: one row, zeros up to a multiple of 16
    AlignedArray<uint8_t> planes;

    size_t bytes() const { return vector.bytes() + planes.bytes(); }
};

// The planes of a matrix with this many rows and columns. Both are in range and columns a multiple of
// the type's block.
size_t packed_bytes(PackedFormat format, int64_t rows, int64_t columns);

// Reads the tensor in stretches of whole panels, packs each, and asks `progress` (bytes of this tensor)
// between them: STOPPED. UNSUPPORTED_TYPE: no type of weights, or of vectors; CORRUPT: the sizes
// contradict one another; LIMIT: a side is too long. On failure `out` is as before. Staging memory
// comes from `scratch`: about 1 MB, or one panel of the file where that is more.
[[nodiscard]] Status pack_weight(WeightSource& source, WeightUse use, const ProgressHook& progress,
                                 Memory* weights, Memory* scratch, PackedWeight* out, Error* error);

}  // namespace treadle::cpu
