// The simulator: drives the real engine, scheduler and cache with a fake model and a virtual clock through seeded random
// workloads, and checks after every step what must always hold. A world is one engine and its life; main.cpp runs one after
// another.
//
//     world:   choose parameters ─► { actions of the host ─► step ─► checks ─► poll ─► checks } … ─► drain ─► checks ─► destroy
//
// Invariant: a world is a function of its seed. No wall clock, no other generator, no order that depends on addresses.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "driver.h"

namespace treadle::test {

// What happened in all worlds so far, so that a reader sees that the workload reaches what it is meant to reach.
struct Coverage {
    int64_t worlds = 0, steps = 0, passes = 0, tiles = 0, tokens = 0, events = 0;
    int64_t submitted = 0, refused_long = 0, refused_full = 0, refused_memory = 0;
    int64_t ended = 0, stopped = 0, filled = 0, cancelled = 0, not_numbers = 0, backend_failures = 0;
    int64_t cancelled_waiting = 0, cancelled_prompt = 0, cancelled_generating = 0, cancelled_in_pass = 0;
    int64_t released_live = 0, kept = 0, cut_steps = 0, pendings = 0, jumps = 0, room_full = 0,
            overtaken_most = 0;
    int64_t trimmed = 0, trims_in_pass = 0;
    int64_t copies = 0, rows_without_write = 0, preemptions = 0, recomputed = 0, cached = 0, evicted = 0;

    struct Line {
        const char* name;
        int64_t value;
        bool expected;  // a long run that never gets there tests less than it says
    };
    std::vector<Line> lines() const;
};

// A check that failed; what() says which, World::story() how to get there.
struct SimulationFailure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class World {
public:
    World(uint64_t seed, Coverage* coverage);

    void run();  // throws SimulationFailure
    int64_t steps() const { return step_; }
    std::string story() const;  // parameters and the last things that happened

private:
    struct LiveSequence {
        explicit LiveSequence(SoloSequence&& run) : solo(std::move(run)) {}
        SoloSequence solo;      // as far as events have told
        bool told_end = false;  // its final event was polled
        std::optional<std::string> end_text;
        int32_t told_tokens = 0;
        int32_t told_progress = 0;
    };
    struct Live {
        uint64_t number() const { return asked.number; }
        bool over() const { return state == SequenceState::finished; }
        Submission asked;
        uint64_t id = 0;
        int32_t limit = 0;
        std::vector<LiveSequence> sequences;
        bool cancel_asked = false;
        bool released = false;  // by the host: no event may come
        bool told_end = false;  // its last event was polled
        bool started = false;
        int32_t generated = 0;  // by all its sequences, as request_info said after the last step
        SequenceState state = SequenceState::waiting;
        bool paused = false;
        bool waited_for_poll = false;
        int32_t prompt_done = 0;
        int64_t passes_without_token = 0;
        int64_t overtaken = 0;
    };
    using Lives = std::map<uint64_t, Live>;  // by number, which is the order of submission

    // actions.cpp: what the host does. To add one: a member function, a line in the table.
    struct Action {
        const char* name;
        uint32_t weight;
        void (World::*run)();
    };
    static const Action actions[];
    static size_t action_count();
    void act();
    Submission make_submission();
    std::vector<int32_t> make_prompt(int32_t tokens_max);
    void make_stops(Submission* asked);
    bool submit(Submission asked);
    void begin_alone(Live* live);
    Live* pick(bool (*wanted)(const Live&));
    void act_submit();
    void act_submit_burst();
    void act_submit_too_long();
    void act_submit_without_memory();
    void act_cancel();
    void act_cancel_all();
    void act_release();
    void act_release_kept();
    void act_poll_some();
    void act_withhold_polls();
    void act_trim();
    void act_jump_clock();
    void act_change_budget();
    void act_ask_stale();
    void act_compare_tokens();
    void act_break_backend();

    // simulator.cpp: a life.
    void choose_parameters();
    void step(int64_t budget_us);
    void poll(size_t capacity);
    void drain();
    void tear_down();
    int32_t turn_passes() const;

    // checks.cpp: what must hold.
    [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char* format, ...) const;
    void check_step(int64_t budget_us, int64_t allocations_before, int64_t jumps_before);
    void check_counters();
    void check_pace(int64_t budget_us, int64_t jumps_before);
    void check_sleep();
    void check_requests();
    void check_request(Live& live, const RequestInfo& info);
    void check_waiting(Live& live, const RequestInfo& info);
    void check_first();
    void check_broken();
    void check_event(const PolledEvent& event);
    void check_token(const Live& live, LiveSequence& sequence, const PolledEvent& event);
    void check_finish(Live& live, LiveSequence& sequence, const PolledEvent& event);
    void check_reason(const Live& live, LiveSequence& sequence, const PolledEvent& event);
    void check_tokens(const Live& live, bool whole);
    void check_pool_whole();
    void check_all_trimmed();
    int64_t activity() const;
    const Live* first_in_rank() const;

    void note(const char* what, int64_t a = 0, int64_t b = 0);
    int32_t between(int32_t low, int32_t high) {  // both included
        return low + static_cast<int32_t>(random_.below(static_cast<uint32_t>(high - low + 1)));
    }
    bool one_in(uint32_t count) { return random_.below(count) == 0; }

    struct Note {
        int64_t step;
        const char* what;
        int64_t a, b;
    };

    uint64_t seed_;
    Random random_;
    Coverage* coverage_;
    FakeControl control_;
    FakeModelOptions model_options_;
    std::unique_ptr<Driver> driver_;
    std::vector<uint32_t> weights_;                 // per action, of this world
    std::array<std::vector<int32_t>, 3> families_;  // prompts begin with a piece of one of these
    int64_t life_steps_ = 0;
    int32_t actions_per_step_ = 1;
    int32_t typical_tokens_ = 8;
    int32_t longest_prompt_ = 0;
    bool may_break_ = false;

    int64_t step_ = 0;
    int64_t budget_us_ = 0;
    int64_t withhold_polls_until_ = 0;
    bool draining_ = false;
    Status broken_ = Status::OK;
    uint64_t next_number_ = 1;
    Lives lives_;
    std::vector<uint64_t> stale_ids_;
    std::vector<PolledEvent> polled_;
    StepReport report_;
    bool host_acted_ = true;  // since the last step, something that may make work
    int32_t wakes_ = 0;       // between the last step and the one before
    bool slept_ = false;      // the last step said that there is no work
    bool work_promised_ = false;
    int64_t last_activity_ = 0;
    int64_t idle_steps_ = 0;
    uint64_t first_ = 0;          // number of the first in rank that could go on, after the last step
    int64_t first_progress_ = 0;  // tokens that it has got, and positions of its prompt
    int64_t passes_without_progress_ = 0;  // of it
    int64_t passes_ = 0, tokens_produced_ = 0, tokens_computed_ = 0, submitted_ = 0, preemptions_ = 0;
    int64_t drain_passes_left_ = 0;
    bool was_paused_ = false;  // somebody, ever: what was computed may be computed again
    std::array<Note, 64> notes_{};
    size_t noted_ = 0;
};

}  // namespace treadle::test
