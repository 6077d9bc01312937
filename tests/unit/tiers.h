// The tiers that this processor runs, for tests that compare them, and their kernels. An avx2_vnni tier that AVX-512 runs is
// among the kernels, so that a processor with either form of its instruction tests it.
#pragma once

#include <vector>

#include "cpu/kernels.h"

namespace treadle::cpu::avx2_vnni_on_avx512 {
extern const Kernels kernels;
}

namespace treadle::test {

inline std::vector<cpu::CpuTier> runnable_tiers() {
    std::vector<cpu::CpuTier> all;
#define TREADLE_TEST_TIER_RUNS(name) \
    if (cpu::cpu_has(cpu::CpuTier::name)) all.push_back(cpu::CpuTier::name);
    TREADLE_CPU_TIERS(TREADLE_TEST_TIER_RUNS)
#undef TREADLE_TEST_TIER_RUNS
    return all;
}

inline std::vector<const cpu::Kernels*> runnable_kernels() {
    std::vector<const cpu::Kernels*> all;
    for (const cpu::CpuTier tier : runnable_tiers()) all.push_back(&cpu::kernels_of(tier));
    if (cpu::cpu_has(cpu::CpuTier::avx512)) all.push_back(&cpu::avx2_vnni_on_avx512::kernels);
    return all;
}

}  // namespace treadle::test
