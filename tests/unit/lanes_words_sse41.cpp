// The words of the SSE4.1 tier, for test_lanes.cpp, which calls them only where the CPU has it.
#include "cpu/lanes_dot_sse41.h"
#include "lanes_words.h"

#define TREADLE_TEST_TIER sse41
#include "lanes_words.inl"

LanesWords sse41_lanes_words() { return words::all(); }
