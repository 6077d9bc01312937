// The words of the AVX-512 tier, for test_lanes.cpp, which calls them only where the CPU has it. The pragmas stand in for
// compiler flags and cover this file's own code only.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif

#include "cpu/lanes_avx512.h"
#include "lanes_words.h"

#define TREADLE_TEST_TIER avx512
#include "lanes_words.inl"

LanesWords avx512_lanes_words() { return words::all(); }

#if defined(__clang__)
#pragma clang attribute pop
#endif
