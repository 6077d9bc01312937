// What the processor and the operating system offer, and the kernels that go with it.
#include "cpu/kernels.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace treadle::cpu {
namespace {

#if defined(__x86_64__) || defined(__i386__)

constexpr uint32_t ymm_state = 0x6;   // XMM and the upper halves of YMM
constexpr uint32_t zmm_state = 0xe6;  // masks and the rest of ZMM too

struct Features {
    uint32_t basic = 0;     // leaf 1, ecx
    uint32_t extended = 0;  // leaf 7, ebx
    uint32_t more = 0;      // leaf 7, ecx
    uint32_t newest = 0;    // leaf 7, second part, eax
    uint32_t saved = 0;     // registers that the operating system saves
};

constexpr bool has_all(uint32_t bits, uint32_t needed) { return (bits & needed) == needed; }

Features features() {
    Features found;
    uint32_t eax = 0;
    uint32_t ebx = 0;
    uint32_t ecx = 0;
    uint32_t edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &found.basic, &edx) == 0) return {};
    if (has_all(found.basic, bit_OSXSAVE)) {
        uint32_t high = 0;
        __asm__ volatile("xgetbv" : "=a"(found.saved), "=d"(high) : "c"(0));
    }
    __get_cpuid_count(7, 0, &eax, &found.extended, &found.more, &edx);
    __get_cpuid_count(7, 1, &found.newest, &ebx, &ecx, &edx);
    return found;
}

bool has_sse41(const Features& cpu) { return has_all(cpu.basic, bit_SSSE3 | bit_SSE4_1); }

bool has_avx2(const Features& cpu) {
    return has_all(cpu.basic, bit_FMA | bit_AVX | bit_F16C) && has_all(cpu.extended, bit_AVX2) &&
           has_all(cpu.saved, ymm_state);
}

bool has_avx2_vnni(const Features& cpu) { return has_avx2(cpu) && has_all(cpu.newest, bit_AVXVNNI); }

bool has_avx512(const Features& cpu) {
    constexpr uint32_t extended = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    return has_avx2(cpu) && has_all(cpu.extended, extended) && has_all(cpu.more, bit_AVX512VNNI) &&
           has_all(cpu.saved, zmm_state);
}

#else

struct Features {};

Features features() { return {}; }
bool has_sse41(const Features&) { return false; }
bool has_avx2(const Features&) { return false; }
bool has_avx2_vnni(const Features&) { return false; }
bool has_avx512(const Features&) { return false; }

#endif

}  // namespace

bool cpu_has(CpuTier tier) {
    switch (tier) {
        case CpuTier::automatic:
        case CpuTier::scalar: return true;
        case CpuTier::sse41: return has_sse41(features());
        case CpuTier::avx2: return has_avx2(features());
        case CpuTier::avx2_vnni: return has_avx2_vnni(features());
        case CpuTier::avx512: return has_avx512(features());
    }
    return false;
}

const Kernels& kernels_of(CpuTier tier) {
    switch (tier == CpuTier::automatic ? best_tier() : tier) {
#define TREADLE_CPU_TIER_KERNELS(name) \
    case CpuTier::name: return name::kernels;
        TREADLE_CPU_TIERS(TREADLE_CPU_TIER_KERNELS)
#undef TREADLE_CPU_TIER_KERNELS
        default: return scalar::kernels;
    }
}

CpuTier best_tier() {
    CpuTier best = CpuTier::scalar;
#define TREADLE_CPU_TIER_BEST(name) best = cpu_has(CpuTier::name) ? CpuTier::name : best;
    TREADLE_CPU_TIERS(TREADLE_CPU_TIER_BEST)
#undef TREADLE_CPU_TIER_BEST
    return best;
}

}  // namespace treadle::cpu
