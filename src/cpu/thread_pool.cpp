// Creation, parking and waking of the worker threads. std::thread is not used: it allocates behind the
// allocator's back.
#include "cpu/thread_pool.h"

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <new>

namespace treadle::cpu {
namespace {

constexpr size_t stack_bytes = 512 * 1024;  // kernels keep their scratch elsewhere; sanitizers widen frames
constexpr int nice_steps = 5;               // what other systems call "below normal"
constexpr int32_t yield_turns = 200;        // after the spinning, before a worker parks

// Both only help the host; where the system refuses, the thread works all the same.
void set_name_and_priority(int32_t thread) {
#ifdef __linux__
    char name[16];  // the system's limit, with its zero
    std::snprintf(name, sizeof name, "treadle-%d", static_cast<int>(thread));
    (void)pthread_setname_np(pthread_self(), name);
    const auto id = static_cast<id_t>(syscall(SYS_gettid));
    const int now = getpriority(PRIO_PROCESS, id);
    (void)setpriority(PRIO_PROCESS, id, now + nice_steps);
#else
    (void)thread;
#endif
}

}  // namespace

void Backoff::turn(bool gives_way) {
    ++turns_;
    if (gives_way && turns_ > spin_turns) {
        sched_yield();
        return;
    }
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
    __builtin_ia32_pause();
#endif
}

ThreadPool::ThreadPool(std::pmr::memory_resource* memory, int32_t threads, Attempt attempt, void* context)
    : attempt_(attempt), context_(context), process_(getpid()),
      workers_(memory, static_cast<size_t>(threads - 1)) {
    for (size_t i = 0; i < workers_.size(); ++i)
        ::new (&workers_[i]) Worker{.pool = this, .thread = static_cast<int32_t>(i) + 1};
    for (Worker& worker : workers_) sem_init(&worker.wake, 0, 0);
}

Status ThreadPool::create(std::pmr::memory_resource* memory, int32_t threads, Attempt attempt, void* context,
                          Owned<ThreadPool>* out, Error* error) {
    auto pool = make_owned<ThreadPool>(memory, memory, threads, attempt, context);
    TREADLE_TRY(pool->start(error));
    *out = std::move(pool);
    return Status::OK;
}

Status ThreadPool::start(Error* error) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return fail(error, Status::NOMEM, "threads: no memory for their attributes");
    const size_t stack = stack_bytes < static_cast<size_t>(PTHREAD_STACK_MIN)
                             ? static_cast<size_t>(PTHREAD_STACK_MIN)
                             : stack_bytes;
    int failed = pthread_attr_setstacksize(&attributes, stack);

    sigset_t all, before;  // a new thread inherits the mask: the host's signals stay with the host's threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (Worker& worker : workers_) {
        if (failed == 0) failed = pthread_create(&worker.handle, &attributes, thread_main, &worker);
        if (failed != 0) break;
        ++started_;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    if (failed == 0) return Status::OK;
    return fail(error, Status::NOMEM, "threads: the system started %d of %zu (error %d)",
                static_cast<int>(started_), workers_.size(), failed);
}

void ThreadPool::join() {
    if (is_orphan()) return;
    ending_.store(true);
    open_.store(0);
    wake(started_ + 1);
    for (int32_t i = 0; i < started_; ++i) pthread_join(workers_[static_cast<size_t>(i)].handle, nullptr);
    started_ = 0;
}

ThreadPool::~ThreadPool() {
    if (is_orphan()) return;
    join();
    for (Worker& worker : workers_) sem_destroy(&worker.wake);
}

bool ThreadPool::is_orphan() const { return getpid() != process_; }

void* ThreadPool::thread_main(void* worker) {
    auto* self = static_cast<Worker*>(worker);
    set_name_and_priority(self->thread);
    self->pool->work(self);
    return nullptr;
}

void ThreadPool::open(int32_t threads) {
    open_.store(threads);
    wake(threads);
}

void ThreadPool::close() { open_.store(0); }

void ThreadPool::notify() { wake(open_.load()); }

// A worker says that it sleeps before it looks for a reason not to, and who makes a reason does so before he looks for
// sleepers: one of the two sees the other (all accesses are sequentially consistent).
void ThreadPool::wake(int32_t threads) {
    if (sleepers_.load() == 0) return;
    for (int32_t i = 0; i < threads - 1; ++i) {
        Worker& worker = workers_[static_cast<size_t>(i)];
        if (worker.asleep.load() && worker.asleep.exchange(false)) sem_post(&worker.wake);
    }
}

template <typename Reason>
void ThreadPool::sleep_unless(Worker* worker, Reason reason) {
    sleepers_.fetch_add(1);
    worker->asleep.store(true);
    if (!reason() || !worker->asleep.exchange(false)) {
        while (sem_wait(&worker->wake) != 0) {  // a signal, though none should come
        }
    }
    sleepers_.fetch_sub(1);
}

void ThreadPool::work(Worker* worker) {
    while (!ending_.load()) {
        if (!is_open_for(worker->thread)) {
            sleep_unless(worker, [&] { return open_.load() > worker->thread || ending_.load(); });
        } else if (!attempt_(context_, worker->thread)) {
            wait_for_work(worker);
        }
    }
}

void ThreadPool::wait_for_work(Worker* worker) {
    const int32_t thread = worker->thread;
    Backoff backoff;
    while (backoff.turns() < Backoff::spin_turns + yield_turns) {
        backoff.turn();
        if (!is_open_for(thread) || attempt_(context_, thread)) return;
    }
    sleep_unless(worker,
                 [&] { return attempt_(context_, thread) || open_.load() <= thread || ending_.load(); });
}

}  // namespace treadle::cpu
