// What the vocabularies of lanes share: lanes_scalar.h says what each word means, lanes_TIER.h says the same for its tier, and
// lanes_dot_TIER.h adds what the linear kernels need.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"

#define TREADLE_LANES_WORD [[gnu::always_inline]] static inline

// Over the rows of a tile, whose values live in registers.
#if defined(__clang__)
#define TREADLE_UNROLL _Pragma("unroll")
#else
#define TREADLE_UNROLL _Pragma("GCC unroll 8")
#endif

namespace treadle::cpu {

// Rows of activations that meet a panel at once, where the registers hold `fitting`. Results do not depend on it. Under a
// sanitizer smaller tiles compile in a minute instead of many.
constexpr int32_t tile_rows_of(int32_t fitting) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return fitting < 2 ? fitting : 2;
#else
    return fitting;
#endif
}

TREADLE_LANES_WORD int32_t bits_of_four(const int8_t* four) {
    int32_t bits;
    __builtin_memcpy(&bits, four, sizeof bits);
    return bits;
}

}  // namespace treadle::cpu
