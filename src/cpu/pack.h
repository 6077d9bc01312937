// Packing of a file's tensors into the forms that the kernels read. Called by the CPU's weight store
// when a model is loaded.
//
// Invariant: packed bytes are a function of the tensor alone: every byte is written by the piece that holds
// its row, whatever the pieces and their order.
#pragma once

#include <span>

#include "base/status.h"
#include "cpu/packed.h"
#include "ops/backend.h"
#include "quant/types.h"

namespace treadle::cpu {

// One tensor, ready for the kernels once all its rows are packed.
struct PackedWeight {
    PackedMatrix matrix;                // of WeightUse::matrix
    std::span<float> vector;            // of WeightUse::vector: one row, zeros up to a multiple of 16
    uint8_t* planes = nullptr;          // (bytes) what both point into
    size_t bytes = 0;                   // a multiple of 64
    TensorType type = TensorType::F32;  // in the file

    bool is_vector() const { return matrix.rows == 0; }
};

// The planes of a matrix with this many rows and columns. Both are in range and columns a multiple of
// the type's block.
size_t packed_bytes(PackedFormat format, int64_t rows, int64_t columns);

// Everything but the memory. UNSUPPORTED_TYPE: no type of weights, or of vectors; CORRUPT: the sizes
// contradict one another; LIMIT: a side is too long. On failure `out` is as before.
[[nodiscard]] Status lay_out_weight(const WeightShape& tensor, WeightUse use, PackedWeight* out,
                                    Error* error);

// Gives it its memory: `bytes` of them, 64-byte aligned.
void place_weight(uint8_t* memory, PackedWeight* weight);

// Packs rows first_row .. first_row + rows - 1, which lie in `bytes` as in the file; see WeightStore::pack.
void pack_rows(const PackedWeight& weight, int64_t first_row, int64_t rows, const void* bytes);

}  // namespace treadle::cpu
