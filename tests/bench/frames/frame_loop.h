// A game's main loop, as far as a benchmark needs one: 60 times a second some work of its own, then whatever else is asked
// of it. treadle_bench runs it with an engine to step; peer_llama.py runs the same code, through shared.cpp, while llama.cpp
// generates in a thread of its own.
//
//     tick              tick              tick
//      │ work │ after │  │ work │ after │  │      frame = from the tick to the end of what is done in it, late wake-up included
//
// Invariant: the work of a frame is a count of sweeps, not a time, so that whoever takes the core or the caches away shows.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace treadle::bench {

struct Frame {
    double work_s;   // of the host's own work
    double frame_s;  // from the tick to the end
};

struct FrameLoop {
    std::vector<Frame> frames;
    double seconds = 0;        // from the first tick to the end of the last frame's period
    double host_cpu_s = 0;     // of this thread alone, `after` included
    int32_t ticks_missed = 0;  // passed while an earlier frame was still under way
};

// Sweeps over the host's particles that take so long here, alone.
int32_t sweeps_of(double work_s);

// Frames whose own work is `sweeps`, each followed by after().
FrameLoop run_frames(int32_t frames, double frame_s, int32_t sweeps, const std::function<void()>& after);

}  // namespace treadle::bench
