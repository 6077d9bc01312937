// Pieces and waves. A piece's hash is a sum over its steps of rows, so that it does not matter how a tensor was cut.
#include "model/weight_reader.h"

#include <algorithm>

#include "base/float_mode.h"
#include "base/hash.h"

namespace treadle {
namespace {

constexpr int32_t pieces_per_thread = 8;  // of a wave: so many that a slow thread hardly holds the others

}  // namespace

WeightReader::WeightReader(const GgufFile& file, std::span<const PlannedTensor> tensors,
                           const LoadHooks& hooks, WeightStore& store, Memory* scratch,
                           Fingerprint* fingerprint, Error* error)
    : file_(file), tensors_(tensors), hooks_(hooks), store_(store), fingerprint_(fingerprint), error_(error),
      shareable_(file.is_shareable()), wave_(scratch) {
    for (const PlannedTensor& planned : tensors) total_bytes_ += planned.tensor->bytes;
    staging_ = AlignedArray<uint8_t>(scratch, staging_bytes());
    wave_.reserve(static_cast<size_t>(hooks.threads) * pieces_per_thread);
}

// As many as fit `bytes`, but at least one step.
int64_t WeightReader::rows_at_once(const TensorView& tensor, size_t bytes) {
    const uint64_t step_bytes = tensor.row_bytes() * weight_row_step;
    const uint64_t steps = std::max<uint64_t>(bytes / step_bytes, 1);
    return static_cast<int64_t>(std::min(steps * weight_row_step, tensor.rows()));
}

size_t WeightReader::staging_bytes() const {
    uint64_t bytes = uint64_t{hooks_.piece_bytes} * static_cast<uint64_t>(hooks_.threads) * pieces_per_thread;
    bytes = std::min(bytes, total_bytes_);
    for (const PlannedTensor& planned : tensors_) {
        const auto rows = static_cast<uint64_t>(rows_at_once(*planned.tensor, hooks_.piece_bytes));
        bytes = std::max(bytes, rows * planned.tensor->row_bytes());
    }
    return static_cast<size_t>(bytes);
}

Status WeightReader::read_all() {
    while (next_tensor_ < tensors_.size()) {
        TREADLE_TRY(ask_progress());
        plan_wave();
        TREADLE_TRY(run_wave());
        for (const Piece& piece : wave_) take_hash(piece);
    }
    return ask_progress();
}

Status WeightReader::ask_progress() {
    if (hooks_.progress.go_on(done_bytes_, total_bytes_)) return Status::OK;
    return fail(error_, Status::STOPPED, "loading was stopped after %llu of %llu bytes",
                static_cast<unsigned long long>(done_bytes_), static_cast<unsigned long long>(total_bytes_));
}

void WeightReader::plan_wave() {
    wave_.clear();
    size_t used = 0;
    while (next_tensor_ < tensors_.size() && wave_.size() < wave_.capacity()) {
        const PlannedTensor& planned = tensors_[next_tensor_];
        const TensorView& tensor = *planned.tensor;
        const auto all_rows = static_cast<int64_t>(tensor.rows());
        Piece piece;
        piece.planned = &planned;
        piece.first_row = next_row_;
        piece.rows = std::min(rows_at_once(tensor, hooks_.piece_bytes), all_rows - next_row_);
        piece.offset = static_cast<uint64_t>(next_row_) * tensor.row_bytes();
        piece.bytes = static_cast<size_t>(static_cast<uint64_t>(piece.rows) * tensor.row_bytes());
        if (piece.bytes > staging_.size() - used) break;
        piece.place = staging_.data() + used;
        used += piece.bytes;
        wave_.push_back(piece);
        next_row_ += piece.rows;
        if (next_row_ < all_rows) continue;
        next_row_ = 0;
        ++next_tensor_;
    }
}

Status WeightReader::run_wave() {
    const auto body = [](void* context, int32_t index) {
        const FloatMode float_mode;
        auto* self = static_cast<WeightReader*>(context);
        self->load_piece(self->wave_[static_cast<size_t>(index)]);
    };
    if (!shareable_)
        for (const Piece& piece : wave_) TREADLE_TRY(read_piece(piece, error_));
    const auto count = static_cast<int32_t>(wave_.size());
    if (hooks_.parallel_for.run != nullptr && count > 1) {
        hooks_.parallel_for.run(hooks_.parallel_for.user, body, this, count);
    } else {
        for (int32_t i = 0; i < count; ++i) body(this, i);
    }
    for (const Piece& piece : wave_) {  // the first in the file is the one to tell
        if (piece.status == Status::OK) continue;
        if (error_ != nullptr) *error_ = piece.error;
        return piece.status;
    }
    return Status::OK;
}

Status WeightReader::read_piece(const Piece& piece, Error* error) const {
    return file_.read_tensor(*piece.planned->tensor, piece.offset, piece.place, piece.bytes, error);
}

void WeightReader::load_piece(Piece& piece) const {
    if (shareable_) piece.status = read_piece(piece, &piece.error);
    if (piece.status != Status::OK) return;
    store_.pack(piece.planned->id, piece.first_row, piece.rows, piece.place);
    const auto row_bytes = static_cast<size_t>(piece.planned->tensor->row_bytes());
    for (int64_t row = 0; row < piece.rows; row += weight_row_step) {
        const auto rows = static_cast<size_t>(std::min(weight_row_step, piece.rows - row));
        piece.hash += hash64(piece.place + static_cast<size_t>(row) * row_bytes, rows * row_bytes,
                             static_cast<uint64_t>(piece.first_row + row));
    }
}

void WeightReader::take_hash(const Piece& piece) {
    tensor_hash_ += piece.hash;
    done_bytes_ += piece.bytes;
    if (piece.first_row + piece.rows < static_cast<int64_t>(piece.planned->tensor->rows())) return;
    fingerprint_->update(&tensor_hash_, sizeof tensor_hash_);
    tensor_hash_ = 0;
}

}  // namespace treadle
