// Loading into the store, and the choice of the tier.
#include "cpu/weight_store.h"

#include "base/limits.h"

namespace treadle::cpu {

Status CpuWeightStore::load_weight(WeightSource& source, WeightUse use, WeightId* out, Error* error) {
    if (weights_.size() >= limits::tensors_max) {
        return fail(error, Status::LIMIT, "tensor %s: a model may have %llu tensors", source.name,
                    static_cast<unsigned long long>(limits::tensors_max));
    }
    StoredWeight weight{
        std::pmr::string(source.name, &memory_.other), use, static_cast<int32_t>(source.columns), {}};
    TREADLE_TRY(
        pack_weight(source, use, progress_, &memory_.weights, &memory_.scratch, &weight.packed, error));
    const size_t bytes = weight.packed.bytes();
    weights_.push_back(std::move(weight));
    bytes_ += bytes;
    *out = static_cast<WeightId>(weights_.size() - 1);
    return Status::OK;
}

const StoredWeight* CpuWeightStore::find(WeightId id) const {
    return id >= 0 && static_cast<size_t>(id) < weights_.size() ? &weights_[static_cast<size_t>(id)]
                                                                : nullptr;
}

Status make_cpu_weight_store(CpuTier tier, const ProgressHook& progress, MemorySet& memory,
                             Owned<WeightStore>* out, Error* error) {
    if (tier < CpuTier::automatic || tier > CpuTier::avx512)
        return fail(error, Status::INVALID_ARGUMENT, "tier %d is unknown", static_cast<int>(tier));
    const Kernels& kernels = kernels_of(tier);
    if (!cpu_has(tier))
        return fail(error, Status::INVALID_ARGUMENT, "tier %s: this processor lacks it", kernels.tier);
    *out = make_owned<CpuWeightStore>(&memory.other, kernels, progress, memory);
    return Status::OK;
}

}  // namespace treadle::cpu
