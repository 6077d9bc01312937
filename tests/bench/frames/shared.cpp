// The frame loop as a shared library with a C interface, for peer_llama.py.
#include "frame_loop.h"

// work_s and frame_s (frames) receive the seconds of each frame; facts (3): the seconds of all, the host's own processor time,
// the ticks missed.
extern "C" __attribute__((visibility("default"))) void frame_host_run(int32_t frames, double period_s,
                                                                      int32_t sweeps, double* work_s,
                                                                      double* frame_s, double* facts) {
    const treadle::bench::FrameLoop loop = treadle::bench::run_frames(frames, period_s, sweeps, [] {});
    for (size_t i = 0; i < loop.frames.size(); i++) {
        work_s[i] = loop.frames[i].work_s;
        frame_s[i] = loop.frames[i].frame_s;
    }
    facts[0] = loop.seconds;
    facts[1] = loop.host_cpu_s;
    facts[2] = loop.ticks_missed;
}
