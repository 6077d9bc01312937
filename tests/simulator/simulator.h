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
#include "support/fake_beam_search.h"

namespace treadle::test {

// Under a latency target a prompt gets a piece of one pass in so many, however little time there is.
constexpr int32_t passes_per_piece = 8;

// What happened in all worlds so far, so that a reader sees that the workload reaches what it is meant to reach.
struct Coverage {
    int64_t worlds = 0, steps = 0, passes = 0, targeted = 0, tiles = 0, tokens = 0, events = 0;
    int64_t submitted = 0, refused_long = 0, refused_full = 0, refused_memory = 0;
    int64_t ended = 0, stopped = 0, filled = 0, cancelled = 0, not_numbers = 0, backend_failures = 0;
    int64_t cancelled_waiting = 0, cancelled_prompt = 0, cancelled_generating = 0, cancelled_in_pass = 0;
    int64_t overdue = 0, sampled = 0, forks = 0, forks_of_ended = 0, forks_with_params = 0,
            forks_of_forks = 0;
    int64_t forks_in_prompt = 0, forks_refused = 0, forks_without_memory = 0;
    int64_t priorities_set = 0, paused_running = 0, resumed = 0, bulk_begun = 0, bulk_held_back = 0;
    int64_t lonely = 0, producers_cancelled = 0, must_be_admitted = 0;
    int64_t released_live = 0, kept = 0, cut_steps = 0, pendings = 0, jumps = 0, room_full = 0,
            overtaken_most = 0;
    int64_t trimmed = 0, trims_in_pass = 0;
    int64_t beams = 0, beams_told = 0, beams_failed = 0, beams_set_back = 0, beams_refused = 0,
            beams_counted = 0;
    int64_t pins = 0, pins_refused = 0, pins_whole = 0, pins_set_back = 0, unpinned = 0, pins_found = 0,
            shortened_by_pins = 0, forks_of_pins = 0;
    int64_t saved = 0, restored = 0, restored_over = 0, restored_text = 0, restored_elsewhere = 0,
            sessions_refused = 0;
    int64_t timed = 0, timed_cut = 0;
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
        std::string told_text;  // of the answer, a generated tail's among it
        std::string prelude;    // of a restored one: the text that must be told first
        int32_t told_tokens = 0;
        int32_t told_progress = 0;
    };
    struct Live {
        bool over() const { return state == SequenceState::finished; }
        bool may_run() const {
            return !released && !over() && !is_whole_pin() && !paused && asked.priority != Priority::paused;
        }
        // It runs: its first sequence that has not ended has a place and blocks.
        bool runs() const {
            return (state == SequenceState::prompt || state == SequenceState::generating) && !waited_for_poll;
        }
        bool is_pin() const { return asked.pin; }
        bool is_search() const { return asked.beam_width > 1; }
        bool is_whole_pin() const { return state == SequenceState::pinned; }
        uint64_t number = 0;
        Submission asked;  // of a fork: the fresh request that it equals
        CacheScope scope;  // whose blocks it may find: a private one's is its own, and its forks'
        bool fork = false;
        bool lonely_scope = false;  // nobody else may find its blocks, nor it theirs
        uint64_t forks = 0;         // made of it
        int64_t deadline_low_ns =
            INT64_MAX;  // it lies between these two, as submit read the clock in between
        int64_t deadline_high_ns = INT64_MAX;
        uint64_t id = 0;
        int32_t limit = 0;
        int32_t wanted = 0;  // what the limit would be if there were room for everything
        std::vector<LiveSequence> sequences;
        mutable std::optional<BeamOutcome> search;        // what a beam search must find, once somebody asks
        FinishReason finish_reason = FinishReason::none;  // of its first sequence
        FinishReason over_as = FinishReason::none;        // it was restored when it had ended like that
        bool admitted = false;                            // it has run
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
        int64_t passes_without_prompt = 0;  // while it was the first whose prompt was under way
        int64_t overtaken = 0;
        // Of the newest step.
        SequenceState state_before = SequenceState::waiting;
        bool ran_before = false;
        bool got_token = false;
    };
    using Lives = std::map<uint64_t, Live>;  // by number, which is the order of submission
    // Whether a request is taken, and how long it may get: as it is, and as it would be if there were room for everything.
    struct Fit {
        Status status = Status::OK;
        int32_t limit = 0;
        int32_t wanted = 0;
    };
    struct Saved {
        std::vector<std::byte> bytes;
        Submission asked;  // the fresh request that a restored one equals
        int32_t wanted = 0;
        uint64_t forks = 0;
        FinishReason over = FinishReason::none;
        std::string delivered;
    };

    // actions.cpp: what the host does. To add one: a member function, a line in the table.
    struct Action {
        const char* name;
        uint32_t weight;
        void (World::*run)();
    };
    static const Action actions[];
    static size_t action_count();
    void act();
    void act_submit();
    void act_submit_burst();
    void act_submit_large();
    void act_submit_with_producer();
    void act_submit_too_long();
    void submit_stream();
    Live* pick(bool (*wanted)(const Live&));
    void cancel(Live& live);
    void cancel_producers();
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

    // submissions.cpp
    Submission make_submission();
    std::vector<int32_t> make_prompt(int32_t tokens_max);
    void make_stops(Submission* asked);
    bool submit(Submission asked);
    bool accepted(const char* call, Status status, Status expected);
    Live& begin(Submission asked, uint64_t id, const Fit& fit, const CacheScope& scope, int64_t called_ns);
    void begin_alone(Live* live);
    void choose_order(Submission* asked);
    void act_submit_without_memory();

    // fit.cpp
    Fit fit(const Submission& asked, const CacheScope& scope, int32_t wanted) const;
    Fit fit(const Submission& asked, const CacheScope& scope) const;
    Status fit_search(const Submission& asked, bool as_many_as_fit, int32_t blocks, int32_t* limit) const;
    CacheScope scope_of(const Submission& asked) const;
    int32_t pinned_blocks(const Submission* more, const CacheScope& scope, bool whole_ones_only) const;
    int32_t shared_with_pins(std::span<const int32_t> tokens, const CacheScope& scope) const;

    // forks.cpp
    void act_fork();
    void fork(Live& parent, int32_t sequence, int32_t position, bool own);
    void check_fork_without_memory(const Live& parent, int32_t sequence, int32_t position);
    void act_fork_wrongly();
    void act_set_priority();
    void set_priority(Live& live, Priority priority);

    // beams.cpp
    void make_search(Submission* asked);
    const BeamOutcome& outcome_of(const Live& live) const;
    const BeamHypothesis* hypothesis_of(const Live& live, int32_t sequence) const;
    void check_search_token(const Live& live, LiveSequence& sequence, const PolledEvent& event);
    void check_search_reason(const Live& live, const LiveSequence& sequence, const PolledEvent& event);
    std::vector<int32_t> tokens_of_search(const Live& live, int32_t sequence) const;
    void check_units();

    // pins.cpp
    void act_pin();
    void act_unpin();
    void begin_like_a_pin(Submission* asked);
    void unpin(Live& live);
    Status refusal_of_pin(const Submission& asked, const CacheScope& scope, bool all_live);
    void check_pin(const Live& live, const RequestInfo& info);
    void check_pins();
    void check_found(Live& live, const RequestInfo& info);

    // sessions.cpp
    void act_save();
    void act_restore();
    void check_saved(const Live& live, int32_t sequence, const Saved& saved);
    void restore(const Saved& saved);
    void begin_restored(const Saved& saved, Live* live);
    void restore_elsewhere(const Saved& saved);
    void restore_damaged(const Saved& saved);
    void restore_without_memory(const Saved& saved);

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
    void check_produced();
    void check_pace(int64_t budget_us, int64_t jumps_before);
    void check_sleep();
    void check_next_step();
    void check_requests();
    void check_request(Live& live, const RequestInfo& info);
    void check_waiting(Live& live, const RequestInfo& info);
    void check_prompt(Live& live, const RequestInfo& info);
    void check_first();
    void check_admission(const Live* first);
    void check_order();
    void check_deadline(const Live& live, const RequestInfo& info);
    int64_t nearest_deadline_ns(bool high) const;
    void check_time();
    void check_cost_model();
    void check_broken();
    void check_event(const PolledEvent& event);
    void check_token(const Live& live, LiveSequence& sequence, const PolledEvent& event);
    void check_finish(Live& live, LiveSequence& sequence, const PolledEvent& event);
    void check_reason(const Live& live, LiveSequence& sequence, const PolledEvent& event);
    void check_tokens(const Live& live, bool whole);
    std::vector<int32_t> tokens_of(const Live& live, int32_t sequence);
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
    int64_t host_pause_us_ = 0;  // between two steps
    int32_t actions_per_step_ = 1;
    int32_t typical_tokens_ = 8;
    int32_t longest_prompt_ = 0;
    bool may_break_ = false;
    bool mixed_priorities_ = false;
    bool deadlines_ = false;
    bool salts_ = false;
    bool searches_ = false;
    bool pins_ = false;
    std::vector<Saved> saved_;
    struct DoomedProducer {
        int64_t step;
        uint64_t number;
    };
    int64_t stream_until_ = 0;            // small requests come in every step
    std::vector<DoomedProducer> doomed_;  // producers of a beginning that the host cancels at a step

    int64_t step_ = 0;
    int64_t budget_us_ = 0;
    int64_t withhold_polls_until_ = 0;
    bool draining_ = false;
    Status broken_ = Status::OK;
    uint64_t next_number_ = 1;
    Lives lives_;
    std::vector<uint64_t> stale_ids_;
    std::vector<PolledEvent> polled_;
    EngineStats stats_;         // after the newest step
    EngineStats stats_before_;  // and after the one before
    int64_t told_at_once_ = 0;  // tokens that searches produced in the newest step, by their ends
    StepReport report_;
    bool host_acted_ = true;  // since the last step, something that may make work
    int32_t wakes_ = 0;       // between the last step and the one before
    bool slept_ = false;      // the last step said that there is no work
    bool work_promised_ = false;
    int64_t vain_steps_ = 0;     // in which there was to be work, one after another
    int64_t step_start_ns_ = 0;  // of the newest step, by the virtual clock
    int64_t step_budget_us_ = 0;
    int64_t step_begins_ = 0;       // passes begun before it
    bool deadline_passed_ = false;  // of a live request, by the end of it
    int64_t waiting_passes_ = 0;    // that the first in rank has waited, alone in its class
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
