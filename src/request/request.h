// What a request is: one submission, its sequence of tokens, the blocks it holds and the events it waits to hand over. The api
// makes it at submit with everything it will ever need; intake, plan and commit move it through its states.
//
//     waiting ─► prompt ─► generating ─► finished ─► (final event polled, or released) ─► freed
//        └──────────┴───────────┴───────────▲
//
// Invariants: `computed` positions are in the cache and computed < tokens.size(); a live request is in exactly one queue of the
// scheduler; blocks are given back only when no pass under way names them; it is freed only when it is over, the host gave it
// up, and neither a pass nor the list of orders names it.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "request/event_room.h"
#include "sampling/sampler.h"
#include "text/stop.h"
#include "text/text_stream.h"

namespace treadle {

enum class RequestState : int32_t { waiting = 0, prompt = 1, generating = 2, finished = 4 };
enum class FinishReason : int32_t {
    none = 0,
    end = 1,
    stop_string = 2,
    length = 3,
    cancelled = 4,
    error = 5
};

// What was asked, checked and in the library's own memory.
struct RequestParams {
    explicit RequestParams(Memory* memory) : stop_tokens(memory), stops(memory) {}
    SamplingParams sampling;
    uint32_t first_sample = 0;
    std::pmr::vector<int32_t> stop_tokens;
    StopSet stops;
    bool ignore_end = false;
    bool keep = false;
    uint64_t user_data = 0;
};

struct Request {
    // `tokens` is the prompt, with room for `limit` tokens in all.
    Request(Memory* memory, RequestParams&& asked, std::pmr::vector<int32_t>&& prompt, int32_t limit_tokens,
            size_t token_bytes_max);

    int32_t length() const { return static_cast<int32_t>(tokens.size()); }
    int32_t generated() const { return length() - prompt_tokens; }
    int32_t left() const {
        return length() - computed;
    }  // tokens whose keys and values are not in the cache yet
    bool finished() const { return state == RequestState::finished; }

    uint64_t id = 0;
    RequestParams params;
    RequestState state = RequestState::waiting;

    std::pmr::vector<int32_t> tokens;
    int32_t prompt_tokens;
    int32_t limit;         // tokens at which the sequence is full
    int32_t computed = 0;  // positions in the cache

    std::pmr::vector<int32_t> blocks;  // the block table: positions 16 i … 16 i + 15 are in blocks[i]
    int32_t blocks_reserved = 0;       // promised by the pool, not acquired yet

    TextStream text;
    EventRoom room;

    FinishReason finish_reason = FinishReason::none;
    Error failure;

    bool in_pass = false;   // rows of it are in the pass under way
    bool released = false;  // the host gave it up: no events, its id is stale
    bool ordered = false;   // in the list of orders (cancel, release) that the step carries out
    Request* next_order = nullptr;
    int32_t skipped = 0;  // followers that were admitted before it

    Request* previous = nullptr;  // links of the queue it is in
    Request* next = nullptr;
};

// A list of requests in order of arrival, linked through the requests themselves.
class RequestQueue {
public:
    Request* front() const { return front_; }
    bool empty() const { return front_ == nullptr; }
    int32_t size() const { return size_; }
    void append(Request* request);
    void remove(Request* request);
    Request* take_front();
    int32_t place(const Request* request) const;  // requests before it, -1 if it isn't here

private:
    Request* front_ = nullptr;
    Request* back_ = nullptr;
    int32_t size_ = 0;
};

// Ids: slot + 1 in the low half, generation in the high half, so that 0 is no request and a slot's next user has another id.
class RequestTable {
public:
    RequestTable(Memory* memory, int32_t capacity);

    int32_t live() const { return live_; }
    bool full() const { return free_count_ == 0; }
    void add(Request* request);        // gives it its id; the table must not be full
    Request* find(uint64_t id) const;  // null: stale, released, or never made
    void remove(Request* request);

    template <class Visit>
    void for_each(Visit visit) const {  // all, released ones too; visit may remove the one it is at
        for (const Slot& slot : slots_)
            if (slot.request != nullptr) visit(slot.request);
    }

private:
    struct Slot {
        Request* request;
        uint32_t generation;
    };
    AlignedArray<Slot> slots_;
    AlignedArray<int32_t> free_slots_;
    int32_t free_count_;
    int32_t live_ = 0;
};

}  // namespace treadle
