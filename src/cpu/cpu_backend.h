// The CPU backend's door: a store that packs weights for this machine's best kernels and makes backends for
// engines. The api layer calls it when a model is loaded on the CPU; everything else is behind
// ops/backend.h.
#pragma once

#include <cstdint>

#include "base/memory.h"
#include "cpu/tiers.h"
#include "ops/backend.h"

namespace treadle::cpu {

// INVALID_ARGUMENT: a tier that this machine or build lacks. `memory` must outlive the store: packed weights are
// of kind weights, the rest is other.
[[nodiscard]] Status make_cpu_weight_store(CpuTier tier, MemorySet& memory, Owned<WeightStore>* out,
                                           Error* error);

}  // namespace treadle::cpu
