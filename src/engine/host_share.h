// How much of the time the host gives to steps: a game that steps 4 ms of every 16.7 gives a quarter. A target for the time
// between tokens is meant as users feel it, so a pass may take only the host's share of it. The engine tells when steps begin
// and end.
//
// Invariant: 0 < share() <= 1, whatever the clock does; one long pause (a level that loads) moves it little.
#pragma once

#include <algorithm>
#include <cstdint>

namespace treadle {

class HostShare {
public:
    // `wanted`: the last step left work undone, so that the pause since then was the host's choice.
    void begin_step(int64_t now_ns, bool wanted) {
        if (wanted && steps_ > 0) {
            const auto busy = static_cast<double>(std::max<int64_t>(busy_ns_, 1));
            const double wall = std::max(static_cast<double>(now_ns - start_ns_), busy);
            const double usual = steps_ > 1 ? wall_sum_ / weight_ : wall;
            wall_sum_ = wall_sum_ * kept + std::min(wall, std::max(usual * outlier, busy));
            busy_sum_ = busy_sum_ * kept + busy;
            weight_ = weight_ * kept + 1;
        }
        start_ns_ = now_ns;
    }
    void end_step(int64_t now_ns) {
        busy_ns_ = now_ns - start_ns_;
        steps_++;
    }
    double share() const { return wall_sum_ > 0 ? busy_sum_ / wall_sum_ : 1; }

private:
    static constexpr double kept = 15.0 / 16;
    static constexpr double outlier = 4;  // times the usual pause, at most

    int64_t start_ns_ = 0;
    int64_t busy_ns_ = 0;
    int64_t steps_ = 0;
    double busy_sum_ = 0;
    double wall_sum_ = 0;
    double weight_ = 0;
};

}  // namespace treadle
