// From plan rows to the rows of a pass.
#include "runner/runner.h"

#include <algorithm>

#include "base/limits.h"

namespace treadle {
namespace {

constexpr size_t rope_piece_rows = 16;  // between two looks at the clock: some tens of microseconds

}  // namespace

Runner::Runner(Memory* memory, Backend* backend, const RopeTable* rope, const ClockHook& clock, Dims max,
               int64_t table_blocks_max)
    : backend_(backend), rope_(rope), clock_(clock), tokens_(memory, static_cast<size_t>(max.tokens)),
      positions_(memory, tokens_.size()), slots_(memory, tokens_.size()),
      cos_sin_(memory, tokens_.size() * static_cast<size_t>(rope->pairs()) * 2),
      block_table_(memory, static_cast<size_t>(table_blocks_max)),
      work_(memory, static_cast<size_t>(max.logit_rows)),
      copies_(memory, static_cast<size_t>(max.logit_rows)),
      logit_rows_(memory, static_cast<size_t>(max.logit_rows)),
      inverse_temperatures_(memory, static_cast<size_t>(max.logit_rows)) {}

void Runner::begin(const StepPlan& plan) {
    rows_ = table_blocks_ = works_ = logits_ = rope_rows_ = 0;
    for (const PlanRow& row : plan.rows) add(row);
    copy_count_ = plan.copies.size();
    std::copy(plan.copies.begin(), plan.copies.end(), copies_.begin());
    under_way_ = true;
    backend_begun_ = false;
}

Status Runner::begin_backend() {
    const GroupInput group = {
        .slots = {slots_.data(), rows_},
        .block_table = {block_table_.data(), table_blocks_},
        .work = {work_.data(), works_},
        .copies = {copies_.data(), copy_count_},
    };
    const PassInput input = {
        .tokens = {tokens_.data(), rows_},
        .positions = {positions_.data(), rows_},
        .groups = {&group, 1},
        .logit_rows = {logit_rows_.data(), logits_},
        .inverse_temperatures = {inverse_temperatures_.data(), logits_},
        .cos_sin = {cos_sin_.data(), rows_ * static_cast<size_t>(rope_->pairs()) * 2},
    };
    TREADLE_TRY(backend_->begin(input, {static_cast<int32_t>(rows_), static_cast<int32_t>(logits_)}));
    backend_begun_ = true;
    return Status::OK;
}

void Runner::add(const PlanRow& row) {
    const Sequence& sequence = *row.sequence;
    const auto& blocks = sequence.cache.blocks;
    work_[works_++] = {static_cast<int32_t>(rows_), row.count, row.first,
                       static_cast<int32_t>(table_blocks_)};
    const auto blocks_seen = static_cast<size_t>(blocks_of(row.first + row.count));
    std::copy_n(blocks.data(), blocks_seen, block_table_.data() + table_blocks_);
    table_blocks_ += blocks_seen;

    for (int32_t position = row.first; position < row.first + row.count; position++, rows_++) {
        const bool is_there =
            position < sequence.computed();  // perhaps in a block that others read: it isn't written again
        const int32_t block = blocks[static_cast<size_t>(position / limits::kv_block_tokens)];
        tokens_[rows_] = sequence.tokens[static_cast<size_t>(position)];
        positions_[rows_] = position;
        slots_[rows_] = is_there ? -1 : block * limits::kv_block_tokens + position % limits::kv_block_tokens;
    }
    if (row.logits) {
        logit_rows_[logits_] = static_cast<int32_t>(rows_) - 1;
        inverse_temperatures_[logits_] = inverse_temperature(sequence.request->params.sampling);
        logits_++;
    }
}

// Until all rows are filled or the deadline is reached, but at least one piece; false: reached.
bool Runner::fill_rope(int64_t deadline_ns, AdvanceResult* result) {
    const size_t row_values = static_cast<size_t>(rope_->pairs()) * 2;
    int64_t before = clock_.now();
    while (rope_rows_ < rows_) {
        const size_t end = std::min(rows_, rope_rows_ + rope_piece_rows);
        for (; rope_rows_ < end; rope_rows_++)
            rope_->fill(positions_[rope_rows_], cos_sin_.data() + rope_rows_ * row_values);
        const int64_t now = clock_.now();
        result->worst_tile_ns = std::max(result->worst_tile_ns, now - before);
        before = now;
        if (now >= deadline_ns) return false;
    }
    return true;
}

AdvanceResult Runner::advance(int64_t deadline_ns, int32_t max_threads) {
    AdvanceResult result;
    if (!backend_begun_) {
        result.state = PassState::more;
        if (!fill_rope(deadline_ns, &result)) return result;
        result.status = begin_backend();
    }
    if (result.status == Status::OK) {
        const int64_t worst_piece_ns = result.worst_tile_ns;
        result = backend_->advance(deadline_ns, max_threads);
        result.worst_tile_ns = std::max(result.worst_tile_ns, worst_piece_ns);
    }
    if (result.status != Status::OK || result.state == PassState::done) under_way_ = false;
    return result;
}

void Runner::abandon() {
    if (under_way_ && backend_begun_) backend_->abandon();
    under_way_ = false;
}

}  // namespace treadle
