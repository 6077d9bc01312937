// Reads a model's tensors and has the store pack them, many pieces at once. Called by load_weights.
//
//     tensors  | a | b b b b b | c | d d d …    in the order of the file
//     pieces   | a | b b | b b | b | c | d d |  whole steps of 16 rows, about LoadHooks::piece_bytes
//     waves    |         0         |     1      as many pieces as the staging memory holds
//
// For each wave the progress hook is asked, then its pieces are read, packed and hashed on all threads.
//
// Invariants: packed bytes, fingerprint and the failure that is told are those of one thread, whatever threads there
// are; the loading thread alone allocates, asks the progress hook, and calls readers that are not shareable.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "base/hooks.h"
#include "base/memory.h"
#include "gguf/reader.h"
#include "model/fingerprint.h"
#include "ops/backend.h"

namespace treadle {

struct LoadHooks {
    LogHook log;
    ProgressHook progress;
    ParallelForHook parallel_for;    // run is null: the loading thread does everything
    int32_t threads = 1;             // that parallel_for has
    size_t piece_bytes = 128 << 10;  // of the file, that one thread takes at once; at least 16 rows
};

// A tensor of the file that the model needs, and the store's id for it.
struct PlannedTensor {
    const TensorView* tensor;
    WeightId id;
};

class WeightReader {
public:
    // `tensors` stand in the order of the file, and the store has allocated them.
    WeightReader(const GgufFile& file, std::span<const PlannedTensor> tensors, const LoadHooks& hooks,
                 WeightStore& store, Memory* scratch, Fingerprint* fingerprint, Error* error);

    // STOPPED: the progress hook said so. Other statuses come from the file. Feeds the fingerprint with a hash of
    // every tensor.
    [[nodiscard]] Status read_all();

private:
    struct Piece {
        const PlannedTensor* planned = nullptr;
        int64_t first_row = 0;
        int64_t rows = 0;
        uint64_t offset = 0;  // in the tensor
        size_t bytes = 0;
        uint8_t* place = nullptr;  // in staging_
        Status status = Status::OK;
        Error error;
        uint64_t hash = 0;
    };

    static int64_t rows_at_once(const TensorView& tensor, size_t bytes);
    size_t staging_bytes() const;
    [[nodiscard]] Status ask_progress();
    void plan_wave();
    [[nodiscard]] Status run_wave();
    [[nodiscard]] Status read_piece(const Piece& piece, Error* error) const;
    void load_piece(Piece& piece) const;
    void take_hash(const Piece& piece);

    const GgufFile& file_;
    const std::span<const PlannedTensor> tensors_;
    const LoadHooks& hooks_;
    WeightStore& store_;
    Fingerprint* const fingerprint_;
    Error* const error_;
    const bool shareable_;  // pieces are read where they are packed
    AlignedArray<uint8_t> staging_;
    std::pmr::vector<Piece> wave_;  // never grows beyond what was reserved
    size_t next_tensor_ = 0;        // what the next piece starts with
    int64_t next_row_ = 0;
    uint64_t done_bytes_ = 0;
    uint64_t total_bytes_ = 0;
    uint64_t tensor_hash_ = 0;  // of the pieces of the current tensor so far
};

}  // namespace treadle
