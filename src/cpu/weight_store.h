// The packed weights of one model on the CPU. Filled once while the model is loaded, then only read, by all
// of its backends.
//
// Invariant: ids are handed out in order from 0; what was allocated stays where it is until the store goes.
#pragma once

#include <memory_resource>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/kernels.h"
#include "cpu/pack.h"
#include "cpu/thread_pool.h"

namespace treadle::cpu {

struct StoredWeight {
    std::pmr::string name;
    WeightUse use;
    int32_t columns;
    PackedWeight packed;
};

// Puts weights that are complete on large pages, which are read faster: one after another, while engines use them already.
class PageMerger {
public:
    // On a thread of its own, which is joined when it goes. Without a thread to be had it does nothing.
    PageMerger(Memory& weights, std::span<AlignedArray<uint8_t>> slabs, std::pmr::memory_resource* memory);

private:
    static bool merge_one(void* self, int32_t thread);

    Memory& weights_;
    std::span<AlignedArray<uint8_t>> slabs_;
    size_t slab_ = 0;  // the next piece: of that slab, from that byte on
    size_t at_ = 0;
    int64_t pause_ns_ = 20'000'000;  // before it: a first token comes first
    Owned<ThreadPool> pool_;         // last: its thread looks at the rest
};

class CpuWeightStore final : public WeightStore {
public:
    CpuWeightStore(const Kernels& kernels, MemorySet& memory)
        : kernels_(kernels), memory_(memory), weights_(&memory.other), slabs_(&memory.other) {}

    [[nodiscard]] Status add(const WeightShape& tensor, WeightUse use, WeightId* out, Error* error) override;
    void allocate() override;
    void pack(WeightId id, int64_t first_row, int64_t rows, const void* bytes) override;
    size_t bytes() const override { return bytes_; }
    const char* numerics_id() const override {
        return "cpu-1";
    }  // one for all tiers: they are equal by bytes
    const char* tier() const override { return kernels_.tier; }
    [[nodiscard]] Status make_backend(const BackendParams& params, MemorySet& memory, Owned<Backend>* out,
                                      Error* error) override;

    const Kernels& kernels() const { return kernels_; }
    const StoredWeight* find(WeightId id) const;  // null: unknown

private:
    void settle(bool own_threads);

    const Kernels& kernels_;
    MemorySet& memory_;
    std::pmr::vector<StoredWeight> weights_;
    std::pmr::vector<AlignedArray<uint8_t>> slabs_;  // one for each call of allocate
    size_t allocated_ = 0;                           // weights that have their memory
    size_t bytes_ = 0;
    std::once_flag settled_;  // when the first backend is made: all weights are there
    Owned<PageMerger> merger_;
};

}  // namespace treadle::cpu
