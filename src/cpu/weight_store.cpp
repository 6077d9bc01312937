// Loading into the store, and the choice of the tier.
#include "cpu/weight_store.h"

#include <algorithm>

#include "base/limits.h"
#include "base/platform.h"

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

// One slab, so that the system can merge its pages to large ones, and the memory is refused before anything is read.
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

PageMerger::PageMerger(Memory& weights, std::span<AlignedArray<uint8_t>> slabs,
                       std::pmr::memory_resource* memory)
    : weights_(weights), slabs_(slabs) {
    constexpr int32_t threads = 2;  // the caller of the pool, who does nothing here, counts
    Error no_thread;
    if (ThreadPool::create(memory, threads, merge_one, this, &pool_, &no_thread) == Status::OK)
        pool_->open(threads);
}

// Who reads a piece waits until it is merged, so pauses are most of the time.
bool PageMerger::merge_one(void* self, int32_t) {
    constexpr int32_t pauses = 4;  // times the time that merging takes
    auto& merger = *static_cast<PageMerger*>(self);
    if (merger.slab_ == merger.slabs_.size()) return false;
    sleep_ns(merger.pause_ns_);
    AlignedArray<uint8_t>& slab = merger.slabs_[merger.slab_];
    uint8_t* const from = slab.data() + merger.at_;
    const size_t to_next = large_page_bytes - reinterpret_cast<uintptr_t>(from) % large_page_bytes;
    const size_t bytes = std::min(slab.size() - merger.at_, to_next);
    const ClockHook clock = system_clock();
    const int64_t begun = clock.now();
    merger.weights_.settle(from, bytes, true);
    merger.pause_ns_ = pauses * (clock.now() - begun);
    merger.at_ += bytes;
    if (merger.at_ == slab.size()) {
        merger.at_ = 0;
        ++merger.slab_;
    }
    return true;
}

void CpuWeightStore::settle(bool own_threads) {
    if (!memory_.weights.settles()) return;
    if (own_threads) {
        merger_ = make_owned<PageMerger>(&memory_.other, memory_.weights, slabs_, &memory_.other);
        return;
    }
    for (AlignedArray<uint8_t>& slab : slabs_) memory_.weights.settle(slab.data(), slab.size(), false);
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
