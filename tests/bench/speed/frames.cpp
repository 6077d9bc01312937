// A sequence that generates beside a game's frames.
#include <sys/resource.h>

#include <algorithm>

#include "frames/frame_loop.h"
#include "speed.h"

namespace treadle::bench {
namespace {

double process_cpu_s() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

std::string list_of_ms(const std::vector<Frame>& frames, double Frame::*part) {
    std::string list;
    char digits[32];
    for (const Frame& frame : frames) {
        std::snprintf(digits, sizeof digits, "%s%.3f", list.empty() ? "" : ", ", 1e3 * (frame.*part));
        list += digits;
    }
    return "[" + list + "]";
}

// As a character of a game would talk: who is done goes on with the next answer.
class Talker {
public:
    Talker(const LoadedModel& model, int32_t prompt)
        : host_(model.handle(), room_for(1, model.context())), prompt_(prompt), model_(model) {}

    void step(int64_t budget_us) {
        if (host_.live().empty()) submit();
        tokens_ += host_.step(budget_us).tokens_produced;
    }
    void start() {
        while (tokens_ == 0) step(0);
        tokens_ = 0;
    }
    int32_t tokens() const { return tokens_; }

private:
    void submit() {
        Ask ask;
        ask.prompt = shared_prompt(prompt_, 0, model_.vocabulary());
        ask.max_tokens = model_.context() - prompt_;
        host_.submit(ask);
    }

    Host host_;
    int32_t prompt_;
    const LoadedModel& model_;
    int32_t tokens_ = 0;
};

}  // namespace

Json run_frame_task(const LoadedModel& model, const FrameTask& task) {
    std::unique_ptr<Talker> talker;
    if (task.budget_us > 0) {
        talker = std::make_unique<Talker>(model, task.prompt);
        talker->start();
    }
    double step_s = 0;
    const double cpu_begin_s = process_cpu_s();
    const FrameLoop loop = run_frames(task.frames, 1e-6 * task.frame_us, task.sweeps, [&] {
        if (!talker) return;
        const double begin_s = now_s();
        talker->step(task.budget_us);
        step_s += now_s() - begin_s;
    });
    // What the host's own work took is its thread's time without the steps, in which that thread computes all the time.
    const double host_s = loop.host_cpu_s - std::min(step_s, loop.host_cpu_s);
    Json json;
    json.raw("work_ms", list_of_ms(loop.frames, &Frame::work_s));
    json.raw("frame_ms", list_of_ms(loop.frames, &Frame::frame_s));
    json.add("seconds", loop.seconds).add("ticks_missed", loop.ticks_missed);
    json.add("other_cpu_s", process_cpu_s() - cpu_begin_s - host_s);
    json.add("tokens", talker ? talker->tokens() : 0);
    return json;
}

}  // namespace treadle::bench
