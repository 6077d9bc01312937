// The engine's own threads: parked between steps, spinning for a bounded time inside one, below the host's
// threads in priority. PassCursor opens the pool when a step begins and closes it when the step's time is
// over; the caller is thread 0 and no part of the pool.
//
//     open(n) ─► threads 1 .. n-1 attempt work ─► none there: spin, yield, park ─► notify(): again ─► …
//     close() ─► they end what they have begun and park until the next open
//
// Invariants: nothing is allocated after create; a worker never blocks signals of the host, since it takes none; there is
// no lock, so that a worker which lost its core can't hold one while the caller needs it.
#pragma once

#include <pthread.h>
#include <semaphore.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "base/memory.h"
#include "base/status.h"

namespace treadle::cpu {

// One turn of a waiting loop: cheap at first, then it gives the core away, so that a thread that was
// preempted while others wait for it can run.
class Backoff {
public:
    static constexpr int32_t spin_turns = 500;  // about 10 to 35 us
    void turn(bool gives_way = true);
    int32_t turns() const { return turns_; }

private:
    int32_t turns_ = 0;
};

class ThreadPool {
public:
    // Does one piece of work as thread 1 .. threads-1; false where there is none now.
    using Attempt = bool (*)(void* context, int32_t thread);

    // Starts threads - 1 workers; `threads` counts the caller too.
    [[nodiscard]] static Status create(std::pmr::memory_resource* memory, int32_t threads, Attempt attempt,
                                       void* context, Owned<ThreadPool>* out, Error* error);
    ThreadPool(std::pmr::memory_resource* memory, int32_t threads, Attempt attempt, void* context);
    ~ThreadPool();  // joins
    void join();    // ends the workers for good; what they look at must live until it returns
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    void open(int32_t threads);  // threads 1 .. threads-1 may work
    void close();                // they end what they have begun; does not wait
    void notify();               // work appeared: wakes those that parked inside the step
    bool is_open_for(int32_t thread) const { return open_.load(std::memory_order_relaxed) > thread; }

    // In a child of fork() the workers don't exist: nothing may be waited for.
    bool is_orphan() const;

private:
    struct Worker {
        ThreadPool* pool = nullptr;
        int32_t thread = 0;
        pthread_t handle{};
        sem_t wake{};                     // posted once by who takes `asleep` back
        std::atomic<bool> asleep{false};  // or about to be
    };

    static void* thread_main(void* worker);
    [[nodiscard]] Status start(Error* error);
    void work(Worker* worker);
    void wait_for_work(Worker* worker);
    template <typename Reason>
    void sleep_unless(Worker* worker, Reason reason);
    void wake(int32_t threads);

    const Attempt attempt_;
    void* const context_;
    const pid_t process_;
    AlignedArray<Worker> workers_;
    int32_t started_ = 0;

    std::atomic<int32_t> open_{0};      // threads that may work now, the caller among them
    std::atomic<int32_t> sleepers_{0};  // workers asleep, or about to be
    std::atomic<bool> ending_{false};
};

}  // namespace treadle::cpu
