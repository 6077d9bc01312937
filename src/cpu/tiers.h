// The tiers: the same kernels, compiled for more and more of what processors have. Code of a tier lives in the namespace of its
// name, in files *_name.cpp, which alone are compiled with its instructions; equal by bytes to scalar, the specification.
#pragma once

#include <cstdint>

namespace treadle::cpu {

// A row for each, slower ones first:
//
//     scalar       plain C++
//     sse41        SSSE3, SSE4.1
//     avx2         AVX2, FMA, F16C
//     avx2_vnni    the same with AVX-VNNI
//     avx512       AVX-512 (F, BW, DQ, VL) with VNNI
#define TREADLE_CPU_TIERS(X) X(scalar) X(sse41) X(avx2) X(avx2_vnni) X(avx512)

enum class CpuTier : int32_t {
    automatic,  // the last that the processor has
#define TREADLE_CPU_TIER_VALUE(name) name,
    TREADLE_CPU_TIERS(TREADLE_CPU_TIER_VALUE)
#undef TREADLE_CPU_TIER_VALUE
};

// Whether the processor has all its instructions and the operating system saves the registers. Nothing is remembered.
bool cpu_has(CpuTier tier);

CpuTier best_tier();

}  // namespace treadle::cpu
