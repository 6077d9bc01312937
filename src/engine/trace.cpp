// The trace's ring, and its text in the Chrome trace event format: complete events (X), instants (i), counters (C), names (M);
// times in microseconds with the nanoseconds as decimals.
#include "engine/trace.h"

#include <algorithm>
#include <iterator>

#include "engine/metrics.h"
#include "engine/text_writer.h"

namespace treadle {
namespace {

constexpr std::string_view phase_names[] = {"intake", "plan", "run", "sample", "commit"};
constexpr std::string_view span_names[] = {"waiting", "prompt", "decode", "preempted"};
constexpr std::string_view instant_names[] = {"submit", "first token", "cancel", "finish"};

template <size_t count>
std::string_view name_of(const std::string_view (&names)[count], int32_t index) {
    return index >= 0 && static_cast<size_t>(index) < count ? names[index] : "other";
}

// Processes and threads are how the format groups lines; only their names mean anything.
constexpr std::string_view head =
    R"({"displayTimeUnit":"ms","traceEvents":[)"
    "\n"
    R"({"ph":"M","name":"process_name","pid":1,"tid":1,"args":{"name":"engine"}},)"
    "\n"
    R"({"ph":"M","name":"process_sort_index","pid":1,"tid":1,"args":{"sort_index":1}},)"
    "\n"
    R"({"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"phases of a step"}},)"
    "\n"
    R"({"ph":"M","name":"process_name","pid":2,"tid":0,"args":{"name":"sequences"}},)"
    "\n"
    R"({"ph":"M","name":"process_sort_index","pid":2,"tid":0,"args":{"sort_index":2}})";
constexpr std::string_view tail = "\n]}\n";
static_assert(head.size() + tail.size() < TraceReader::piece_bytes_min);

// Times come from the host's clock, so their difference may be anything; it wraps rather than being undefined.
int64_t difference(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

void write_line_name(uint32_t line, uint64_t request, int32_t sequence, TextWriter* out) {
    out->put(",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":2,\"tid\":").put(line);
    out->put(",\"args\":{\"name\":\"").put(line).put(": request ").put(request);
    if (sequence != 0) out->put(", sequence ").put(sequence);
    out->put("\"}},\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":2,\"tid\":").put(line);
    out->put(",\"args\":{\"sort_index\":").put(line).put("}}");
}

// Everything of an event but its args and the closing brace.
void write_start(std::string_view type, std::string_view name, uint32_t line, int64_t at_ns,
                 TextWriter* out) {
    out->put(",\n{\"ph\":\"").put(type).put("\",\"name\":\"").put(name);
    out->put(line == 0 ? "\",\"pid\":1,\"tid\":" : "\",\"pid\":2,\"tid\":").put(line == 0 ? 1 : line);
    out->put(",\"ts\":").put_decimal(at_ns, 3);
}

void write_duration(int64_t start_ns, int64_t end_ns, TextWriter* out) {
    out->put(",\"dur\":")
        .put_decimal(end_ns > start_ns ? std::max<int64_t>(difference(end_ns, start_ns), 0) : 0, 3);
}

}  // namespace

Trace::Trace(Memory* memory, size_t capacity, int64_t origin_ns)
    : events_(memory, std::min(capacity, capacity_max)), origin_ns_(origin_ns) {}

void Trace::put(const Event& event, TraceTrack* track) {
    if (track->line == 0) return;
    Event with_track = event;
    with_track.request = track->request;
    with_track.previous = track->last_event;
    with_track.line = track->line;
    with_track.sequence = track->sequence;
    put(with_track);
    track->last_event = next_;
}

void TraceReader::write_event(const Trace& trace, TextWriter* out) const {
    const Trace::Event& event = trace.events_[next_ % trace.events_.size()];
    const int64_t at_ns = difference(event.start_ns, trace.origin_ns_);
    // The first of its line in this text names it; those before are not in the text.
    if (event.line != 0 && event.previous <= first_)
        write_line_name(event.line, event.request, event.sequence, out);
    switch (event.kind) {
        case Trace::Kind::phase:
            write_start("X", name_of(phase_names, event.name), 0, at_ns, out);
            write_duration(event.start_ns, event.end_ns, out);
            break;
        case Trace::Kind::wait:
            write_start("X", name_of(span_names, event.name), event.line, at_ns, out);
            write_duration(event.start_ns, event.end_ns, out);
            break;
        case Trace::Kind::work:
            write_start("X", name_of(span_names, event.name), event.line, at_ns, out);
            write_duration(event.start_ns, event.end_ns, out);
            out->put(",\"args\":{\"tokens\":").put(event.values[0]).put(",\"context\":").put(event.values[1]);
            out->put(",\"pass\":").put(event.pass).put("}");
            break;
        case Trace::Kind::instant:
            write_start("i", name_of(instant_names, event.name), event.line, at_ns, out);
            out->put(",\"s\":\"t\"");
            if (event.name == static_cast<int32_t>(TraceInstant::finish))
                out->put(",\"args\":{\"reason\":\"")
                    .put(finish_reason_name(static_cast<FinishReason>(event.values[0])))
                    .put("\"}");
            break;
        case Trace::Kind::blocks:
            write_start("C", "blocks", 0, at_ns, out);
            out->put(",\"args\":{\"held\":").put(event.values[1]).put(",\"cached\":").put(event.values[2]);
            out->put(",\"free\":").put(event.values[0]).put("}");
            break;
        case Trace::Kind::requests:
            write_start("C", "requests", 0, at_ns, out);
            out->put(",\"args\":{\"running\":").put(event.values[0]);
            out->put(",\"waiting\":").put(event.values[1]).put("}");
            break;
    }
    out->put("}");
}

size_t TraceReader::read(const Trace& trace, std::span<char> out) {
    if (state_ == State::done || out.size() < piece_bytes_min) return 0;
    TextWriter writer(out);
    if (state_ == State::begin) {
        first_ = next_ = trace.oldest();
        last_ = trace.recorded();
        writer.put(head);
        state_ = State::events;
    }
    next_ = std::max(next_, std::min(trace.oldest(), last_));
    for (; next_ < last_; next_++) {
        const size_t whole_bytes = writer.bytes();
        write_event(trace, &writer);
        if (writer.fits()) continue;
        writer.cut_to(whole_bytes);
        return whole_bytes;
    }
    const size_t whole_bytes = writer.bytes();
    if (!writer.put(tail).fits()) return whole_bytes;
    state_ = State::done;
    return writer.bytes();
}

}  // namespace treadle
