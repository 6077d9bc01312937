// What one pass computes, as the scheduler decided it: the runner turns it into the arrays of a pass, commit reads it back.
//
// Invariant: each sequence has at most one row, rows hold consecutive positions, and logits are asked for the newest token only.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "base/memory.h"
#include "request/request.h"
#include "scheduler/cost_model.h"

namespace treadle {

// `count` tokens of a sequence from position `first`; their keys and values go to its block table, where they are not yet: what
// is cached already is computed for its logits only.
struct PlanRow {
    Sequence* sequence;
    int32_t first;
    int32_t count;
    bool logits;  // of the last token: it is the sequence's newest
};

struct StepPlan {
    explicit StepPlan(Memory* memory) : rows(memory), copies(memory) {}
    std::pmr::vector<PlanRow> rows;
    std::pmr::vector<BlockCopy> copies;  // run first
    int32_t tokens = 0;
    int32_t logit_rows = 0;
    int32_t decodes = 0;       // rows of sequences that generate
    int64_t table_blocks = 0;  // of all rows' tables together
    PassShape shape;           // what its time depends on

    void add(const PlanRow& row);
    void remove(const Sequence* sequence);  // its row, if it has one
    void clear();
};

}  // namespace treadle
