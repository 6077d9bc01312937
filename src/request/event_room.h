// The events of a sequence that the host has not polled yet, and the one list in which the events of all wait. Commit pushes,
// poll pops, both under the engine's table lock.
//
//     EventList   oldest ⇄ … ⇄ newest          nodes of all sequences, in the order in which things happened
//     EventRoom   nodes[ ][x][x][x][ ]         a ring: this sequence's nodes, oldest at `first`
//                 text [..xxxxxxx.....]        a ring: the bytes of their texts, one after another
//                 best [ ][n][n][n][ ]         `logprobs` pairs beside each node
//
// Invariant: everything is allocated when the request is submitted; a push never fails as long as has_room() was asked before
// the pass was planned. Nothing is dropped.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/memory.h"
#include "base/status.h"
#include "sampling/sampler.h"

namespace treadle {

struct Sequence;

enum class EventKind : int32_t { token = 0, text = 1, finished = 2, progress = 3 };

struct EventNode {
    EventNode* older = nullptr;
    EventNode* newer = nullptr;
    Sequence* sequence = nullptr;
    EventKind kind = EventKind::token;
    int32_t position = 0;
    int32_t token = -1;
    float logprob = 0;  // of a finished one: the score
    int32_t logprob_count = 0;
    uint32_t text_bytes = 0;
    bool last = false;  // of its request
};

class EventList {
public:
    EventNode* oldest() const { return oldest_; }
    void append(EventNode* node);
    void remove(EventNode* node);

private:
    EventNode* oldest_ = nullptr;
    EventNode* newest_ = nullptr;
};

class EventRoom {
public:
    // token_text_bytes_max: the most text that one token can bring with it, held-back text included.
    EventRoom(Memory* memory, size_t token_bytes_max, size_t token_text_bytes_max, int32_t logprobs);

    // Before the first push, for a sequence that is over: holds so much text beside the events of an end, in pieces that each
    // lack three bytes of token_text_bytes_max() at most.
    void make_room_for(size_t text_bytes, Memory* memory);

    bool has_room() const;  // for one more token event, and after it the events of an end
    int32_t count() const { return count_; }
    size_t text_bytes() const { return text_used_; }  // of all events here
    size_t text_bytes_max() const { return text_.size(); }
    size_t token_text_bytes_max() const { return token_text_bytes_max_; }
    bool empty() const { return count_ == 0; }

    // Appends an event; the caller fills in what the kind needs and links the node into the list. The text is copied.
    EventNode* push(EventKind kind, std::string_view text);
    std::span<TokenLogprob> logprobs_of(const EventNode* node);

    template <class Visit>
    void for_each(Visit visit) {  // oldest first
        for (int32_t i = 0; i < count_; i++) visit(&node_at(i));
    }

    // A progress event that nobody polled yet may be overwritten in place; null if the newest event is not one.
    EventNode* newest_progress();

    // The oldest event's text, in at most two pieces because the ring wraps; then drop it.
    EventNode* oldest();
    void copy_oldest_text(char* out) const;
    void pop();

private:
    EventNode& node_at(int32_t index) {
        return nodes_[static_cast<size_t>((first_ + index) % static_cast<int32_t>(nodes_.size()))];
    }

    AlignedArray<EventNode> nodes_;
    AlignedArray<TokenLogprob> best_;  // (nodes, logprobs)
    AlignedArray<char> text_;
    size_t text_first_ = 0;
    size_t text_used_ = 0;
    size_t token_text_bytes_max_;
    int32_t first_ = 0;
    int32_t count_ = 0;
    int32_t logprobs_;
};

}  // namespace treadle
