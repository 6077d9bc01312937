// What one pass computes, as the scheduler decided it: the runner turns it into the arrays of a pass, commit reads it back.
//
// Invariant: each request has at most one row, rows hold consecutive positions, and logits are asked for the newest token only.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "base/memory.h"
#include "request/request.h"

namespace treadle {

// `count` tokens of a sequence from position `first`; their keys and values go to the request's block table.
struct PlanRow {
    Request* request;
    int32_t first;
    int32_t count;
    bool logits;  // of the last token: it is the sequence's newest
};

struct StepPlan {
    explicit StepPlan(Memory* memory) : rows(memory) {}
    std::pmr::vector<PlanRow> rows;
    int32_t tokens = 0;
    int32_t logit_rows = 0;

    void clear() {
        rows.clear();
        tokens = logit_rows = 0;
    }
};

}  // namespace treadle
