// What a request is: one submission, and its sequences: growing lists of tokens, each with the blocks it holds and the events it
// waits to hand over. The api makes it at submit with everything it will ever need; intake, plan and commit move its sequences
// through their states.
//
//              ┌──────────── preempted ◄─┐
//              ▼             │           │
//     waiting ─► prompt ─► generating ─► finished ─► (final event polled, or released) ─► freed
//        └──────────┴───────────┴───────────▲
//
// A pin has one sequence that wants no answer: once its tokens are computed it is `pinned`, and holds its blocks until it ends.
//
// Invariants: a sequence's state is its tokens, and all else follows from them: what it has in the cache may go at any time. A
// live sequence is in exactly one queue of the scheduler; blocks are given back only when no pass under way names them. A
// request is freed only when all its sequences are over, the host gave it up, and nothing names it: no pass, order, mailbox or
// fork.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "kv/block_cache.h"
#include "request/beam_group.h"
#include "request/event_room.h"
#include "sampling/sampler.h"
#include "text/stop.h"
#include "text/text_stream.h"

namespace treadle {

enum class SequenceState : int32_t { waiting = 0, prompt = 1, generating = 2, finished = 4, pinned = 6 };
enum class FinishReason : int32_t {
    none = 0,
    end = 1,
    stop_string = 2,
    length = 3,
    cancelled = 4,
    error = 5,
    deadline = 6
};

// Who goes first. Bulk takes what the others leave; paused keeps its tokens and computes nothing.
enum class Priority : int32_t { interactive = 0, normal = 1, bulk = 2, paused = 3 };
constexpr int32_t priorities = 3;  // that compute

// What was asked, checked and in the library's own memory.
struct RequestParams {
    explicit RequestParams(Memory* memory) : stop_tokens(memory), stops(memory) {}
    SamplingParams sampling;
    uint64_t first_sample = 0;
    int32_t samples = 1;         // sequences that the host is told of
    int32_t beam_width = 1;      // hypotheses of a beam search; 1: it is none
    float length_penalty = 1;    // of a beam search
    int32_t generated_tail = 0;  // last tokens of the prompt that count as generated
    std::pmr::vector<int32_t> stop_tokens;
    StopSet stops;
    bool ignore_end = false;
    bool keep = false;
    bool pin = false;  // its prompt is to stay in the cache: no answer, no events
    Priority priority = Priority::normal;
    int64_t deadline_us = 0;  // after its submission; 0: none
    CacheScope scope;
    uint64_t user_data = 0;
};

// A sequence's line in the trace's picture (engine/trace.h). One that is default-constructed belongs to no line.
struct TraceTrack {
    uint64_t request = 0;     // the id that the host knows
    uint64_t last_event = 0;  // number of its newest event plus 1; 0: none yet
    uint32_t line = 0;        // 1, 2, 3 … in order of creation; 0: none
    int32_t sequence = 0;     // which of its request's sequences
};

// What the engine's recorder keeps with a sequence, for figures and trace. Times by the engine's clock.
struct SequenceRecord {
    int64_t waiting_since_ns = 0;
    int64_t newest_token_ns = 0;
    bool preempted = false;  // since its last admission, or paused
    TraceTrack track;
};

// What a waiting sequence lacked when the scheduler looked last, and what had been gained until then (Scheduler).
struct BlockLack {
    int64_t blocks = 0;
    bool is_known = false;
    bool all_yielded = false;  // what it would have lacked if all less urgent ones had given up theirs
    int64_t gained = 0;
    int64_t gained_of_yielding = 0;
};

struct Request;
class SequenceQueue;

// Positions that a sequence of so many tokens computes until it is full: nothing follows the last token, so it is never computed.
constexpr int32_t positions_of(int32_t tokens) { return tokens - 1; }

struct Sequence {
    // `prompt` is all it begins with; there is room for `limit` tokens in all.
    Sequence(Memory* memory, Request* of, int32_t index, std::pmr::vector<int32_t>&& prompt, int32_t limit,
             size_t token_bytes_max);

    int32_t length() const { return static_cast<int32_t>(tokens.size()); }
    bool answers() const { return length() > given_tokens; }  // it has got tokens of its own
    int32_t generated() const { return length() - prompt_tokens; }
    int32_t computed() const { return cache.tokens; }
    // Tokens that a pass must still compute before the next one can be chosen: the newest at least, for its logits.
    int32_t left() const { return std::max(length() - cache.tokens, 1); }
    int32_t next_position() const { return length() - left(); }
    bool finished() const { return state == SequenceState::finished; }
    bool runnable() const { return room.has_room(); }
    bool is_pin() const;
    bool is_whole_pin() const { return is_pin() && cache.tokens == length(); }
    // Positions that it computes in all, if it gets as long as it may, and the blocks they fill. A pin's are all computed. Of a
    // beam search the first sequence stands for the prompt too.
    int32_t positions_most() const { return is_pin() ? length() : positions_of(limit); }
    int32_t blocks_most() const;

    Request* request;
    int32_t index;          // in its request
    uint64_t sample_index;  // which of the draws of its seed are its
    SequenceState state = SequenceState::waiting;
    FinishReason finish_reason = FinishReason::none;
    Status failure = Status::OK;  // where that is error

    std::pmr::vector<int32_t> tokens;
    int32_t given_tokens;   // that it began with
    int32_t prompt_tokens;  // those of them that don't count as generated
    int32_t limit;          // tokens at which it is full
    int32_t wanted_limit;   // asked for, before context and cache had their say; INT32_MAX: as many as fit

    BlockTable cache;
    // Of its prompt, in the cache when it was first admitted; -1: not yet.
    int32_t cached_tokens = -1;
    // The most positions it ever had: what is computed below that is computed again.
    int32_t computed_most = 0;

    TextStream text;
    uint64_t told_bytes = 0;  // of the answer's text that its tokens let go; some may still wait in the room
    EventRoom room;
    SequenceRecord record;

    bool in_pass = false;             // rows of it are in the pass under way
    BeamRow beam_row = BeamRow::due;  // of a beam search: what its hypothesis waits for
    BlockLack lack;
    int64_t last_plan = 0;             // number of the last one that gave it a row
    int32_t skipped = 0;               // followers that were admitted before it
    Priority lent = Priority::paused;  // the most urgent of those that wait for what it computes
    SequenceQueue* queue = nullptr;    // it is in, null while it runs; its links there
    Sequence* previous = nullptr;
    Sequence* next = nullptr;
};

struct Request {
    Request(Memory* memory, RequestParams&& asked) : params(std::move(asked)), sequences(memory) {}

    bool finished() const { return live == 0; }

    uint64_t id = 0;
    RequestParams params;
    std::pmr::vector<Owned<Sequence>> sequences;  // of a beam search, as many as it is wide
    Owned<BeamGroup> beams;                       // null: it is no beam search
    int32_t live = 0;                             // sequences that have not finished
    int32_t in_pass = 0;                          // sequences in the pass under way
    uint64_t arrival = 0;                         // earlier ones are smaller
    uint64_t forks = 0;                           // made of it so far
    int64_t submitted_ns = 0;
    int64_t deadline_ns = INT64_MAX;
    int32_t deadline_place = -1;             // among the deadlines; -1: it has none
    Error failure;                           // the first that one of its sequences met
    FinishReason over = FinishReason::none;  // restored when it was over: it ends as it enters

    // Who names it; it is freed when nobody does.
    bool in_mailbox = false;
    bool ordered = false;   // in the list of orders that the step carries out
    bool released = false;  // the host gave it up: no events, its id is stale
    int32_t borrowers = 0;  // calls that read it without the lock

    // What the orders say.
    bool cancelled = false;
    Priority wanted_priority = Priority::normal;

    Request* next_mail = nullptr;
    Request* next_order = nullptr;
    Request* next_buried = nullptr;
    Request* next_pin = nullptr;  // among the pins, if it is one
    Request* previous_pin = nullptr;
    bool is_listed_pin = false;
};

inline bool Sequence::is_pin() const { return request->params.pin; }

// Tokens at which a sequence that may generate max_tokens after so many is full, as far as the host is asked; max_tokens -1: as
// many as fit, which is INT32_MAX here.
inline int32_t limit_wanted(int32_t tokens, int32_t max_tokens) {
    return max_tokens < 0 || max_tokens > INT32_MAX - tokens ? INT32_MAX : tokens + max_tokens;
}

// The most blocks that a beam search holds whose hypotheses have `limit` tokens at most: they share the whole blocks of the
// prompt; beyond, each has its own and perhaps one that it copies from.
int64_t beam_blocks(int32_t width, int32_t prompt_tokens, int32_t limit);

// Sequences in order of rank: urgent ones first, of equals those that arrived first.
inline Priority urgency(const Sequence& sequence) {
    return std::min(sequence.request->params.priority, sequence.lent);
}
bool ranks_before(const Sequence& a, const Sequence& b);

// Tokens of a sequence that the host may know. Those of a beam search change places until its end; then the best are told.
int32_t told_length(const Sequence& sequence);

// A sequence and those that are admitted and preempted together with it: its siblings in a beam search, otherwise none.
template <class Visit>
void for_each_of_unit(Sequence* sequence, Visit visit) {
    if (sequence->request->beams == nullptr) {
        visit(sequence);
        return;
    }
    for (const Owned<Sequence>& sibling : sequence->request->sequences) visit(sibling.get());
}
inline int32_t unit_size(const Sequence& sequence) {
    return sequence.request->beams == nullptr ? 1 : sequence.request->beams->width();
}
inline bool same_unit(const Sequence& a, const Sequence& b) {
    return &a == &b || (a.request == b.request && a.request->beams != nullptr);
}

// A list of sequences, linked through the sequences themselves, in order of arrival.
class SequenceQueue {
public:
    Sequence* front() const { return front_; }
    bool empty() const { return front_ == nullptr; }
    int32_t size() const { return size_; }
    // Where its arrival belongs: at the end, near the front if it comes back, or near the one inserted before it if many change
    // queues.
    void insert(Sequence* sequence);
    void remove(Sequence* sequence);
    int32_t place(const Sequence* sequence) const;  // sequences before it, -1 if it isn't here

private:
    Sequence* place_before(const Sequence& sequence) const;

    Sequence* front_ = nullptr;
    Sequence* back_ = nullptr;
    Sequence* inserted_ = nullptr;  // last of those that are here
    int32_t size_ = 0;
};

// Ids: slot + 1 in the low half, generation in the high half, so that 0 is no request and a slot's next user has another id.
// Slots take turns, so that a generation lasts as long as it can.
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
    AlignedArray<int32_t> free_slots_;  // a ring: what was freed first is used first
    int32_t first_free_ = 0;            // its place in the ring
    int32_t free_count_;
    int32_t live_ = 0;
};

}  // namespace treadle
