// Every word of the 16-lane vocabulary as a function from bits to bits, so that test_lanes.cpp can
// compare tiers. One list, TREADLE_TEST_WORDS, compiled per tier by lanes_words.inl.
#pragma once

#include <cstdint>

#include "cpu/tiers.h"

struct LanesInput {
    alignas(64) uint32_t a[16];  // floats or integers, as the word takes them
    alignas(64) uint32_t b[16];
    alignas(64) uint32_t c[16];
    int32_t count;  // 0 .. 16
};

struct LanesWord {
    const char* name;
    bool gives_f32;  // then NaNs of different bits are equal
    bool gives_f16;
    void (*run)(const LanesInput& in, uint32_t* out);  // out (16), zero before
};

constexpr int lanes_words_max = 64;

struct LanesWords {
    int count;
    LanesWord words[lanes_words_max];
    void (*fma)(const float* a, const float* b, const float* c, float* out);  // 16 of each
};

#define TREADLE_LANES_WORDS_OF(tier) LanesWords tier##_lanes_words();
TREADLE_CPU_TIERS(TREADLE_LANES_WORDS_OF)
#undef TREADLE_LANES_WORDS_OF
LanesWords avx2_vnni_on_avx512_lanes_words();

// out[i] = a[i] · b[i] + c[i] by the CPU's own FMA.
void hardware_fma(const float* a, const float* b, const float* c, float* out, int count);
