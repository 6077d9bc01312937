// A parallel_for on threads of the library's own, for the time of a load. The api layer makes it where the host gave no
// parallel_for; it goes, and its threads are joined, before the load returns.
//
//     run(body, count) ─► count bodies in `left_` ─► the caller and the workers take one after another ─► all have returned
//
// Invariant: a body's job stays as it is until that body was taken and has returned; bodies run with the memory effects
// of all that the caller did before run, and the caller sees theirs.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/hooks.h"
#include "base/memory.h"
#include "cpu/thread_pool.h"

namespace treadle::cpu {

class LoadThreads {
public:
    // `threads` counts the caller; at least 2.
    [[nodiscard]] static Status create(std::pmr::memory_resource* memory, int32_t threads,
                                       Owned<LoadThreads>* out, Error* error);
    LoadThreads() = default;
    LoadThreads(const LoadThreads&) = delete;
    LoadThreads& operator=(const LoadThreads&) = delete;

    ParallelForHook hook() { return {this, run}; }  // one call at a time

private:
    using Body = void (*)(void* context, int32_t index);

    static void run(void* self, Body body, void* context, int32_t count);
    static bool attempt(void* self, int32_t thread);
    bool take_one();

    Body body_ = nullptr;
    void* context_ = nullptr;
    std::atomic<int32_t> left_{0};     // bodies that nobody has taken; the last index is taken last
    std::atomic<int32_t> running_{0};  // bodies that have not returned
    int32_t count_ = 0;
    Owned<ThreadPool> pool_;  // last: its threads look at the rest
};

}  // namespace treadle::cpu
