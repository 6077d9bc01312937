// The sums of a plan, kept as rows come and go.
#include "scheduler/plan.h"

#include <algorithm>

namespace treadle {

void StepPlan::add(const PlanRow& row) {
    rows.push_back(row);
    tokens += row.count;
    logit_rows += row.logits ? 1 : 0;
    decodes += row.sequence->state == SequenceState::generating ? 1 : 0;
    table_blocks += blocks_of(row.first + row.count);
    shape.add(row.first, row.count, row.logits);
}

void StepPlan::remove(const Sequence* sequence) {
    const auto row =
        std::find_if(rows.begin(), rows.end(), [&](const PlanRow& one) { return one.sequence == sequence; });
    if (row == rows.end()) return;
    tokens -= row->count;
    logit_rows -= row->logits ? 1 : 0;
    decodes -= sequence->state == SequenceState::generating ? 1 : 0;
    table_blocks -= blocks_of(row->first + row->count);
    rows.erase(row);
    shape = {};
    for (const PlanRow& left : rows) shape.add(left.first, left.count, left.logits);
}

void StepPlan::clear() {
    rows.clear();
    copies.clear();
    tokens = logit_rows = decodes = 0;
    table_blocks = 0;
    shape = {};
}

}  // namespace treadle
