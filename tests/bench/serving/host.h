// A host for the benches: it owns an engine, steps it, polls it, and notes when which token came. Used by every scenario; it
// calls engine.h alone, as any program that links the library would.
//
// Invariant: a token's time is taken right after the poll that handed it over, so it is when a user could have seen it.
#pragma once

#include <engine.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "clock.h"

namespace treadle::bench {

constexpr int32_t block_tokens = 16;

[[noreturn]] void give_up(const std::string& why);

// Ends the program on a failure: a benchmark has nothing to save.
class Checked {
public:
    Checked() { engine_error_init(&error_, sizeof error_); }
    operator engine_error*() { return &error_; }  // NOLINT: that is what it is for
    void operator()(engine_status status) const;

private:
    engine_error error_;
};

// What to ask of an engine: one request.
struct Ask {
    std::vector<int32_t> prompt;
    int32_t max_tokens = 1;
    int32_t samples = 1;
    int32_t priority = ENGINE_PRIORITY_NORMAL;
    float temperature = 0;
    uint64_t seed = 0;
    bool prefix_cache = true;
    bool keep = false;
};

struct Answer {
    struct Sequence {
        std::vector<int32_t> tokens;
        std::vector<double> times_s;  // when each was polled
        bool finished = false;
        int32_t reason = ENGINE_FINISH_NONE;
    };
    engine_request id = 0;
    double asked_s = 0;  // when its user sent it; the host may set it to earlier than the submission
    int32_t prompt_tokens = 0;
    int32_t cached_tokens = 0;  // of the prompt, found when it started
    std::vector<Sequence> sequences;
    bool finished = false;
    double finished_s = 0;

    double first_token_s() const { return sequences[0].times_s.front() - asked_s; }
};

engine_params default_params();

class Host {
public:
    Host(engine_model* model, const engine_params& params);
    ~Host();
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;

    // Returns the answer's place in answers().
    size_t submit(const Ask& ask);
    // The same, but a refusal is answered: false and nothing happened.
    bool try_submit(const Ask& ask);

    // A step and a poll of all there is. Gives up when the engine has nothing to do although answers are missing.
    engine_step_report step(int64_t budget_us = 0);
    void finish_all();
    void cancel(size_t answer);
    void release(size_t answer);

    const std::vector<Answer>& answers() const { return answers_; }
    Answer& answer(size_t i) { return answers_[i]; }
    const std::vector<size_t>& live() const { return live_; }  // places of the unfinished, in order
    engine_info about() const;
    engine_stats stats();
    engine_request_info info(size_t answer);
    std::vector<int32_t> sequence_tokens(size_t answer, int32_t sequence);
    std::string trace();  // JSON, as far as engine_params.trace_events reaches
    void write_trace(const std::string& path);
    double step_s() const { return step_s_; }  // wall time of the last engine_step alone

private:
    engine_status enter(const Ask& ask, engine_error* error);
    size_t poll();
    void take(const engine_event& event, double time_s);

    engine* engine_ = nullptr;
    std::vector<Answer> answers_;
    std::vector<size_t> live_;
    double step_s_ = 0;
};

}  // namespace treadle::bench
