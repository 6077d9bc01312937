// The backend of the fake model: checks what a pass is told, spends virtual time tile by tile, and keeps the chain of hashes in
// the cache's slots.
#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "fake_model.h"

namespace treadle::test {
namespace {

constexpr int32_t block_tokens = limits::kv_block_tokens;

template <class T>
void copy_to(std::vector<T>& to, std::span<const T> from) {
    to.assign(from.begin(), from.end());
}

}  // namespace

FakeBackend::FakeBackend(const FakeModel& model, FakeControl& control)
    : model_(model), control_(control), random_(control.seed) {}

void FakeBackend::violate(const char* what, int64_t position, int64_t block) {
    if (control_.violations++ > 0) return;
    char text[200];
    std::snprintf(text, sizeof text, "pass %lld, position %lld, block %lld: %s",
                  static_cast<long long>(control_.begins), static_cast<long long>(position),
                  static_cast<long long>(block), what);
    control_.first_violation = text;
}

Status FakeBackend::kv_create(const Program&, int32_t blocks, Error*) {
    blocks_ = blocks;
    cache_.assign(static_cast<size_t>(blocks) * block_tokens, {});
    touched_.assign(cache_.size(), {});
    away_.assign(static_cast<size_t>(limits::kv_slabs(blocks)), 0);
    return Status::OK;
}

// The memory of a slab is a token that tells which slab it is for.
void* FakeBackend::kv_allocate(int32_t slab) {
    if (control_.no_kv_memory) throw std::bad_alloc();
    control_.slabs_allocated++;
    return &away_[static_cast<size_t>(slab)];
}

void FakeBackend::kv_free(int32_t slab, void* memory) {
    control_.slabs_freed++;
    if (memory != &away_[static_cast<size_t>(slab)]) violate("a slab's memory is freed as another's", -1, -1);
}

void* FakeBackend::kv_exchange(int32_t slab, void* memory) {
    const auto index = static_cast<size_t>(slab);
    void* before = away_[index] != 0 ? nullptr : &away_[index];
    away_[index] = memory == nullptr ? 1 : 0;
    const int32_t size = limits::kv_slab_blocks(blocks_);
    for (int32_t block = slab * size; block < std::min((slab + 1) * size, blocks_); block++) {
        const bool named = std::find(block_table_.begin(), block_table_.end(), block) != block_table_.end() ||
                           std::any_of(copies_.begin(), copies_.end(),
                                       [&](const BlockCopy& copy) { return copy.from == block; });
        if (under_way_ && named)
            violate("a pass under way names a block of a slab that goes or comes", -1, block);
        poison(block);
    }
    return before;
}

bool FakeBackend::is_away(int32_t block) const {
    return away_[static_cast<size_t>(block >> limits::kv_slab_shift(blocks_))] != 0;
}

// All memory of passes, and the rows that Checking::none answers with.
Status FakeBackend::build(const Program&, Dims max, Error* error) {
    if (const Status status = std::exchange(control_.fail_next_build, Status::OK); status != Status::OK)
        return fail(error, status, "the test asked for this failure");
    max_ = max;
    const auto tokens = static_cast<size_t>(max.tokens);
    const auto rows = static_cast<size_t>(max.logit_rows);
    const auto vocabulary = static_cast<size_t>(model_.vocabulary_size());
    tokens_.reserve(tokens);
    positions_.reserve(tokens);
    slots_.reserve(tokens);
    block_table_.reserve(static_cast<size_t>(blocks_) * 4);
    work_.reserve(tokens);
    logit_rows_.reserve(rows);
    inverse_temperatures_.reserve(rows);
    results_.resize(rows);
    logits_.resize(rows * vocabulary);
    for (size_t i = 0; i < rows; i++) {
        float* row = logits_.data() + i * vocabulary;
        model_.logits(model_.empty_prefix() + i, row);
        row[FakeModel::end_token] = -8;
        model_.result(row, 1, &results_[i]);
    }
    return Status::OK;
}

Status FakeBackend::begin(const PassInput& input, Dims dims) {
    control_.begins++;
    if (const Status status = std::exchange(control_.fail_next_begin, Status::OK); status != Status::OK)
        return status;
    if (under_way_) violate("begin while a pass is under way", -1, -1);
    dims_ = dims;
    under_way_ = true;
    done_ = false;
    tiles_run_ = 0;
    rows_run_ = 0;
    works_begun_ = logits_made_ = 0;
    if (control_.checking == FakeControl::Checking::none) {
        tile_count_ = 1;
        tile_cost_ns_ =
            control_.pass_ns + control_.logit_row_ns * dims.logit_rows + control_.token_ns * dims.tokens;
        return Status::OK;
    }
    const GroupInput& group = input.groups[0];
    copy_to(tokens_, input.tokens);
    copy_to(positions_, input.positions);
    copy_to(slots_, group.slots);
    copy_to(block_table_, group.block_table);
    copy_to(work_, group.work);
    copy_to(copies_, group.copies);
    copy_to(logit_rows_, input.logit_rows);
    copy_to(inverse_temperatures_, input.inverse_temperatures);
    for (RowResult& row : results_) row.usable = row.count = 0;  // what was there is not valid any more
    check_input(input, dims);
    note_shape();
    const int64_t violations = control_.violations;
    check_copies();
    if (control_.violations != violations) copies_.clear();
    const int64_t cost = cost_ns();
    tile_count_ = control_.tile_ns <= 0 ? 1 : std::max<int64_t>(1, cost / control_.tile_ns);
    tile_cost_ns_ = cost / tile_count_;
    return Status::OK;
}

void FakeBackend::note_shape() {
    control_.newest = control_.newest_decodes = {};
    for (const AttentionWork& work : work_) {
        const bool logits =
            std::binary_search(logit_rows_.begin(), logit_rows_.end(), work.first_row + work.rows - 1);
        control_.newest.add(work.first_position, work.rows, logits);
        if (logits && work.rows == 1) control_.newest_decodes.add(work.first_position, 1, true);
    }
}

// A pass that contradicts itself is not run at all.
void FakeBackend::check_input(const PassInput& input, Dims dims) {
    const int64_t violations = control_.violations;
    const auto rows = static_cast<size_t>(dims.tokens);
    if (dims.tokens < 1 || dims.tokens > max_.tokens)
        violate("as many tokens were never announced", dims.tokens, -1);
    if (dims.logit_rows > max_.logit_rows)
        violate("as many rows of logits were never announced", dims.logit_rows, -1);
    if (input.groups.size() != 1) violate("not one KV group", -1, -1);
    if (tokens_.size() != rows || positions_.size() != rows || slots_.size() != rows)
        violate("arrays of rows differ in length", static_cast<int64_t>(rows), -1);
    if (logit_rows_.size() != static_cast<size_t>(dims.logit_rows) ||
        inverse_temperatures_.size() != logit_rows_.size())
        violate("arrays of logit rows differ in length", dims.logit_rows, -1);
    if (control_.violations != violations) {
        work_.clear();
        dims_ = {};
        return;
    }
    int32_t next_row = 0;
    for (const AttentionWork& work : work_) {
        check_work(work, next_row);
        next_row = work.first_row + work.rows;
    }
    if (next_row != dims.tokens) violate("work doesn't cover the rows", next_row, -1);
    int32_t last = -1;
    for (const int32_t row : logit_rows_) {
        if (row <= last || row >= dims.tokens) violate("logit rows don't ascend within the pass", row, -1);
        last = row;
    }
    if (control_.violations != violations) {
        work_.clear();
        dims_ = {};
    }
}

void FakeBackend::check_work(const AttentionWork& work, int32_t next_row) {
    const int32_t end = work.first_position + work.rows;
    if (work.first_row != next_row || work.rows < 1 || end > model_.context() || work.first_position < 0 ||
        work.first_row + work.rows > dims_.tokens) {
        violate("work doesn't follow the rows", work.first_position, -1);
        return;
    }
    const auto table_end = static_cast<size_t>(work.first_block + (end + block_tokens - 1) / block_tokens);
    if (work.first_block < 0 || table_end > block_table_.size()) {
        violate("the block table ends early", end, work.first_block);
        return;
    }
    for (auto i = static_cast<size_t>(work.first_block); i < table_end; i++)
        if (block_table_[i] < 0 || block_table_[i] >= blocks_)
            violate("no such block", static_cast<int64_t>(i) * block_tokens, block_table_[i]);
        else if (is_away(block_table_[i]))
            violate("the block's memory was given back", static_cast<int64_t>(i) * block_tokens,
                    block_table_[i]);
    for (int32_t i = 0; i < work.rows; i++) {
        const auto row = static_cast<size_t>(work.first_row + i);
        const int32_t position = work.first_position + i;
        if (positions_[row] != position) violate("a row has another position than its work", position, -1);
        if (slots_[row] != -1 && slots_[row] != slot_at(work, position))
            violate("a row's slot is not its block table's", position, slots_[row] / block_tokens);
        if (tokens_[row] < 0 || tokens_[row] >= model_.vocabulary_size())
            violate("no such token", position, tokens_[row]);
    }
}

// Copies run at once: no target may be a source, or another's target, or in the tables of two sequences.
void FakeBackend::check_copies() {
    for (size_t i = 0; i < copies_.size(); i++) {
        const auto [from, to] = copies_[i];
        if (from < 0 || from >= blocks_ || to < 0 || to >= blocks_ || from == to) {
            violate("a copy's blocks are out of range", from, to);
            continue;
        }
        if (is_away(from) || is_away(to)) violate("a copied block's memory was given back", from, to);
        for (size_t k = 0; k < copies_.size(); k++)
            if (k != i && (copies_[k].to == to || copies_[k].from == to))
                violate("a copy's target is another copy's block", from, to);
        int32_t users = 0;
        for (const AttentionWork& work : work_) {
            const int32_t end = (work.first_position + work.rows + block_tokens - 1) / block_tokens;
            for (int32_t k = 0; k < end; k++)
                users += block_table_[static_cast<size_t>(work.first_block + k)] == to ? 1 : 0;
        }
        if (users > 1) violate("a copy's target is in two block tables", from, to);
    }
}

int64_t FakeBackend::cost_ns() const {
    int64_t seen = 0;
    for (const AttentionWork& work : work_)
        seen += int64_t{work.rows} * work.first_position + int64_t{work.rows} * (work.rows - 1) / 2;
    return control_.pass_ns + control_.logit_row_ns * dims_.logit_rows + control_.token_ns * dims_.tokens +
           control_.context_ns * seen;
}

// Lets a tile's time go by; returns what it took.
int64_t FakeBackend::spend_tile() {
    control_.tiles++;
    tiles_run_++;
    if (control_.clock == nullptr) return 0;
    int64_t cost = tile_cost_ns_;
    if (control_.jitter > 0)
        cost +=
            static_cast<int64_t>(static_cast<double>(cost) * control_.jitter * (2 * random_.uniform() - 1));
    control_.clock->now_ns += cost;
    control_.worst_tile_ns = std::max(control_.worst_tile_ns, cost);
    if (control_.jump_rate > 0 && random_.uniform() < control_.jump_rate) {
        control_.clock->now_ns +=
            static_cast<int64_t>(random_.uniform() * static_cast<double>(control_.jump_ns));
        control_.jumps++;
    }
    return cost;
}

AdvanceResult FakeBackend::advance(int64_t deadline_ns, int32_t) {
    AdvanceResult result;
    if (!under_way_) violate("advance without a pass", -1, -1);
    if (const Status status = std::exchange(control_.fail_next_advance, Status::OK); status != Status::OK) {
        under_way_ = false;
        result.status = status;
        return result;
    }
    if (control_.pending_rate > 0 && random_.uniform() < control_.pending_rate) {
        control_.pendings++;
        if (control_.clock != nullptr) control_.clock->now_ns += 1000;
        result.state = PassState::pending;
        return result;
    }
    result.state = PassState::more;
    while (tiles_run_ < tile_count_) {
        if (tiles_run_ == 0) run_copies();
        result.worst_tile_ns = std::max(result.worst_tile_ns, spend_tile());
        run_rows(static_cast<int32_t>(dims_.tokens * tiles_run_ / tile_count_));
        if (control_.clock != nullptr && control_.clock->now_ns >= deadline_ns && tiles_run_ < tile_count_)
            return result;
    }
    control_.passes_done++;
    under_way_ = false;
    done_ = true;
    result.state = PassState::done;
    return result;
}

void FakeBackend::abandon() {
    control_.abandons++;
    under_way_ = false;
}

PassResults FakeBackend::results() const {
    if (!done_) return {};
    return {{results_.data(), static_cast<size_t>(dims_.logit_rows)}, logits_.data()};
}

void FakeBackend::poison(int32_t block) {
    for (int32_t i = 0; i < block_tokens; i++)
        cache_[static_cast<size_t>(block * block_tokens + i)] = {0, poisoned, 0};
}

void FakeBackend::run_copies() {
    for (const auto [from, to] : copies_) {
        const auto source = cache_.begin() + static_cast<std::ptrdiff_t>(from) * block_tokens;
        std::copy_n(source, block_tokens, cache_.begin() + static_cast<std::ptrdiff_t>(to) * block_tokens);
        control_.copies++;
    }
}

void FakeBackend::run_rows(int32_t end) {
    if (control_.checking == FakeControl::Checking::none) return;
    for (; rows_run_ < end; rows_run_++) {
        if (works_begun_ == 0 ||
            rows_run_ == work_[works_begun_ - 1].first_row + work_[works_begun_ - 1].rows)
            prefix_ = read_prefix(work_[works_begun_++]);
        run_row(work_[works_begun_ - 1], rows_run_);
    }
}

int32_t FakeBackend::slot_at(const AttentionWork& work, int32_t position) const {
    const auto entry = static_cast<size_t>(work.first_block + position / block_tokens);
    return block_table_[entry] * block_tokens + position % block_tokens;
}

// Looks at the slot of a position of the prefix; `prefix` is the hash up to the position before and becomes the one up to it.
bool FakeBackend::check_slot(const AttentionWork& work, int32_t position, uint64_t* prefix) {
    const int32_t place = slot_at(work, position);
    const Slot& slot = cache_[static_cast<size_t>(place)];
    Touch& touch = touched_[static_cast<size_t>(place)];
    const auto pass = static_cast<uint64_t>(control_.begins);
    const char* what = nullptr;
    if (touch.wrote >> 16 == pass && touch.wrote != (pass << 16 | works_begun_))
        what = "another sequence of the same pass writes what is read here";
    if (slot.position == unwritten) {
        what = "the slot was never written";
    } else if (slot.position == poisoned) {
        what = "the slot is poisoned: its block was given back";
    } else if (slot.position != position) {
        what = "the slot holds another position";
    } else if (slot.hash != FakeModel::extend(*prefix, slot.token)) {
        what = "the slot doesn't continue the prefix";
    }
    touch.read = pass << 16 | works_begun_;
    *prefix = slot.hash;
    if (what != nullptr) violate(what, position, place / block_tokens);
    return what == nullptr;
}

// The hash before the first row of a work item, with a look at what leads to it.
uint64_t FakeBackend::read_prefix(const AttentionWork& work) {
    const int32_t length = work.first_position;
    uint64_t prefix = model_.empty_prefix();
    if (length == 0) return prefix;
    if (control_.checking == FakeControl::Checking::all) {
        for (int32_t position = 0; position < length; position++)
            if (!check_slot(work, position, &prefix)) return prefix;
        return prefix;
    }
    const uint64_t last = cache_[static_cast<size_t>(slot_at(work, length - 1))].hash;
    for (int32_t probe = 0; probe < 4; probe++) {
        const auto pick =
            static_cast<int32_t>((last >> (16 * probe) & 0xffff) % static_cast<uint64_t>(length));
        const int32_t position = probe == 0 ? length - 1 : pick;
        prefix = position == 0 ? model_.empty_prefix()
                               : cache_[static_cast<size_t>(slot_at(work, position - 1))].hash;
        if (!check_slot(work, position, &prefix)) break;
    }
    return last;
}

void FakeBackend::run_row(const AttentionWork& work, int32_t row) {
    const auto index = static_cast<size_t>(row);
    const int32_t position = positions_[index];
    const Slot content = {FakeModel::extend(prefix_, tokens_[index]), position, tokens_[index]};
    if (slots_[index] == -1) {
        control_.rows_without_write++;
        const int32_t place = slot_at(work, position);
        if (cache_[static_cast<size_t>(place)] != content)
            violate("a row that writes nothing finds something else than it would write", position,
                    place / block_tokens);
    } else {
        write(content, slots_[index], position);
    }
    prefix_ = content.hash;
    if (logits_made_ < logit_rows_.size() && logit_rows_[logits_made_] == row) {
        float* logits = logits_.data() + logits_made_ * static_cast<size_t>(model_.vocabulary_size());
        model_.logits(prefix_, logits);
        model_.result(logits, inverse_temperatures_[logits_made_], &results_[logits_made_]);
        logits_made_++;
    }
}

void FakeBackend::write(const Slot& content, int32_t slot, int32_t position) {
    Touch& touch = touched_[static_cast<size_t>(slot)];
    const auto pass = static_cast<uint64_t>(control_.begins);
    if (touch.wrote >> 16 == pass)
        violate("two rows of a pass write one slot", position, slot / block_tokens);
    if (touch.read >> 16 == pass)
        violate("another sequence of the same pass reads what is written here", position,
                slot / block_tokens);
    touch.wrote = pass << 16 | works_begun_;
    cache_[static_cast<size_t>(slot)] = content;
}

}  // namespace treadle::test
