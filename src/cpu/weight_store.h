// The packed weights of one model on the CPU. Filled once while the model is loaded, then only read, by all
// of its backends.
//
// Invariant: ids are handed out in order from 0; what was allocated stays where it is until the store goes.
#pragma once

#include <memory_resource>
#include <string>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/kernels.h"
#include "cpu/pack.h"

namespace treadle::cpu {

struct StoredWeight {
    std::pmr::string name;
    WeightUse use;
    int32_t columns;
    PackedWeight packed;
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
    const Kernels& kernels_;
    MemorySet& memory_;
    std::pmr::vector<StoredWeight> weights_;
    std::pmr::vector<AlignedArray<uint8_t>> slabs_;  // one for each call of allocate
    size_t allocated_ = 0;                           // weights that have their memory
    size_t bytes_ = 0;
};

}  // namespace treadle::cpu
