// Decides what one pass computes. The engine asks for a plan whenever no pass is under way: sequences that decode first, one
// token each, then pieces of prompts in order of arrival, then requests from the queue as long as there is room.
//
//     waiting (queue) ── admitted: its blocks are reserved ──► running (array) ── ended ──► gone, blocks given back
//
// Invariants: a running request has all the blocks it can ever need, held or reserved, so that nothing runs out in mid-answer.
// How a plan cuts the work never changes a token (numerics contract); it only decides who waits.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "base/memory.h"
#include "kv/block_pool.h"
#include "request/request.h"
#include "scheduler/plan.h"

namespace treadle {

struct SchedulerParams {
    int32_t max_sequences = 1;
    int32_t max_batch_tokens = 1;
};

class Scheduler {
public:
    Scheduler(Memory* memory, const SchedulerParams& params, BlockPool* pool);

    void enqueue(Request* request);
    void plan(StepPlan* plan);

    // Takes a request out of wherever it is and gives its blocks back. No pass under way may name them.
    void remove(Request* request);

    int32_t waiting() const { return waiting_.size(); }
    int32_t running() const { return static_cast<int32_t>(running_.size()); }
    int32_t waiting_poll() const;                       // running ones whose events fill their room
    int32_t queue_place(const Request* request) const;  // requests before it, -1 if it doesn't wait
    bool has_work() const;                              // a plan made now would not be empty

    // Recounts blocks against the running requests; O(everything). For debug builds and tests.
    bool consistent() const;

private:
    bool prompts_wait() const;
    void plan_decodes(StepPlan* plan);
    void plan_prompts(StepPlan* plan);
    void admit(StepPlan* plan);
    Request* first_admissible() const;
    int32_t budget(const StepPlan& plan) const { return params_.max_batch_tokens - plan.tokens; }
    void add_row(StepPlan* plan, Request* request, int32_t count);

    SchedulerParams params_;
    BlockPool* pool_;
    RequestQueue waiting_;
    std::pmr::vector<Request*> running_;  // in order of admission
    size_t first_decode_ = 0;             // turns, so that a small batch serves everybody
};

// Blocks that a sequence of so many tokens fills at most: the last token of a full sequence is never computed.
int32_t blocks_for(int32_t tokens);

}  // namespace treadle
