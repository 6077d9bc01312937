// What the micro benches of kernels share: rows of tiers that this processor lacks.
#pragma once

#include <benchmark/benchmark.h>

#include "cpu/tiers.h"

namespace treadle::bench {

// False where this processor lacks the tier, said in its row.
inline bool can_run(cpu::CpuTier tier, benchmark::State& state) {
    if (!cpu::cpu_has(tier)) state.SkipWithError("this processor lacks the tier");
    return cpu::cpu_has(tier);
}

}  // namespace treadle::bench
