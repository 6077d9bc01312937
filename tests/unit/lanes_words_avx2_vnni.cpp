// The words of the AVX2-VNNI tier, for test_lanes.cpp, which calls them only where the CPU has it.
#include "cpu/lanes_dot_avx2_vnni.h"
#include "lanes_words.h"

#define TREADLE_TEST_TIER avx2_vnni
#include "lanes_words.inl"

LanesWords avx2_vnni_lanes_words() { return words::all(); }
