// FloatMode gives a thread the floating-point mode of the numerics contract for as long as the object lives: round to nearest,
// no flush to zero, exceptions masked. Each public call that computes and each body of a parallel_for makes one first.
//
// Invariant: the host's mode and sticky flags come back as they were.
#pragma once

#include <xmmintrin.h>

namespace treadle {

class FloatMode {
public:
    FloatMode() : host_mode_(_mm_getcsr()) { _mm_setcsr(mode); }
    ~FloatMode() { _mm_setcsr(host_mode_); }
    FloatMode(const FloatMode&) = delete;
    FloatMode& operator=(const FloatMode&) = delete;

private:
    static constexpr unsigned mode = 0x1F80;
    unsigned host_mode_;
};

}  // namespace treadle
