// What the engine did and when, as a ring of events in fixed memory; written as Chrome trace JSON it opens in Perfetto and
// chrome://tracing. The engine owns one Trace and calls it under its lock at the end of what an event is about; the api reads it
// piece by piece under the same lock.
//
//     process "engine"     phases    ▐intake▐▐plan▐▐──── run ────▐▐sample▐▐commit▐       counters: blocks, requests
//     process "sequences"  1         ▐─ waiting ─▐▐─ prompt ─▐▐ decode ▐▐ decode ▐ …      instants: submit, first token,
//                          2         ▐────── waiting ──────▐▐─ prompt ─▐▐ preempted ▐ …   cancel, finish
//
//     ring   … │ n-2 │ n-1 │  n-capacity (oldest) │ …      event number n is at n mod capacity and overwrites the oldest
//
// Invariants: nothing allocates after construction; a trace of capacity 0 is off, and each call is one comparison; an event is
// complete when it is put, so whatever was overwritten before it, the rest is a valid trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/memory.h"
#include "request/request.h"

namespace treadle {

class TextWriter;

enum class TracePhase : int32_t { intake = 0, plan = 1, run = 2, sample = 3, commit = 4 };
enum class TraceSpan : int32_t { waiting = 0, prompt = 1, decode = 2, preempted = 3 };
enum class TraceInstant : int32_t { submit = 0, first_token = 1, cancel = 2, finish = 3 };

// What a pass did for a sequence.
struct TraceWork {
    int32_t tokens = 0;   // positions computed; 1 for decode
    int32_t context = 0;  // positions in the cache before them
    int64_t pass = 0;     // number of the pass
};

class Trace {
public:
    static constexpr size_t capacity_max = size_t{1} << 24;

    // Room for `capacity` events (0: off; at most capacity_max), 72 bytes each. Times are written relative to `origin_ns`.
    Trace(Memory* memory, size_t capacity, int64_t origin_ns);

    bool on() const { return events_.size() != 0; }
    TraceTrack new_track(uint64_t request, int32_t sequence) {
        return on() ? TraceTrack{request, 0, ++lines_, sequence} : TraceTrack{};
    }

    // A part of a step. Phases come one after another and don't overlap.
    void phase(TracePhase phase, int64_t start_ns, int64_t end_ns) {
        if (on()) put({.start_ns = start_ns, .end_ns = end_ns, .kind = Kind::phase, .name = int32_t(phase)});
    }
    // waiting and preempted: how long a sequence computed nothing.
    void wait(TraceTrack* track, TraceSpan span, int64_t start_ns, int64_t end_ns) {
        if (on())
            put({.start_ns = start_ns, .end_ns = end_ns, .kind = Kind::wait, .name = int32_t(span)}, track);
    }
    // prompt (a chunk of it, recomputation included) and decode: one per pass and sequence.
    void work(TraceTrack* track, TraceSpan span, int64_t start_ns, int64_t end_ns, const TraceWork& work) {
        if (on())
            put({.start_ns = start_ns,
                 .end_ns = end_ns,
                 .pass = work.pass,
                 .kind = Kind::work,
                 .name = int32_t(span),
                 .values = {work.tokens, work.context}},
                track);
    }
    void instant(TraceTrack* track, TraceInstant instant, int64_t at_ns) {
        if (on())
            put({.start_ns = at_ns, .end_ns = at_ns, .kind = Kind::instant, .name = int32_t(instant)}, track);
    }
    void finish(TraceTrack* track, int64_t at_ns, FinishReason reason) {
        if (on())
            put({.start_ns = at_ns,
                 .end_ns = at_ns,
                 .kind = Kind::instant,
                 .name = int32_t(TraceInstant::finish),
                 .values = {int32_t(reason)}},
                track);
    }
    void blocks(int64_t at_ns, int32_t free, int32_t held, int32_t cached) {
        if (on())
            put({.start_ns = at_ns, .end_ns = at_ns, .kind = Kind::blocks, .values = {free, held, cached}});
    }
    void requests(int64_t at_ns, int32_t running, int32_t waiting) {
        if (on())
            put({.start_ns = at_ns, .end_ns = at_ns, .kind = Kind::requests, .values = {running, waiting}});
    }

    uint64_t recorded() const { return next_; }  // events since the beginning, overwritten ones too
    uint64_t oldest() const { return next_ <= events_.size() ? 0 : next_ - events_.size(); }

private:
    friend class TraceReader;

    enum class Kind : int32_t { phase, wait, work, instant, blocks, requests };
    struct Event {
        int64_t start_ns;
        int64_t end_ns;
        int64_t pass = 0;
        uint64_t request = 0;
        uint64_t previous = 0;  // of the same line, as TraceTrack::last_event
        Kind kind;
        int32_t name = 0;
        uint32_t line = 0;
        int32_t sequence = 0;
        int32_t values[3] = {};
    };

    void put(const Event& event, TraceTrack* track);
    void put(const Event& event) {
        events_[slot_] = event;
        slot_ = slot_ + 1 == events_.size() ? 0 : slot_ + 1;
        next_++;
    }

    AlignedArray<Event> events_;  // (capacity)
    int64_t origin_ns_;
    uint64_t next_ = 0;  // number of the next event
    size_t slot_ = 0;    // its place, next_ mod capacity, without the division
    uint32_t lines_ = 0;
};

// Writes what a trace holds as JSON, in pieces of whatever size the caller has room for. So the engine's lock is held for one
// piece at a time, the host's write callback gets it outside of the lock, and nobody has to guess the size of a trace that grows
// while it is asked. Events recorded after the first read are left out; those overwritten between two reads are missing, and the
// JSON stays valid. In the order of recording, which is that of their ends:
//
//     {"displayTimeUnit":"ms","traceEvents":[ names, event, event, … ]}
class TraceReader {
public:
    static constexpr size_t piece_bytes_min = 1024;  // the longest of what can't be cut fits

    // Writes as many whole events as fit and returns their bytes. 0: all is written, or `out` has less than piece_bytes_min.
    // Each call is about the same trace.
    size_t read(const Trace& trace, std::span<char> out);
    bool done() const { return state_ == State::done; }

private:
    enum class State : int32_t { begin, events, done };

    void write_event(const Trace& trace, TextWriter* out) const;  // the one numbered next_

    State state_ = State::begin;
    uint64_t first_ = 0;  // numbers of events: the first of this text,
    uint64_t next_ = 0;   // the next to write,
    uint64_t last_ = 0;   // and where it ends
};

}  // namespace treadle
