// The clock of the benches.
#pragma once

#include <chrono>
#include <thread>

namespace treadle::bench {

inline double now_s() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since).count();
}

inline void sleep_until(double time_s) {
    const double left_s = time_s - now_s();
    if (left_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left_s));
}

}  // namespace treadle::bench
