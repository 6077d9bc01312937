// The loop and the work of its frames.
#include "frame_loop.h"

#include <time.h>

#include <algorithm>

#include "clock.h"

namespace treadle::bench {
namespace {

double thread_cpu_s() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// What the host computes: particles that fall and bounce, 384 KiB of them.
class Particles {
public:
    void sweep() {
        for (size_t i = 0; i < height_.size(); i++) {
            speed_[i] -= 9.81f * time_step_;
            const float next = height_[i] + speed_[i] * time_step_;
            speed_[i] = next < 0 ? -0.9f * speed_[i] : speed_[i];
            height_[i] = std::max(next, 0.0f) + 1e-3f * wind_[i];
        }
        asm volatile("" : : "r"(height_.data()) : "memory");  // somebody might look at them
    }

private:
    static constexpr size_t count = 32768;
    static constexpr float time_step_ = 1.0f / 60;
    std::vector<float> height_ = std::vector<float>(count, 10.0f);
    std::vector<float> speed_ = std::vector<float>(count, 0.0f);
    std::vector<float> wind_ = std::vector<float>(count, 0.5f);
};

}  // namespace

int32_t sweeps_of(double work_s) {
    constexpr int32_t tries = 1000, sweeps = 16;  // over some moments: others take the core now and then
    Particles particles;
    double best_s = 1e300;
    for (int32_t i = 0; i < tries; i++) {
        const double begin_s = now_s();
        for (int32_t sweep = 0; sweep < sweeps; sweep++) particles.sweep();
        best_s = std::min(best_s, now_s() - begin_s);
    }
    return std::max(1, static_cast<int32_t>(work_s / best_s * sweeps));
}

FrameLoop run_frames(int32_t frames, double frame_s, int32_t sweeps, const std::function<void()>& after) {
    Particles particles;
    FrameLoop loop;
    loop.frames.reserve(static_cast<size_t>(frames));
    const double cpu_begin_s = thread_cpu_s(), begin_s = now_s();
    double tick_s = begin_s;
    for (int32_t i = 0; i < frames; i++) {
        const double work_begin_s = now_s();
        for (int32_t sweep = 0; sweep < sweeps; sweep++) particles.sweep();
        const double work_end_s = now_s();
        after();
        const double end_s = now_s();
        loop.frames.push_back({work_end_s - work_begin_s, end_s - tick_s});
        tick_s += frame_s;
        while (tick_s < end_s) {
            tick_s += frame_s;
            loop.ticks_missed++;
        }
        sleep_until(tick_s);
    }
    loop.seconds = now_s() - begin_s;
    loop.host_cpu_s = thread_cpu_s() - cpu_begin_s;
    return loop;
}

}  // namespace treadle::bench
