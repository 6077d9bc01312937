// The words of the AVX-512 tier, for test_lanes.cpp, which calls them only where the CPU has it.
#include "cpu/lanes_dot_avx512.h"
#include "lanes_words.h"

#define TREADLE_TEST_TIER avx512
#include "lanes_words.inl"

LanesWords avx512_lanes_words() { return words::all(); }
