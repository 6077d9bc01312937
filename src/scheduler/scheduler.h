// Decides what one pass computes. The engine asks for a plan whenever no pass is under way: sequences that decode first, one
// token each, then pieces of prompts, then sequences from the queues as long as there is room; those of bulk requests
// come after all that, and take what is left.
//
//     waiting (a queue per priority) ── admitted ──► running (by rank) ── ended ──► gone, its blocks stay findable
//            ▲                                          │
//            └── preempted: its blocks are let go ◄─────┘
//
// A pin is admitted and computed like a prompt, and preempted like one; when it is whole it leaves the running with its blocks,
// and nobody's need can take them.
//
// Invariants: nobody takes blocks of a more urgent one. The first in rank that can run gets its blocks, for which all others may
// be preempted but for more urgent ones that wait for a poll, and a row in every plan whose batch is large enough, in its turn
// otherwise: so nothing hangs once the host has polled, however small the cache. How a plan cuts the work, and who is
// preempted, never changes a token (numerics contract); it only decides who waits.
//
// Where passes should not take longer than a budget, decodes are planned all the same, pieces of prompts are cut to what the
// cost model gives them, and no more sequences are admitted than can have a token each within it.
#pragma once

#include <array>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "base/memory.h"
#include "kv/block_cache.h"
#include "request/request.h"
#include "scheduler/cost_model.h"
#include "scheduler/plan.h"

namespace treadle {

// What happens when blocks run out: preempt somebody, who computes again later; or never let it happen, by admitting only
// sequences whose whole length still fits.
enum class MemoryPolicy : int32_t { preempt = 0, reserve = 1 };

struct SchedulerParams {
    int32_t max_sequences = 1;
    int32_t max_batch_tokens = 1;
    MemoryPolicy policy = MemoryPolicy::preempt;
    int32_t watermark_blocks = 0;          // left free by an admission, for those that run to grow
    int64_t table_blocks_max = INT64_MAX;  // blocks that the tables of one pass may name, all together
};

// Is told what a plan does to sequences, for figures and traces.
class SchedulerObserver {
public:
    virtual ~SchedulerObserver() = default;
    virtual void admitted(
        Sequence& sequence) = 0;  // its cache says what was found; cached_tokens is -1 the first time
    // It gave up its blocks, with so many tokens in them: preempted for another, or paused by the host. Of a beam search that is
    // preempted one sequence tells it, for all.
    virtual void set_back(Sequence& sequence, int32_t tokens, bool preempted) = 0;
};

class Scheduler {
public:
    // The observer may be null; it and the cache outlive the scheduler.
    Scheduler(Memory* memory, const SchedulerParams& params, BlockCache* cache,
              SchedulerObserver* observer = nullptr);

    void enqueue(Sequence* sequence);

    // The pass should take at most so long, as far as that is up to pieces of prompts, to bulk rows and to how many sequences
    // run at once. INT64_MAX: any time.
    void plan(StepPlan* plan, int64_t pass_budget_ns = INT64_MAX);

    // A pass of this shape took so long to compute.
    void learn(const PassShape& shape, int64_t ns) { cost_.add(shape, ns); }
    const CostModel& cost_model() const { return cost_; }

    // A pass has computed the row: its positions become findable, and a prompt that is complete generates from now on.
    void commit(const PlanRow& row);

    // Takes a sequence out of wherever it is and lets its blocks go. No pass under way may name them.
    void remove(Sequence* sequence);

    // Its request's priority has changed; takes effect with the next plan. Of a pin that is whole, never.
    void reprioritize(Sequence* sequence);

    // Something happened that may let a sequence run, although the last plan found nothing: a poll, a release.
    void reconsider() { stalled_ = false; }

    int32_t waiting() const;
    int32_t paused() const { return paused_.size(); }
    int32_t running() const { return static_cast<int32_t>(running_.size()); }
    int32_t waiting_poll() const;                         // running ones whose events fill their room
    int32_t queue_place(const Sequence* sequence) const;  // sequences before it, -1 if it doesn't wait
    bool has_work() const;                                // a plan made now would not be empty

    // Recounts blocks against the running sequences; O(everything). For debug builds and tests.
    bool consistent(int64_t held_by_others) const;

private:
    struct Classes {  // from the most urgent to the least
        Priority first;
        Priority last;
        bool holds(const Sequence& sequence) const {
            return urgency(sequence) >= first && urgency(sequence) <= last;
        }
    };
    static constexpr Classes foreground = {Priority::interactive, Priority::normal};
    static constexpr Classes background = {Priority::bulk, Priority::bulk};

    void plan_once(StepPlan* plan, int64_t pass_budget_ns);
    void lend();
    Priority most_urgent_waiter(const Sequence& producer) const;
    void order_running();
    void plan_background(StepPlan* plan);
    void plan_classes(StepPlan* plan, Classes classes);
    void plan_decodes(StepPlan* plan, Priority priority, int32_t kept_for_prompts);
    void plan_prompts(StepPlan* plan, Classes classes);
    void admit(StepPlan* plan, Priority priority);
    bool try_admit(StepPlan* plan, Sequence* sequence);
    bool has_slot(const Sequence& sequence) const;
    bool has_blocks(StepPlan* plan, Sequence* sequence);
    bool preempting_suffices(Sequence* sequence);
    int32_t blocks_wanted(Sequence* sequence) const;
    int32_t promised_blocks() const;
    void note_lack(Sequence* sequence, int32_t blocks, bool all_yielded) const;
    bool lacks_blocks_still(const Sequence& sequence) const;
    int64_t gained() const { return cache_->changes().freed + cache_->changes().linked; }
    int64_t gained_with_all_yielding(const Sequence& sequence) const;
    bool has_time(const StepPlan& plan, const Sequence& sequence) const;
    bool expects_time(const StepPlan& plan, const Sequence& sequence, int32_t count) const;
    bool batch_fits(const Sequence& more) const;
    int32_t affordable(const StepPlan& plan, const Sequence& sequence, int32_t count) const;
    void count_skips(Priority priority, const Sequence* next);
    void keep_pinned(Sequence* sequence);
    bool waits_for_producer(const Sequence& sequence) const;
    static Sequence* first_of_unit(Sequence* sequence);
    static int32_t tokens_of_unit(const Sequence& sequence);
    void note_admission(Sequence* first);
    bool find_beginning(Sequence* sequence);
    int32_t blocks_still_needed(const Sequence& sequence) const;
    int32_t blocks_of_unit_still_needed(Sequence* sequence) const;
    static int32_t growth_of_unit(const Sequence& sequence);
    bool prompts_wait(Classes classes) const;

    int32_t budget(const StepPlan& plan) const { return params_.max_batch_tokens - plan.tokens; }
    bool add_row(StepPlan* plan, Sequence* sequence, int32_t count);
    int32_t growing_blocks(size_t count) const;
    int32_t growth(const Sequence& sequence) const;
    int32_t reserved_blocks() const;

    Sequence* victim_for(const Sequence& sequence, bool by_class_only) const;
    void preempt(StepPlan* plan, Sequence* victim);
    void set_back(Sequence* sequence, int32_t tokens, bool preempted);
    SequenceQueue& queue_of(Priority priority);

    SchedulerParams params_;
    BlockCache* cache_;
    SchedulerObserver* observer_;
    std::array<SequenceQueue, priorities> waiting_;
    SequenceQueue paused_;
    SequenceQueue pinned_;                 // whole pins, with their blocks
    std::pmr::vector<Sequence*> running_;  // in order of rank
    std::pmr::vector<Sequence*> order_;  // those that a phase of the plan walks over, while running_ changes
    // Of the cache's changes, what came of the rows of each class.
    std::array<int64_t, priorities + 1> linked_ = {};
    CostModel cost_;
    int64_t limit_ns_ = INT64_MAX;         // of the pass that is being planned
    int64_t prompt_limit_ns_ = INT64_MAX;  // the same for pieces of prompts
    int32_t passes_without_prompt_ = 0;    // although one waited
    int32_t last_decodes_ = 0;             // rows of the pass before
    int64_t plans_ = 0;
    bool preempted_ = false;  // somebody, by this plan
    bool closed_ = false;     // nobody is admitted any more by this plan: somebody was passed too often
    bool kept_pin_ = false;   // a pin was found whole by this plan
    bool unordered_ = false;  // a rank has changed
    bool stalled_ = false;    // the last plan was empty, and nothing has happened since
};

}  // namespace treadle
