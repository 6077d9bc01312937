// Claiming, finishing and waiting. The orders of memory: cursor_ and done_ carry everything that tiles hand
// to one another.
#include "cpu/pass_cursor.h"

#include <algorithm>
#include <utility>

#include "base/float_mode.h"

namespace treadle::cpu {
namespace {

constexpr int tile_bits = 24;
constexpr int region_bits = 16;

constexpr uint64_t pack(uint32_t generation, int32_t region, int32_t left) {
    return uint64_t{generation} << (tile_bits + region_bits) | uint64_t(uint32_t(region)) << tile_bits |
           uint64_t(uint32_t(left));
}
constexpr uint32_t generation_of(uint64_t word) { return uint32_t(word >> (tile_bits + region_bits)); }
constexpr int32_t region_of(uint64_t word) { return int32_t(word >> tile_bits & ((1u << region_bits) - 1)); }
constexpr int32_t left_of(uint64_t word) { return int32_t(word & ((1u << tile_bits) - 1)); }
constexpr uint32_t next_generation(uint64_t word) {
    return (generation_of(word) + 1) & ((1u << (64 - tile_bits - region_bits)) - 1);
}

}  // namespace

PassCursor::PassCursor(std::pmr::memory_resource* memory, int32_t regions, const BackendParams& params,
                       TileJob job)
    : params_(params), job_(job), tiles_(memory, static_cast<size_t>(regions)),
      ends_(memory, static_cast<size_t>(regions)) {
    cursor_.store(pack(0, regions, 0));
}

PassCursor::~PassCursor() {
    abandon();
    if (pool_ != nullptr) pool_->join();  // while all that workers look at still lives, pool_ itself among it
}

Status PassCursor::start_threads(std::pmr::memory_resource* memory, Error* error) {
    if (params_.threads == 1 || params_.parallel_for.run != nullptr) return Status::OK;
    return ThreadPool::create(memory, params_.threads, attempt, this, &pool_, error);
}

// The first region at or after `region` that has tiles; the number of regions where the pass ends.
int32_t PassCursor::following(int32_t region) const {
    const auto regions = static_cast<int32_t>(tiles_.size());
    while (region < regions && tiles_[static_cast<size_t>(region)] == 0) ++region;
    return region;
}

int32_t PassCursor::tiles_of(int32_t region) const {
    const auto index = static_cast<size_t>(region);
    return index == tiles_.size() ? 0 : tiles_[index];
}

void PassCursor::begin(std::span<const int32_t> tiles) {
    int64_t end = 0;
    for (size_t i = 0; i < tiles_.size(); ++i) {
        tiles_[i] = tiles[i];
        end += tiles[i];
        ends_[i] = end;
    }
    done_.store(0, std::memory_order_relaxed);
    const int32_t first = following(0);
    cursor_.store(pack(next_generation(cursor_.load()), first, tiles_of(first)));
}

bool PassCursor::is_complete() const {
    return region_of(cursor_.load(std::memory_order_acquire)) == static_cast<int32_t>(tiles_.size());
}

bool PassCursor::is_under_way() const { return !is_complete(); }

bool PassCursor::claim(int32_t only, Claim* out) {
    uint64_t seen = cursor_.load();
    while (left_of(seen) > 0 && (only == any_region || region_of(seen) == only)) {
        if (!cursor_.compare_exchange_weak(seen, seen - 1)) continue;
        const int32_t region = region_of(seen);
        *out = {generation_of(seen), region, tiles_[static_cast<size_t>(region)] - left_of(seen)};
        return true;
    }
    return false;
}

// Ends a tile. Who ends the last one of a region opens the next region.
void PassCursor::finish(const Claim& ended) {
    // Read before done_ counts this tile: after that the pass may be over and another begun.
    const int64_t end = ends_[static_cast<size_t>(ended.region)];
    const int32_t region = following(ended.region + 1);
    const int32_t tiles = tiles_of(region);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 != end) return;

    uint64_t expected = pack(ended.generation, ended.region, 0);
    if (!cursor_.compare_exchange_strong(expected, pack(ended.generation, region, tiles)))
        return;  // abandoned
    if (tiles > 1 && pool_ != nullptr) pool_->notify();
}

bool PassCursor::attempt(void* cursor, int32_t thread) {
    auto* self = static_cast<PassCursor*>(cursor);
    Claim claimed;
    if (!self->claim(any_region, &claimed)) return false;
    FloatMode mode;
    self->job_.run(self->job_.context, claimed.region, claimed.tile, thread);
    self->finish(claimed);
    return true;
}

AdvanceResult PassCursor::advance(int64_t deadline_ns, int32_t max_threads) {
    if (is_complete()) return {};
    worst_tile_ns_ = 0;
    const int32_t threads = std::clamp(max_threads, 1, params_.threads);
    return params_.parallel_for.run == nullptr ? advance_with_pool(deadline_ns, threads)
                                               : advance_with_hook(deadline_ns, threads);
}

AdvanceResult PassCursor::advance_with_pool(int64_t deadline_ns, int32_t threads) {
    const int64_t now = params_.clock.now();
    const bool helped = pool_ != nullptr && threads > 1 && now < deadline_ns;
    if (helped) pool_->open(threads);
    run_on_caller(deadline_ns, now);
    if (helped) pool_->close();
    return {Status::OK, is_complete() ? PassState::done : PassState::more, worst_tile_ns_};
}

// Runs tiles until the pass is complete or the deadline is reached, but at least one if there is one to claim. Where the
// last tiles of a region are in workers' hands it waits for them, until the deadline: the worker brings the pass forward.
void PassCursor::run_on_caller(int64_t deadline_ns, int64_t now) {
    Backoff backoff;
    while (true) {
        if (run_tile(&now)) {
            if (now >= deadline_ns) return;
            backoff = {};
        } else {
            if (is_complete()) return;
            backoff.turn(deadline_ns == INT64_MAX);
            now = params_.clock.now();  // waiting is no part of the next tile's time
            if (now >= deadline_ns) return;
        }
    }
}

// One tile on the calling thread; false where there is none to claim. `now` is when it began, then when it ended.
bool PassCursor::run_tile(int64_t* now) {
    Claim mine;
    if (!claim(any_region, &mine)) return false;
    FloatMode mode;
    job_.run(job_.context, mine.region, mine.tile, 0);
    finish(mine);
    const int64_t began = std::exchange(*now, params_.clock.now());
    worst_tile_ns_ = std::max(worst_tile_ns_, *now - began);
    return true;
}

// What the bodies of one call of the hook share.
struct PassCursor::HookRun {
    PassCursor* cursor;
    int32_t region;
    int32_t bodies;
    int64_t deadline_ns;
    std::atomic<bool> stop{false};
    std::atomic_flag clock_busy = ATOMIC_FLAG_INIT;

    // The host's clock is read by one body at a time; those that find it busy do without (-1).
    int64_t read_clock(int64_t tile_began_ns, bool ended_tile) {
        if (clock_busy.test_and_set(std::memory_order_acquire)) return -1;
        const int64_t now = cursor->params_.clock.now();
        if (ended_tile && tile_began_ns >= 0) {
            cursor->worst_tile_ns_ = std::max(cursor->worst_tile_ns_, now - tile_began_ns);
        }
        if (ended_tile && now >= deadline_ns) stop.store(true, std::memory_order_relaxed);
        clock_busy.clear(std::memory_order_release);
        return now;
    }
};

// Never waits: it leaves when its region has no tile to claim, whoever still runs one.
void PassCursor::hook_body(void* run, int32_t index) {
    auto* self = static_cast<HookRun*>(run);
    if (index < 0 || index >= self->bodies) return;
    PassCursor& cursor = *self->cursor;
    FloatMode mode;
    int64_t now = self->read_clock(-1, false);
    Claim mine;
    while (!self->stop.load(std::memory_order_relaxed) && cursor.claim(self->region, &mine)) {
        cursor.job_.run(cursor.job_.context, mine.region, mine.tile, index);
        now = self->read_clock(now, true);
        cursor.finish(mine);
    }
}

AdvanceResult PassCursor::advance_with_hook(int64_t deadline_ns, int32_t threads) {
    int64_t now = params_.clock.now();
    do {
        const uint64_t before = cursor_.load(std::memory_order_acquire);
        if (threads > 1 && left_of(before) > 1) {
            HookRun run{this, region_of(before), std::min(threads, left_of(before)), deadline_ns};
            params_.parallel_for.run(params_.parallel_for.user, hook_body, &run, run.bodies);
            now = params_.clock.now();
        }
        // One tile is not worth a call of the hook; and a host that ran no body must not stop the pass.
        if (cursor_.load(std::memory_order_acquire) == before) run_tile(&now);
    } while (!is_complete() && now < deadline_ns);
    return {Status::OK, is_complete() ? PassState::done : PassState::more, worst_tile_ns_};
}

void PassCursor::abandon() {
    if (is_complete()) return;
    const uint64_t before =
        cursor_.exchange(pack(next_generation(cursor_.load()), static_cast<int32_t>(tiles_.size()), 0));
    if (pool_ != nullptr && pool_->is_orphan()) return;
    const auto region = static_cast<size_t>(region_of(before));
    if (region == tiles_.size()) return;
    const int64_t claimed = ends_[region] - left_of(before);
    Backoff backoff;
    while (done_.load(std::memory_order_acquire) != claimed) backoff.turn();
}

}  // namespace treadle::cpu
