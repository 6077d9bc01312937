// Turns a plan into the arrays that a backend's pass reads, and drives that pass until a deadline. The engine calls begin once
// per plan and advance as often as the host steps.
//
// Invariant: all arrays have their final capacity from the start; begin and advance allocate nothing.
#pragma once

#include <cstdint>

#include "base/memory.h"
#include "model/rope_tables.h"
#include "ops/backend.h"
#include "scheduler/plan.h"

namespace treadle {

class Runner {
public:
    // max.tokens and max.logit_rows bound every plan; tables_blocks_max bounds the block tables of one pass, all together.
    Runner(Memory* memory, Backend* backend, const RopeTable* rope, const ClockHook& clock, Dims max,
           int64_t table_blocks_max);

    bool under_way() const { return under_way_; }
    void begin(const StepPlan& plan);

    // First fills the rope table, in pieces, then begins and advances the backend's pass: so a large pass's preparation, too,
    // ends at the deadline and goes on with the next call.
    AdvanceResult advance(int64_t deadline_ns, int32_t max_threads);
    PassResults results() const { return backend_->results(); }
    void abandon();

private:
    void add(const PlanRow& row);
    bool fill_rope(int64_t deadline_ns, AdvanceResult* result);
    Status begin_backend();

    Backend* backend_;
    const RopeTable* rope_;
    ClockHook clock_;
    bool under_way_ = false;  // from begin until the pass is done, failed or abandoned
    bool backend_begun_ = false;

    // The pass's input, row by row; the counts say how much of each array is filled.
    AlignedArray<int32_t> tokens_;     // (max.tokens)
    AlignedArray<int32_t> positions_;  // (max.tokens)
    AlignedArray<int32_t> slots_;      // (max.tokens)
    AlignedArray<float> cos_sin_;      // (max.tokens, pairs, 2)
    AlignedArray<int32_t> block_table_;
    AlignedArray<AttentionWork> work_;
    AlignedArray<BlockCopy> copies_;  // (max.logit_rows)
    AlignedArray<int32_t> logit_rows_;
    AlignedArray<float> inverse_temperatures_;
    size_t rows_ = 0;
    size_t table_blocks_ = 0;
    size_t works_ = 0;
    size_t copy_count_ = 0;
    size_t logits_ = 0;
    size_t rope_rows_ = 0;  // of cos_sin_ that are filled
};

}  // namespace treadle
