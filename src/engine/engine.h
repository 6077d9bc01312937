// The engine: owns the parts and steps them. Submissions and orders come in from any thread through a mailbox, one thread at a
// time steps, any thread polls.
//
//     submit ─► mailbox ─┐                                      ┌─► events ─► poll
//                        ▼                                      │
//     step:   intake ─► plan ─► run (a pass) ─► sample (its rows) ─► commit ─► report       run and sample stop at the deadline
//
// Locking: `table_lock_` guards the request table, the mailbox, the queues, the events and the counters. It is held for the
// short phases and never while a pass computes, a token is sampled or a hook of the host runs.
//
// Invariants: a step allocates nothing; a request ends exactly once, and its final event is its last; after a failure of the
// backend the engine is unusable, and every live request has got its final event.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

#include "base/hooks.h"
#include "base/memory.h"
#include "base/status.h"
#include "engine/host_share.h"
#include "engine/recorder.h"
#include "kv/block_cache.h"
#include "model/rope_tables.h"
#include "ops/backend.h"
#include "request/deadlines.h"
#include "request/pin_list.h"
#include "request/request.h"
#include "runner/runner.h"
#include "scheduler/scheduler.h"
#include "text/vocabulary.h"

namespace treadle {

class LooseSlabs;
struct SessionState;

struct EngineParams {
    int32_t max_sequences = 16;
    int32_t max_batch_tokens = 512;
    int32_t max_requests = 1024;
    int32_t context_length = 0;
    int32_t kv_blocks = 0;
    MemoryPolicy memory_policy = MemoryPolicy::preempt;
    int32_t watermark_blocks = -1;  // -1: a twentieth of the blocks, at most one for each sequence of a pass
    bool prefix_cache = true;
    int32_t prefix_cache_blocks = -1;  // kept while nobody holds them; -1: as many as there are
    int64_t itl_target_us = 0;         // wall time between two tokens of a sequence; 0: none
    int32_t trace_events = 0;          // kept of the trace, the newest; 0: none is written
    int32_t threads = 1;
    ClockHook clock;
    void* wake_user = nullptr;
    void (*wake)(void* user) = nullptr;
};

// What the engine needs of a model; all outlive it.
struct EngineModel {
    const Program* program;
    const RopeTable* rope;
    const Vocabulary* vocabulary;
    uint64_t fingerprint = 0;  // what sessions are saved with, and must have to be restored
    const char* numerics_id = "";
};

// What a host may ask anew of a session that it restores; all else is in the session.
struct RestoreParams {
    Priority priority = Priority::normal;
    bool keep = false;
    CacheScope scope;
    int64_t deadline_us = 0;
    uint64_t user_data = 0;
    int32_t logprobs = -1;  // as saved
};

struct StepParams {
    int64_t budget_us = 0;    // 0: one whole pass
    int32_t max_threads = 0;  // 0: all
};

struct StepReport {
    int32_t passes = 0;
    int32_t tokens_computed = 0;
    int32_t tokens_produced = 0;
    int32_t running = 0;
    int32_t waiting = 0;
    int32_t waiting_poll = 0;
    int32_t paused = 0;
    int32_t free_blocks = 0;  // cached ones among them
    int32_t preemptions = 0;
    int64_t time_us = 0;
    int64_t worst_tile_us = 0;
    int64_t next_step_us = 0;
};

struct EngineStats {
    MetricsSnapshot figures;
    uint64_t kv_bytes = 0;  // of the cache, without what was trimmed
    // Of a pass, a row, a token, a token * context.
    std::array<double, CostModel::coefficient_count> cost_ns{};
    double cost_error = 0;
    double host_share = 1;
};

struct RequestInfo {
    SequenceState state = SequenceState::waiting;
    bool waits_for_poll = false;
    bool paused = false;
    int32_t sequences = 0;
    int32_t prompt_tokens = 0;
    int32_t prompt_tokens_done = 0;
    int32_t cached_tokens = 0;
    int32_t generated_tokens = 0;
    int32_t queue_place = -1;
    FinishReason finish_reason = FinishReason::none;
    Error failure;
};

// Receives text piece by piece, outside of the engine's lock; returns false to stop.
class TextSink {
public:
    virtual ~TextSink() = default;
    virtual bool write(std::span<const char> text) = 0;
};

// Receives the events of a poll, oldest first; returns false for one that doesn't fit, which then stays. Runs under the lock.
class EventSink {
public:
    virtual ~EventSink() = default;
    virtual bool take(const EventNode& event, std::span<const TokenLogprob> logprobs) = 0;
};

class Engine {
public:
    // The backend has its cache and program already (make_engine). `memory` outlives the engine.
    Engine(MemorySet& memory, const EngineModel& model, const EngineParams& params, Owned<Backend> backend);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Any thread. `prompt` holds ids of the vocabulary, at least one. All that the request will need is allocated here.
    [[nodiscard]] Status submit(RequestParams&& params, std::pmr::vector<int32_t>&& prompt,
                                int32_t max_tokens, uint64_t* id, Error* error);

    // A new request that goes on from the first `position` tokens of a sequence, which may be live or over; it has its own
    // draws, or those that `params` ask for. Without params it inherits the parent's, and its limit unless max_tokens is given.
    [[nodiscard]] Status fork(uint64_t parent, int32_t sequence, int32_t position, RequestParams* params,
                              int32_t max_tokens, uint64_t* id, Error* error);
    // A request without an answer: the blocks of `prefix` are computed and stay in the cache until unpin. Of `params` only
    // scope and priority count.
    [[nodiscard]] Status pin(RequestParams&& params, std::pmr::vector<int32_t>&& prefix, uint64_t* id,
                             Error* error);
    [[nodiscard]] Status unpin(uint64_t id);   // INVALID_ARGUMENT: it is no pin
    [[nodiscard]] Status cancel(uint64_t id);  // of a pin: unpin
    [[nodiscard]] Status release(uint64_t id);
    [[nodiscard]] Status set_priority(uint64_t id, Priority priority);
    [[nodiscard]] Status request_info(uint64_t id, RequestInfo* out);
    [[nodiscard]] Status sequence_tokens(uint64_t id, int32_t sequence, std::span<int32_t> out, size_t* count,
                                         Error* error);
    // Any thread. A sequence as a session: all of it as it is, its end included, or its first `position` tokens as the
    // beginning of an answer that goes on. Works on an unusable engine too.
    [[nodiscard]] Status save_session(uint64_t id, int32_t sequence, std::optional<int32_t> position,
                                      SessionState* out, Error* error);
    // Any thread. Submits what was saved, to go on as if nothing had happened. Text that the host hadn't got is told first.
    [[nodiscard]] Status restore_session(const SessionState& state, const RestoreParams& asked, uint64_t* id,
                                         Error* error);
    void poll(EventSink& sink, size_t capacity);
    // Gives back the slabs of the cache that live requests and pins don't need, and what is cached in them; returns their bytes.
    uint64_t trim();
    EngineStats stats();
    size_t metrics_text(std::span<char> out);          // bytes of the text; written only if it fits
    [[nodiscard]] Status write_trace(TextSink& sink);  // as JSON; STOPPED

    // Recounts every block; O(everything). For debug builds and tests.
    bool consistent();

    // One thread at a time; BUSY for a second one.
    [[nodiscard]] Status step(const StepParams& params, StepReport* report);

    const EngineParams& params() const { return params_; }
    size_t kv_bytes_per_block() const { return backend_->kv_bytes_per_block(*model_.program); }

private:
    struct StepTimes {
        int64_t start_ns;
        int64_t deadline_ns;
        int32_t max_threads;
        uint64_t preemptions_before;
    };

    // The phases of a step.
    StepTimes begin_step(const StepParams& params);
    void intake(const StepTimes& times);
    void plan();
    Status run(const StepTimes& times, bool* pass_done, StepReport* report);
    bool sample_rows(const StepTimes& times, StepReport* report);
    Status commit(StepReport* report);
    void finish_report(const StepTimes& times, StepReport* report);

    bool under_way() const { return runner_.under_way() || computed_; }
    void end_phase(TracePhase phase);

    // Parts of intake, commit and their like; they run under the lock.
    void take_mail(int32_t most);
    Request* carry_out_some(Request* orders);
    void carry_out(Request* request);
    bool end_the_overdue(int64_t now_ns, int32_t most);
    void commit_row(const PlanRow& row, size_t logit_row, StepReport* report);
    void append_token(Sequence* sequence, size_t logit_row, StepReport* report);
    bool ends(const Sequence& sequence, int32_t token) const;
    EventNode* push_event(Sequence* sequence, EventKind kind, std::string_view text);
    void push_progress(Sequence* sequence);
    void push_held_text(Sequence* sequence);

    // Beam search (beams.cpp); all but the first two run under the lock.
    Status collect_candidates(const Sequence& sequence, const RowResult& row);
    BeamEnd end_of_beam(const Sequence& sequence, int32_t token) const;
    bool says_stop(BeamGroup& beams, const StopSet& stops, int32_t token, TextStream* text) const;
    void commit_beam(Sequence* sequence, StepReport* report);
    void place_children(Request* request, std::span<const BeamChoice> choices);
    void copy_beam(const Sequence& from, Sequence* to);
    void clear_beam(Sequence* sequence);
    void tell_best(Request* request, StepReport* report);
    void end_beams(Request* request, FinishReason reason);
    void tell_beams(Request* request);
    void tell_beam_token(Sequence* sequence, int32_t index);

    // The end of a request. finish, leave, bury_if_unnamed and drop_events run under the lock.
    void order(Request* request);
    void finish_all(Request* request, FinishReason reason);
    void finish(Sequence* sequence, FinishReason reason);
    void leave(Sequence* sequence);
    void give_up(Status status);
    void end_after_failure(Request* request, Status status);
    void drop_events(Request* request);
    void bury_if_unnamed(Request* request);
    void free_the_buried();
    void free_request(Request* request);

    // Parts of submit, fork, pin, save and restore. check_entry, take_in, claim_blocks and the fit_* run under the lock.
    struct Borrowed;
    Status enter(Owned<Request> request, uint64_t* id, Error* error);
    Status check_entry(Request* request, Error* error) const;
    uint64_t take_in(Owned<Request> request, int64_t now_ns);
    bool claim_blocks(const Request& request, LooseSlabs* loose);
    int64_t promised_blocks() const;
    Owned<Request> make_request(RequestParams&& params, std::pmr::vector<int32_t>&& prompt, int32_t limit,
                                int32_t wanted_limit) const;
    Status fit_among_pins(Request* request, Error* error) const;
    Status fit_beams(Request* request, int32_t blocks, Error* error) const;
    Status fit_pin(const Request& pin, Error* error) const;
    Status borrow(uint64_t id, int32_t sequence, std::optional<int32_t> position, Borrowed* out,
                  Error* error);
    void give_back(Request* request);
    CacheScope scope_of(CacheScope asked) const;
    uint64_t told_by(const Sequence& sequence, int32_t position) const;
    Status tell_again(Sequence* sequence, FinishReason over, uint64_t delivered_bytes, Error* error) const;

    Gauges gauges() const;
    int64_t pass_budget_ns() const;
    int64_t until_deadline_us(int64_t now_ns) const;
    void wake_host();
    void begin(Request* request) const;
    void begin_text(Sequence* sequence) const;
    Status limit_of(int32_t prompt_tokens, int32_t wanted_limit, int32_t* limit, Error* error) const;
    Status limit_of_beams(int32_t width, int32_t prompt_tokens, bool as_many_as_fit, int32_t* limit,
                          Error* error) const;
    void make_beams(Request* request) const;

    // A request that stays in memory as long as this lives; its parameters and the tokens before `position` don't change.
    struct Borrowed {
        Borrowed() = default;
        Borrowed(const Borrowed&) = delete;
        Borrowed& operator=(const Borrowed&) = delete;
        ~Borrowed() {
            if (request != nullptr) engine->give_back(request);
        }
        Engine* engine = nullptr;
        Request* request = nullptr;
        const Sequence* sequence = nullptr;
        int32_t position = 0;
        // As they were when it was borrowed.
        bool is_searching = false;
        FinishReason finish_reason = FinishReason::none;
        uint64_t delivered_bytes = 0;
        uint64_t forks = 0;
    };

    MemorySet& memory_;
    EngineModel model_;
    EngineParams params_;
    Owned<Backend> backend_;
    BlockCache cache_;
    Recorder recorder_;
    Scheduler scheduler_;
    Runner runner_;
    StepPlan plan_;
    AlignedArray<Candidate> sampling_scratch_;  // (vocabulary)
    struct SampledRow {
        Status status;
        TokenLogprob token;
    };
    AlignedArray<SampledRow> sampled_;  // (max_sequences)
    AlignedArray<char> text_scratch_;   // what one token can let go
    bool computed_ = false;             // the pass is; its tokens are being chosen, in the order of the plan:
    size_t sampling_row_ = 0;           // the plan's row to look at next
    size_t sampled_count_ = 0;          // rows of logits before it
    int64_t pass_start_ns_ = 0;
    int64_t pass_work_ns_ = 0;  // of all steps that it took
    int64_t phase_start_ns_ = 0;
    HostShare host_share_;
    bool work_left_ = false;  // by the last step

    std::atomic<bool> stepping_{false};
    std::atomic<bool> woken_{false};
    Status unusable_ = Status::OK;

    std::mutex table_lock_;
    RequestTable table_;
    struct Mailbox {
        Request* oldest = nullptr;
        Request* newest = nullptr;
        int32_t sequences = 0;  // those that ended before they were taken in don't count
    } mailbox_;
    Request* orders_ = nullptr;     // newest first, through next_order
    Request* graveyard_ = nullptr;  // through next_buried; freed by the next call that may take its time
    Deadlines deadlines_;
    PinList pins_;
    int64_t promised_blocks_ =
        0;  // that the live sequences fill at most, each counted as if it shared nothing; but for pins
    uint64_t arrivals_ = 0;
    EventList events_;
};

// Checks the parameters against the model, fills in defaults, creates cache, buffers and threads.
// INVALID_ARGUMENT names field and value; NOMEM.
[[nodiscard]] Status make_engine(MemorySet& memory, const EngineModel& model, int32_t model_context,
                                 EngineParams params, Owned<Backend> backend, Owned<Engine>* out,
                                 Error* error);

}  // namespace treadle
