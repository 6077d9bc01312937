// Requests, the queues that link them and the table that names them.
#include "request/request.h"

#include "base/limits.h"

namespace treadle {

Request::Request(Memory* memory, RequestParams&& asked, std::pmr::vector<int32_t>&& prompt,
                 int32_t limit_tokens, size_t token_bytes_max)
    : params(std::move(asked)), tokens(std::move(prompt)), prompt_tokens(static_cast<int32_t>(tokens.size())),
      limit(limit_tokens), blocks(memory),
      room(memory, token_bytes_max, TextStream::output_bytes_max(params.stops, token_bytes_max),
           params.sampling.logprobs) {
    tokens.reserve(static_cast<size_t>(limit));
    blocks.reserve(static_cast<size_t>((limit + limits::kv_block_tokens - 1) / limits::kv_block_tokens));
}

void RequestQueue::append(Request* request) {
    request->previous = back_;
    request->next = nullptr;
    (back_ == nullptr ? front_ : back_->next) = request;
    back_ = request;
    size_++;
}

void RequestQueue::remove(Request* request) {
    (request->previous == nullptr ? front_ : request->previous->next) = request->next;
    (request->next == nullptr ? back_ : request->next->previous) = request->previous;
    request->previous = request->next = nullptr;
    size_--;
}

Request* RequestQueue::take_front() {
    Request* request = front_;
    if (request != nullptr) remove(request);
    return request;
}

int32_t RequestQueue::place(const Request* request) const {
    int32_t before = 0;
    for (const Request* other = front_; other != nullptr; other = other->next, before++)
        if (other == request) return before;
    return -1;
}

RequestTable::RequestTable(Memory* memory, int32_t capacity)
    : slots_(memory, static_cast<size_t>(capacity)), free_slots_(memory, static_cast<size_t>(capacity)),
      free_count_(capacity) {
    for (int32_t i = 0; i < capacity; i++) {
        slots_[static_cast<size_t>(i)] = {nullptr, 0};
        free_slots_[static_cast<size_t>(i)] = capacity - 1 - i;
    }
}

void RequestTable::add(Request* request) {
    const int32_t slot = free_slots_[static_cast<size_t>(--free_count_)];
    Slot& place = slots_[static_cast<size_t>(slot)];
    place.request = request;
    place.generation++;
    request->id = uint64_t{place.generation} << 32 | static_cast<uint32_t>(slot + 1);
    live_++;
}

Request* RequestTable::find(uint64_t id) const {
    const uint64_t slot = (id & 0xffffffffu) - 1;  // of id 0 this is beyond every table
    if (slot >= slots_.size()) return nullptr;
    Request* request = slots_[slot].request;
    return request != nullptr && request->id == id && !request->released ? request : nullptr;
}

void RequestTable::remove(Request* request) {
    const auto slot = static_cast<int32_t>((request->id & 0xffffffffu) - 1);
    slots_[static_cast<size_t>(slot)].request = nullptr;
    free_slots_[static_cast<size_t>(free_count_++)] = slot;
    live_--;
}

}  // namespace treadle
