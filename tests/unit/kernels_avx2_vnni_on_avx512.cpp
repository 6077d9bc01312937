// The avx2_vnni tier with AVX-512's form of its instruction, so that processors that have only this one test the tier: tiers.h
// and test_lanes.cpp. Its linear kernels are in linear_avx2_vnni_on_avx512.cpp.
#define avx2_vnni avx2_vnni_on_avx512

#include "cpu/kernels_avx2_vnni.cpp"
#include "lanes_words.h"

#define TREADLE_TEST_TIER avx2_vnni
#include "lanes_words.inl"

LanesWords avx2_vnni_on_avx512_lanes_words() { return words::all(); }
