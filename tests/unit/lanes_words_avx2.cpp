// The words of the AVX2 tier and the CPU's own FMA, for test_lanes.cpp, which calls them only where the CPU has both.
#include "cpu/lanes_dot_avx2.h"
#include "lanes_words.h"

#define TREADLE_TEST_TIER avx2
#include "lanes_words.inl"

LanesWords avx2_lanes_words() { return words::all(); }

void hardware_fma(const float* a, const float* b, const float* c, float* out, int count) {
    for (int i = 0; i < count; i += 8)
        _mm256_storeu_ps(
            out + i, _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), _mm256_loadu_ps(c + i)));
}
