// How a pass is worked on by many threads and cut after any tile. A pass is a list of regions, a region a
// number of independent tiles; a region starts when the one before is complete. CpuBackend fills the
// regions and runs the tiles, this decides who runs which, and when.
//
// One 64-bit word is all that is claimed from; the last finisher of a region moves it on:
//
//     cursor   | generation : 24 | region : 16 | tiles left : 24 |   CAS left -> left - 1 claims a tile
//     done     tiles of the pass that are complete; region r is complete when it reaches ends[r]
//
// - Any thread may run any tile, so a slow or preempted core holds up the one tile it has, and no more.
// - A stale claim fails: the generation changes with each pass and each abandon. Nothing but the word is
//   read before a claim.
// - A region's writes are seen by the next: done is a chain of acquire-release additions, the last one
//   publishes the cursor.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "cpu/thread_pool.h"
#include "ops/backend.h"

namespace treadle::cpu {

struct TileJob {
    void* context = nullptr;
    void (*run)(void* context, int32_t region, int32_t tile,
                int32_t thread) = nullptr;  // thread: 0 .. threads - 1
};

class PassCursor {
public:
    static constexpr int32_t regions_max = (1 << 16) - 1;
    static constexpr int32_t tiles_max = (1 << 24) - 1;  // of one region

    PassCursor(std::pmr::memory_resource* memory, int32_t regions, const BackendParams& params, TileJob job);
    ~PassCursor();
    PassCursor(const PassCursor&) = delete;
    PassCursor& operator=(const PassCursor&) = delete;

    [[nodiscard]] Status start_threads(std::pmr::memory_resource* memory,
                                       Error* error);  // once, before the first pass
    int32_t threads() const { return params_.threads; }

    // Starts a pass of so many tiles per region (some may have none). No pass may be under way.
    void begin(std::span<const int32_t> tiles);
    bool is_under_way() const;
    AdvanceResult advance(int64_t deadline_ns, int32_t max_threads);
    void abandon();  // waits for tiles that are being run

private:
    struct Claim {
        uint32_t generation;
        int32_t region;
        int32_t tile;
    };
    struct HookRun;

    static constexpr int32_t any_region = -1;
    bool claim(int32_t only, Claim* out);
    void finish(const Claim& ended);
    bool is_complete() const;
    AdvanceResult advance_with_pool(int64_t deadline_ns, int32_t threads);
    AdvanceResult advance_with_hook(int64_t deadline_ns, int32_t threads);
    void run_on_caller(int64_t deadline_ns, int64_t now);
    bool run_tile(int64_t* now);
    int32_t following(int32_t region) const;
    int32_t tiles_of(int32_t region) const;
    static bool attempt(void* cursor, int32_t thread);
    static void hook_body(void* run, int32_t index);

    const BackendParams params_;
    const TileJob job_;
    Owned<ThreadPool> pool_;

    // Written by begin while nothing is under way, read by who holds a claim.
    AlignedArray<int32_t> tiles_;  // (regions) of the pass
    AlignedArray<int64_t> ends_;   // (regions) tiles up to the end of each
    int64_t worst_tile_ns_ = 0;    // of this advance, on threads that read the clock

    alignas(64) std::atomic<uint64_t> cursor_{0};
    alignas(64) std::atomic<int64_t> done_{0};
};

}  // namespace treadle::cpu
