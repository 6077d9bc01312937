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

class Lock {
public:
    explicit Lock(pthread_mutex_t* mutex) : mutex_(mutex) { pthread_mutex_lock(mutex_); }
    ~Lock() { pthread_mutex_unlock(mutex_); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

private:
    pthread_mutex_t* mutex_;
};

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

void Backoff::turn() {
    ++turns_;
    if (turns_ > spin_turns) {
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
        ::new (&workers_[i]) Worker{this, static_cast<int32_t>(i) + 1, {}};
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
    {
        Lock lock(&mutex_);
        ending_ = true;
        open_.store(0);
        pthread_cond_broadcast(&changed_);
    }
    for (int32_t i = 0; i < started_; ++i) pthread_join(workers_[static_cast<size_t>(i)].handle, nullptr);
    started_ = 0;
}

ThreadPool::~ThreadPool() {
    if (is_orphan()) return;
    join();
    pthread_cond_destroy(&changed_);
    pthread_mutex_destroy(&mutex_);
}

bool ThreadPool::is_orphan() const { return getpid() != process_; }

void* ThreadPool::thread_main(void* worker) {
    auto* self = static_cast<Worker*>(worker);
    set_name_and_priority(self->thread);
    self->pool->work(self->thread);
    return nullptr;
}

void ThreadPool::open(int32_t threads) {
    Lock lock(&mutex_);
    open_.store(threads);
    epoch_.fetch_add(1);
    pthread_cond_broadcast(&changed_);
}

void ThreadPool::close() { open_.store(0); }

// A worker counts itself as a sleeper before its last attempt, work appears before sleepers_ is read: one
// of the two sees the other (all four accesses are sequentially consistent).
void ThreadPool::notify() {
    if (sleepers_.load() == 0) return;
    Lock lock(&mutex_);
    epoch_.fetch_add(1);
    pthread_cond_broadcast(&changed_);
}

void ThreadPool::work(int32_t thread) {
    while (wait_until_open(thread)) {
        while (is_open_for(thread)) {
            if (!attempt_(context_, thread)) wait_for_work(thread);
        }
    }
}

bool ThreadPool::wait_until_open(int32_t thread) {
    Lock lock(&mutex_);
    while (!is_open_for(thread) && !ending_) pthread_cond_wait(&changed_, &mutex_);
    return !ending_;
}

void ThreadPool::wait_for_work(int32_t thread) {
    Backoff backoff;
    while (backoff.turns() < Backoff::spin_turns + yield_turns) {
        backoff.turn();
        if (!is_open_for(thread) || attempt_(context_, thread)) return;
    }
    park(thread);
}

void ThreadPool::park(int32_t thread) {
    const uint32_t seen = epoch_.load();
    sleepers_.fetch_add(1);
    if (!attempt_(context_, thread)) {
        Lock lock(&mutex_);
        while (epoch_.load() == seen && is_open_for(thread) && !ending_)
            pthread_cond_wait(&changed_, &mutex_);
    }
    sleepers_.fetch_sub(1);
}

}  // namespace treadle::cpu
