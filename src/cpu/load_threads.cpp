// Taking bodies, and the wait for the last ones.
#include "cpu/load_threads.h"

namespace treadle::cpu {

Status LoadThreads::create(std::pmr::memory_resource* memory, int32_t threads, Owned<LoadThreads>* out,
                           Error* error) {
    auto made = make_owned<LoadThreads>(memory);
    TREADLE_TRY(ThreadPool::create(memory, threads, attempt, made.get(), &made->pool_, error));
    made->pool_->open(threads);
    *out = std::move(made);
    return Status::OK;
}

void LoadThreads::run(void* self, Body body, void* context, int32_t count) {
    auto* threads = static_cast<LoadThreads*>(self);
    threads->body_ = body;
    threads->context_ = context;
    threads->count_ = count;
    threads->running_.store(count, std::memory_order_relaxed);
    threads->left_.store(count);  // from here on bodies run
    threads->pool_->notify();
    while (threads->take_one()) {
    }
    for (Backoff backoff; threads->running_.load(std::memory_order_acquire) > 0;) backoff.turn();
}

bool LoadThreads::attempt(void* self, int32_t) { return static_cast<LoadThreads*>(self)->take_one(); }

// Who takes a body reads the job only afterwards, when it can't change before that body has returned.
bool LoadThreads::take_one() {
    int32_t left = left_.load();
    while (left > 0) {
        if (!left_.compare_exchange_weak(left, left - 1)) continue;
        body_(context_, count_ - left);
        running_.fetch_sub(1, std::memory_order_acq_rel);
        return true;
    }
    return false;
}

}  // namespace treadle::cpu
