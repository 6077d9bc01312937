// What the processor and the operating system offer. Asked once per store; nothing is remembered.
#include "cpu/kernels.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace treadle::cpu {

#if defined(__x86_64__) || defined(__i386__)

bool cpu_has_avx2() {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
    constexpr unsigned needed = bit_FMA | bit_OSXSAVE | bit_AVX | bit_F16C;
    if ((ecx & needed) != needed) return false;

    unsigned saved_low = 0;  // which registers the operating system saves: XMM and YMM are bits 1 and 2
    unsigned saved_high = 0;
    __asm__ volatile("xgetbv" : "=a"(saved_low), "=d"(saved_high) : "c"(0));
    if ((saved_low & 6) != 6) return false;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & bit_AVX2) != 0;
}

#else

bool cpu_has_avx2() { return false; }

#endif

}  // namespace treadle::cpu
