// Rings and links of the events that wait for a poll.
#include "request/event_room.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/limits.h"

namespace treadle {
namespace {

constexpr int32_t end_nodes = 3;  // progress, held text, finished: what may stand beside the token events
constexpr size_t usual_token_bytes_max =
    256;  // longer tokens are rare: not every slot of the room is made for them

size_t text_capacity(size_t token_bytes_max, size_t token_text_bytes_max) {
    return std::min(token_bytes_max, usual_token_bytes_max) * limits::event_room_min +
           2 * token_text_bytes_max;
}

}  // namespace

void EventList::append(EventNode* node) {
    node->older = newest_;
    node->newer = nullptr;
    (newest_ == nullptr ? oldest_ : newest_->newer) = node;
    newest_ = node;
}

void EventList::remove(EventNode* node) {
    (node->older == nullptr ? oldest_ : node->older->newer) = node->newer;
    (node->newer == nullptr ? newest_ : node->newer->older) = node->older;
    node->older = node->newer = nullptr;
}

EventRoom::EventRoom(Memory* memory, size_t token_bytes_max, size_t token_text_bytes_max, int32_t logprobs)
    : nodes_(memory, limits::event_room_min + end_nodes),
      best_(memory, nodes_.size() * static_cast<size_t>(logprobs)),
      text_(memory, text_capacity(token_bytes_max, token_text_bytes_max)),
      token_text_bytes_max_(token_text_bytes_max), logprobs_(logprobs) {}

void EventRoom::make_room_for(size_t text_bytes, Memory* memory) {
    if (text_bytes <= text_.size()) return;
    constexpr size_t lacking_max = 3;  // a piece ends with a whole character
    const size_t pieces = text_bytes / (token_text_bytes_max_ - lacking_max) + 1;
    AlignedArray<EventNode> nodes(memory, std::max(pieces + end_nodes, nodes_.size()));
    AlignedArray<TokenLogprob> best(memory, nodes.size() * static_cast<size_t>(logprobs_));
    text_ = AlignedArray<char>(memory, text_bytes);
    nodes_ = std::move(nodes);
    best_ = std::move(best);
}

bool EventRoom::has_room() const {
    return count_ + 1 + end_nodes <= static_cast<int32_t>(nodes_.size()) &&
           text_.size() - text_used_ >= 2 * token_text_bytes_max_;  // the token's, and what an end lets go
}

EventNode* EventRoom::push(EventKind kind, std::string_view text) {
    EventNode* node = ::new (&node_at(count_)) EventNode();
    count_++;
    node->kind = kind;
    node->text_bytes = static_cast<uint32_t>(text.size());
    const size_t start = (text_first_ + text_used_) % text_.size();
    const size_t before_end = std::min(text.size(), text_.size() - start);
    if (!text.empty()) {
        std::memcpy(text_.data() + start, text.data(), before_end);
        std::memcpy(text_.data(), text.data() + before_end, text.size() - before_end);
    }
    text_used_ += text.size();
    return node;
}

std::span<TokenLogprob> EventRoom::logprobs_of(const EventNode* node) {
    const auto index = static_cast<size_t>(node - nodes_.data());
    return {best_.data() + index * static_cast<size_t>(logprobs_), static_cast<size_t>(logprobs_)};
}

EventNode* EventRoom::newest_progress() {
    if (count_ == 0) return nullptr;
    EventNode& newest = node_at(count_ - 1);
    return newest.kind == EventKind::progress ? &newest : nullptr;
}

EventNode* EventRoom::oldest() { return count_ == 0 ? nullptr : &node_at(0); }

void EventRoom::copy_oldest_text(char* out) const {
    const size_t size = nodes_[static_cast<size_t>(first_)].text_bytes;
    const size_t before_end = std::min(size, text_.size() - text_first_);
    if (size == 0) return;
    std::memcpy(out, text_.data() + text_first_, before_end);
    std::memcpy(out + before_end, text_.data(), size - before_end);
}

void EventRoom::pop() {
    const size_t size = node_at(0).text_bytes;
    text_first_ = (text_first_ + size) % text_.size();
    text_used_ -= size;
    first_ = (first_ + 1) % static_cast<int32_t>(nodes_.size());
    count_--;
}

}  // namespace treadle
