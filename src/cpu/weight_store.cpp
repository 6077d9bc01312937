// Loading into the store, and the choice of the tier.
#include "cpu/weight_store.h"

#include "base/limits.h"

namespace treadle::cpu {

Status CpuWeightStore::add(const WeightShape& tensor, WeightUse use, WeightId* out, Error* error) {
    if (weights_.size() >= limits::tensors_max) {
        return fail(error, Status::LIMIT, "tensor %s: a model may have %llu tensors", tensor.name,
                    static_cast<unsigned long long>(limits::tensors_max));
    }
    PackedWeight packed;
    TREADLE_TRY(lay_out_weight(tensor, use, &packed, error));
    weights_.push_back(
        {std::pmr::string(tensor.name, &memory_.other), use, static_cast<int32_t>(tensor.columns), packed});
    *out = static_cast<WeightId>(weights_.size() - 1);
    return Status::OK;
}

// One slab, so that the system can give it large pages, and the memory is refused before anything is read.
void CpuWeightStore::allocate() {
    size_t bytes = 0;
    for (size_t i = allocated_; i < weights_.size(); ++i) bytes += weights_[i].packed.bytes;
    AlignedArray<uint8_t> slab(&memory_.weights, bytes);
    slabs_.push_back(std::move(slab));
    uint8_t* place = slabs_.back().data();
    for (; allocated_ < weights_.size(); ++allocated_) {
        PackedWeight& packed = weights_[allocated_].packed;
        place_weight(place, &packed);
        place += packed.bytes;
    }
    bytes_ += bytes;
}

void CpuWeightStore::pack(WeightId id, int64_t first_row, int64_t rows, const void* bytes) {
    pack_rows(weights_[static_cast<size_t>(id)].packed, first_row, rows, bytes);
}

const StoredWeight* CpuWeightStore::find(WeightId id) const {
    return id >= 0 && static_cast<size_t>(id) < weights_.size() ? &weights_[static_cast<size_t>(id)]
                                                                : nullptr;
}

Status make_cpu_weight_store(CpuTier tier, MemorySet& memory, Owned<WeightStore>* out, Error* error) {
    if (tier < CpuTier::automatic || tier > CpuTier::avx512)
        return fail(error, Status::INVALID_ARGUMENT, "tier %d is unknown", static_cast<int>(tier));
    const Kernels& kernels = kernels_of(tier);
    if (!cpu_has(tier))
        return fail(error, Status::INVALID_ARGUMENT, "tier %s: this processor lacks it", kernels.tier);
    *out = make_owned<CpuWeightStore>(&memory.other, kernels, memory);
    return Status::OK;
}

}  // namespace treadle::cpu
