// A scheduler over a small block cache whose passes always succeed, for tests of what it plans.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "base/limits.h"
#include "scheduler/scheduler.h"
#include "test_memory.h"

namespace treadle::test {

// commit() does what the engine does, with token 1.
struct SchedulerBench : SchedulerObserver {
    SchedulerBench(int32_t max_sequences, int32_t max_batch_tokens, int32_t blocks,
                   MemoryPolicy policy = MemoryPolicy::preempt, int32_t watermark = 0)
        : cache(&memory.kv, blocks, blocks, max_sequences),
          scheduler(&memory.other, {max_sequences, max_batch_tokens, policy, watermark, INT64_MAX}, &cache,
                    this),
          plan(&memory.other) {}

    void admitted(Sequence&) override {}
    void set_back(Sequence&, int32_t, bool preempted) override { preemptions += preempted ? 1 : 0; }

    // `first_token` keeps prompts apart, or makes them share.
    Sequence* submit(int32_t prompt_tokens, int32_t limit, int32_t first_token = -1,
                     Priority priority = Priority::normal) {
        RequestParams params(&memory.other);
        params.priority = priority;
        auto request = make_owned<Request>(&memory.other, &memory.other, std::move(params));
        request->arrival = requests.size() + 1;
        request->live = 1;
        std::pmr::vector<int32_t> prompt(static_cast<size_t>(prompt_tokens), 1, &memory.other);
        prompt[0] = first_token < 0 ? 1000 + static_cast<int32_t>(requests.size()) : first_token;
        request->sequences.push_back(make_owned<Sequence>(&memory.other, &memory.other, request.get(), 0,
                                                          std::move(prompt), limit, size_t{8}));
        requests.push_back(std::move(request));
        Sequence* sequence = requests.back()->sequences[0].get();
        scheduler.enqueue(sequence);
        return sequence;
    }

    void commit() {
        cache.end_copies();
        for (const PlanRow& row : plan.rows) {
            Sequence* sequence = row.sequence;
            computed += row.count;
            scheduler.commit(row);
            if (!row.logits) continue;
            sequence->tokens.push_back(1);
            if (sequence->length() < sequence->limit) continue;
            sequence->state = SequenceState::finished;
            scheduler.remove(sequence);
        }
        CHECK(scheduler.consistent(0));
    }
    void pass() {
        scheduler.plan(&plan);
        commit();
    }

    const PlanRow* row_of(const Sequence* sequence) const {
        for (const PlanRow& row : plan.rows)
            if (row.sequence == sequence) return &row;
        return nullptr;
    }

    TestAllocator allocator;
    MemorySet memory{allocator.hooks()};
    int32_t preemptions = 0;
    BlockCache cache;
    Scheduler scheduler;
    StepPlan plan;
    std::vector<Owned<Request>> requests;
    int64_t computed = 0;
};

}  // namespace treadle::test
