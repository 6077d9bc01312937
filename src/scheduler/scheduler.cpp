// The plan of a pass: decodes, prompts, admissions, in this order.
#include "scheduler/scheduler.h"

#include <algorithm>

#include "base/limits.h"

namespace treadle {
namespace {

// A head of the queue that lacks blocks lets this many smaller followers pass; then it has the next blocks that come back.
constexpr int32_t skips_max = 32;
constexpr int32_t followers_max =
    64;  // looked at behind the head: bounds the cost of a plan when thousands wait

bool decodes(const Request& request) {
    return request.state == RequestState::generating && request.room.has_room();
}

bool prefills(const Request& request) {
    return request.state == RequestState::prompt && request.room.has_room();
}

}  // namespace

int32_t blocks_for(int32_t tokens) {
    return (tokens - 1 + limits::kv_block_tokens - 1) / limits::kv_block_tokens;
}

Scheduler::Scheduler(Memory* memory, const SchedulerParams& params, BlockPool* pool)
    : params_(params), pool_(pool), running_(memory) {
    running_.reserve(static_cast<size_t>(params.max_sequences));
}

void Scheduler::enqueue(Request* request) { waiting_.append(request); }

void Scheduler::plan(StepPlan* plan) {
    plan->clear();
    plan_decodes(plan);
    plan_prompts(plan);
    admit(plan);
}

void Scheduler::plan_decodes(StepPlan* plan) {
    const size_t count = running_.size();
    const int32_t kept_for_prompts = params_.max_batch_tokens > 1 && prompts_wait() ? 1 : 0;
    for (size_t i = 0; i < count && budget(*plan) > kept_for_prompts; i++) {
        Request* request = running_[(first_decode_ + i) % count];
        if (decodes(*request)) add_row(plan, request, 1);
    }
    if (count > 0) first_decode_ = (first_decode_ + plan->rows.size()) % count;
}

// Decodes that fill a small batch must not shut out prompts: those get a token of every pass at least.
bool Scheduler::prompts_wait() const {
    return std::any_of(running_.begin(), running_.end(),
                       [](const Request* request) { return prefills(*request); }) ||
           first_admissible() != nullptr;
}

void Scheduler::plan_prompts(StepPlan* plan) {
    for (Request* request : running_) {
        if (budget(*plan) == 0) return;
        if (prefills(*request)) add_row(plan, request, std::min(request->left(), budget(*plan)));
    }
}

void Scheduler::admit(StepPlan* plan) {
    while (budget(*plan) > 0) {
        Request* request = first_admissible();
        if (request == nullptr || !pool_->reserve(blocks_for(request->limit))) return;
        for (Request* passed = waiting_.front(); passed != request; passed = passed->next) passed->skipped++;
        waiting_.remove(request);
        running_.push_back(request);
        request->state = RequestState::prompt;
        request->blocks_reserved = blocks_for(request->limit);
        add_row(plan, request, std::min(request->left(), budget(*plan)));
    }
}

// The first of the queue whose blocks are there; null if nobody can start now.
Request* Scheduler::first_admissible() const {
    if (running() >= params_.max_sequences) return nullptr;
    int32_t looked_at = 0;
    for (Request* request = waiting_.front(); request != nullptr && looked_at < followers_max;
         request = request->next) {
        if (blocks_for(request->limit) <= pool_->available()) return request;
        if (request->skipped >= skips_max) return nullptr;
        looked_at++;
    }
    return nullptr;
}

void Scheduler::add_row(StepPlan* plan, Request* request, int32_t count) {
    const int32_t end = request->computed + count;
    while (static_cast<int32_t>(request->blocks.size()) * limits::kv_block_tokens < end) {
        request->blocks.push_back(pool_->acquire());
        request->blocks_reserved--;
    }
    const bool logits = end == request->length();
    plan->rows.push_back({request, request->computed, count, logits});
    plan->tokens += count;
    plan->logit_rows += logits ? 1 : 0;
}

void Scheduler::remove(Request* request) {
    const auto place = std::find(running_.begin(), running_.end(), request);
    if (place != running_.end()) {
        running_.erase(place);
    } else {
        waiting_.remove(request);
    }
    for (const int32_t block : request->blocks) pool_->release(block);
    request->blocks.clear();
    pool_->forfeit(request->blocks_reserved);
    request->blocks_reserved = 0;
}

int32_t Scheduler::waiting_poll() const {
    return static_cast<int32_t>(std::count_if(
        running_.begin(), running_.end(), [](const Request* request) { return !request->room.has_room(); }));
}

int32_t Scheduler::queue_place(const Request* request) const { return waiting_.place(request); }

bool Scheduler::has_work() const {
    for (const Request* request : running_)
        if (decodes(*request) || prefills(*request)) return true;
    return first_admissible() != nullptr;
}

bool Scheduler::consistent() const {
    int32_t held = 0;
    int32_t reserved = 0;
    for (const Request* request : running_) {
        held += static_cast<int32_t>(request->blocks.size());
        reserved += request->blocks_reserved;
        if (request->computed > static_cast<int32_t>(request->blocks.size()) * limits::kv_block_tokens)
            return false;
        if (request->computed >= request->length() || request->length() > request->limit) return false;
    }
    return pool_->consistent() && held == pool_->total() - pool_->free_blocks() &&
           reserved == pool_->reserved();
}

}  // namespace treadle
