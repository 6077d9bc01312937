// Requests, the queues that link them and the table that names them.
#include "request/request.h"

#include "base/limits.h"

namespace treadle {

Sequence::Sequence(Memory* memory, Request* of, int32_t index_in_request, std::pmr::vector<int32_t>&& prompt,
                   int32_t limit_tokens, size_t token_bytes_max)
    : request(of), index(index_in_request),
      sample_index(of->params.first_sample + static_cast<uint64_t>(index_in_request)),
      tokens(std::move(prompt)), given_tokens(length()),
      prompt_tokens(given_tokens - of->params.generated_tail), limit(limit_tokens),
      wanted_limit(limit_tokens), cache(memory),
      room(memory, token_bytes_max, TextStream::output_bytes_max(of->params.stops, token_bytes_max),
           of->params.sampling.logprobs) {
    tokens.reserve(static_cast<size_t>(limit));
    cache.blocks.reserve(static_cast<size_t>(blocks_of(limit)));
    cache.scope = of->params.scope;
}

int32_t Sequence::blocks_most() const {
    if (request->beams == nullptr) return blocks_of(positions_most());
    const auto all = static_cast<int32_t>(beam_blocks(1, given_tokens, limit));
    return index == 0 ? all : all - given_tokens / limits::kv_block_tokens;
}

int64_t beam_blocks(int32_t width, int32_t prompt_tokens, int32_t limit) {
    const int32_t shared = prompt_tokens / limits::kv_block_tokens;
    return shared + int64_t{width} * (blocks_of(positions_of(limit)) - shared + 1);
}

bool ranks_before(const Sequence& a, const Sequence& b) {
    if (urgency(a) != urgency(b)) return urgency(a) < urgency(b);
    if (a.request->arrival != b.request->arrival) return a.request->arrival < b.request->arrival;
    return a.index < b.index;
}

namespace {

bool arrived_before(const Sequence& a, const Sequence& b) {
    if (a.request->arrival != b.request->arrival) return a.request->arrival < b.request->arrival;
    return a.index < b.index;
}

}  // namespace

int32_t told_length(const Sequence& sequence) {
    const BeamGroup* beams = sequence.request->beams.get();
    const bool told = beams == nullptr || static_cast<size_t>(sequence.index) < beams->best.size();
    return told ? sequence.length() : sequence.given_tokens;
}

// The one that it follows; null: it is the first. Looks from the front and from the last place at once, for the nearer one.
Sequence* SequenceQueue::place_before(const Sequence& sequence) const {
    if (back_ == nullptr || arrived_before(*back_, sequence)) return back_;
    Sequence* far = front_;      // goes on while it arrived before
    Sequence* near = inserted_;  // goes on until its neighbours are those of the place
    const bool forward = near != nullptr && arrived_before(*near, sequence);
    while (arrived_before(*far, sequence)) {
        far = far->next;
        if (near == nullptr) continue;
        if (forward) {
            if (!arrived_before(*near->next, sequence)) return near;
            near = near->next;
        } else {
            near = near->previous;
            if (near == nullptr || arrived_before(*near, sequence)) return near;
        }
    }
    return far->previous;
}

void SequenceQueue::insert(Sequence* sequence) {
    Sequence* after = place_before(*sequence);
    inserted_ = sequence;
    sequence->previous = after;
    sequence->next = after == nullptr ? front_ : after->next;
    (sequence->previous == nullptr ? front_ : sequence->previous->next) = sequence;
    (sequence->next == nullptr ? back_ : sequence->next->previous) = sequence;
    sequence->queue = this;
    size_++;
}

void SequenceQueue::remove(Sequence* sequence) {
    if (inserted_ == sequence)
        inserted_ = sequence->previous != nullptr ? sequence->previous : sequence->next;
    (sequence->previous == nullptr ? front_ : sequence->previous->next) = sequence->next;
    (sequence->next == nullptr ? back_ : sequence->next->previous) = sequence->previous;
    sequence->previous = sequence->next = nullptr;
    sequence->queue = nullptr;
    size_--;
}

int32_t SequenceQueue::place(const Sequence* sequence) const {
    int32_t before = 0;
    for (const Sequence* other = front_; other != nullptr; other = other->next, before++)
        if (other == sequence) return before;
    return -1;
}

RequestTable::RequestTable(Memory* memory, int32_t capacity)
    : slots_(memory, static_cast<size_t>(capacity)), free_slots_(memory, static_cast<size_t>(capacity)),
      free_count_(capacity) {
    for (int32_t i = 0; i < capacity; i++) {
        slots_[static_cast<size_t>(i)] = {nullptr, 0};
        free_slots_[static_cast<size_t>(i)] = i;
    }
}

void RequestTable::add(Request* request) {
    const int32_t slot = free_slots_[static_cast<size_t>(first_free_)];
    first_free_ = (first_free_ + 1) % static_cast<int32_t>(free_slots_.size());
    free_count_--;
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
    free_slots_[(static_cast<size_t>(first_free_) + static_cast<size_t>(free_count_++)) %
                free_slots_.size()] = slot;
    live_--;
}

}  // namespace treadle
