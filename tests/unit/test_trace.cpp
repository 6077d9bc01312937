// The trace: what is recorded comes out as valid Chrome trace JSON, in any pieces, also when the ring overwrites its events.
#include <doctest/doctest.h>

#include <cctype>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/trace.h"
#include "test_memory.h"

using namespace treadle;

namespace {

// A JSON value of a trace: an object, a list, or the text of a string or number. Strict about the grammar.
struct Json {
    char kind = 0;  // '{', '[', '"', '0'
    std::string text;
    std::map<std::string, Json> members;
    std::vector<Json> items;

    const Json& operator[](const std::string& name) const {
        REQUIRE(members.count(name) == 1);
        return members.at(name);
    }
    bool has(const std::string& name) const { return members.count(name) == 1; }
    double number() const {
        REQUIRE(kind == '0');
        return std::stod(text);
    }
};

class JsonReader {
public:
    explicit JsonReader(const std::string& text) : text_(text) {}

    Json whole() {
        Json value = read(0);
        skip();
        REQUIRE(at_ == text_.size());
        return value;
    }

private:
    void skip() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) at_++;
    }
    char peek() {
        skip();
        REQUIRE(at_ < text_.size());
        return text_[at_];
    }
    void expect(char c) {
        REQUIRE(peek() == c);
        at_++;
    }
    std::string string() {
        expect('"');
        const size_t end = text_.find('"', at_);
        REQUIRE(end != std::string::npos);
        std::string content = text_.substr(at_, end - at_);
        REQUIRE(content.find('\\') == std::string::npos);  // nothing in a trace needs escapes
        for (const char c : content) REQUIRE(static_cast<unsigned char>(c) >= 0x20);
        at_ = end + 1;
        return content;
    }
    void digits() {
        REQUIRE(std::isdigit(static_cast<unsigned char>(text_[at_])) != 0);
        while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) at_++;
    }
    std::string number() {
        const size_t start = at_;
        if (text_[at_] == '-') at_++;
        const bool zero = text_[at_] == '0';
        const size_t first = at_;
        digits();
        REQUIRE((!zero || at_ == first + 1));
        if (at_ < text_.size() && text_[at_] == '.') {
            at_++;
            digits();
        }
        return text_.substr(start, at_ - start);
    }
    Json read(int depth) {
        REQUIRE(depth < 6);
        Json value;
        const char c = peek();
        value.kind = c == '{' || c == '[' || c == '"' ? c : '0';
        if (c == '"') {
            value.text = string();
        } else if (c == '{' || c == '[') {
            const char end = c == '{' ? '}' : ']';
            at_++;
            for (bool first = true; peek() != end; first = false) {
                if (!first) expect(',');
                if (c == '[') {
                    value.items.push_back(read(depth + 1));
                    continue;
                }
                const std::string name = string();
                expect(':');
                REQUIRE(value.members.emplace(name, read(depth + 1)).second);
            }
            at_++;
        } else {
            value.text = number();
        }
        return value;
    }

    const std::string& text_;
    size_t at_ = 0;
};

// What the format asks of each event, and that each line is named before it is used.
std::vector<Json> checked_events(const std::string& text) {
    const Json whole = JsonReader(text).whole();
    CHECK(whole["displayTimeUnit"].text == "ms");
    std::set<std::pair<double, double>> named;
    std::vector<Json> events;
    for (const Json& event : whole["traceEvents"].items) {
        const std::string type = event["ph"].text;
        const std::pair line{event["pid"].number(), event["tid"].number()};
        if (type == "M") {
            if (event["name"].text == "thread_name") named.insert(line);
            CHECK(event["args"].members.size() == 1);
            continue;
        }
        CHECK(named.count(line) == 1);
        CHECK(event.has("ts"));
        CHECK((type == "X" || type == "i" || type == "C"));
        CHECK(event.has("dur") == (type == "X"));
        if (type == "X") CHECK(event["dur"].number() >= 0);
        if (type == "i") CHECK(event["s"].text == "t");
        events.push_back(event);
    }
    return events;
}

std::string text_of(const Trace& trace, size_t piece_bytes = 1 << 16) {
    TraceReader reader;
    std::string text;
    std::string piece(piece_bytes, '#');
    while (const size_t bytes = reader.read(trace, {piece.data(), piece.size()})) {
        REQUIRE(bytes <= piece_bytes);
        text.append(piece, 0, bytes);
    }
    CHECK(reader.done());
    return text;
}

struct Fixture {
    test::TestAllocator allocator;
    Memory memory{allocator.hooks(), MemoryKind::other};
};

// Two sequences through some passes, one event of each kind at least.
void run_engine(Trace* trace, int passes) {
    TraceTrack first = trace->new_track(4294967297, 0);
    TraceTrack second = trace->new_track(4294967298, 1);
    trace->instant(&first, TraceInstant::submit, 1'000);
    trace->instant(&second, TraceInstant::submit, 2'000);
    trace->wait(&first, TraceSpan::waiting, 1'000, 5'500);
    trace->wait(&second, TraceSpan::waiting, 2'000, 5'500);
    for (int pass = 0; pass < passes; pass++) {
        const int64_t at = 10'000 * (pass + 1);
        trace->phase(TracePhase::intake, at, at + 100);
        trace->phase(TracePhase::plan, at + 100, at + 350);
        trace->phase(TracePhase::run, at + 350, at + 8'000);
        trace->phase(TracePhase::sample, at + 8'000, at + 8'500);
        const TraceSpan span = pass < 2 ? TraceSpan::prompt : TraceSpan::decode;
        trace->work(
            &first, span, at + 350, at + 8'500,
            {.tokens = pass < 2 ? 64 : 1, .context = pass < 2 ? 64 * pass : 126 + pass, .pass = pass});
        if (pass == 1) trace->instant(&first, TraceInstant::first_token, at + 8'500);
        trace->phase(TracePhase::commit, at + 8'500, at + 9'000);
        trace->blocks(at + 9'000, 20 - pass % 8, 8 + pass % 8, 4);
        trace->requests(at + 9'000, 1, 1);
    }
    const int64_t end = 10'000 * (passes + 1);
    trace->wait(&second, TraceSpan::preempted, 20'000, end);
    trace->instant(&second, TraceInstant::cancel, end);
    trace->finish(&second, end, FinishReason::cancelled);
    trace->finish(&first, end, FinishReason::length);
}

}  // namespace

TEST_CASE("a trace comes out as JSON with everything that was recorded") {
    Fixture fixture;
    Trace trace(&fixture.memory, 1000, 1'000);
    run_engine(&trace, 5);
    const std::vector<Json> events = checked_events(text_of(trace));
    CHECK(events.size() == trace.recorded());
    std::map<std::string, int> count;
    for (const Json& event : events) count[event["ph"].text + " " + event["name"].text]++;
    CHECK(count["X intake"] == 5);
    CHECK(count["X run"] == 5);
    CHECK(count["X prompt"] == 2);
    CHECK(count["X decode"] == 3);
    CHECK(count["X waiting"] == 2);
    CHECK(count["X preempted"] == 1);
    CHECK(count["i submit"] == 2);
    CHECK(count["i first token"] == 1);
    CHECK(count["i finish"] == 2);
    CHECK(count["C blocks"] == 5);
    CHECK(count["C requests"] == 5);

    CHECK(events[0]["ts"].text == "0");
    const Json& chunk = events[8];
    CHECK(chunk["name"].text == "prompt");
    CHECK(chunk["pid"].text == "2");
    CHECK(chunk["tid"].text == "1");
    CHECK(chunk["ts"].text == "9.35");
    CHECK(chunk["dur"].text == "8.15");
    CHECK(chunk["args"]["tokens"].text == "64");
    CHECK(chunk["args"]["pass"].text == "0");
    CHECK(events.back()["args"]["reason"].text == "length");
}

TEST_CASE("spans of a line come in order and don't overlap") {
    Fixture fixture;
    Trace trace(&fixture.memory, 1000, 0);
    run_engine(&trace, 20);
    std::map<std::string, double> ended;
    double last_end = 0;
    for (const Json& event : checked_events(text_of(trace))) {
        const double start = event["ts"].number();
        const double end = start + (event.has("dur") ? event["dur"].number() : 0);
        CHECK(end >= last_end - 1e-6);
        last_end = end;
        if (!event.has("dur")) continue;
        double& line = ended[event["pid"].text + "." + event["tid"].text];
        CHECK(start >= line - 1e-6);
        line = end;
    }
}

TEST_CASE("a ring that overwrote its oldest events is still a trace, whatever its capacity") {
    Fixture fixture;
    for (const size_t capacity : {1, 2, 3, 7, 10, 64, 1000}) {
        CAPTURE(capacity);
        Trace trace(&fixture.memory, capacity, 0);
        run_engine(&trace, 30);
        CHECK(checked_events(text_of(trace)).size() == std::min<size_t>(capacity, trace.recorded()));
    }
}

TEST_CASE("pieces of any size make the same text") {
    Fixture fixture;
    Trace trace(&fixture.memory, 1000, 0);
    run_engine(&trace, 30);
    const std::string whole = text_of(trace);
    for (const size_t size :
         {TraceReader::piece_bytes_min, size_t{1025}, size_t{1500}, size_t{4096}, whole.size()})
        CHECK(text_of(trace, size) == whole);
    TraceReader reader;
    char little[TraceReader::piece_bytes_min - 1];
    CHECK(reader.read(trace, little) == 0);
    CHECK_FALSE(reader.done());
}

TEST_CASE("events that are recorded or overwritten between two pieces leave the text valid") {
    Fixture fixture;
    for (const int passes_between : {1, 3, 50}) {
        Trace trace(&fixture.memory, 200, 0);
        run_engine(&trace, 30);
        TraceReader reader;
        std::string text;
        char piece[1100];
        while (const size_t bytes = reader.read(trace, piece)) {
            text.append(piece, bytes);
            TraceTrack track = trace.new_track(7, 0);
            for (int i = 0; i < passes_between; i++) trace.instant(&track, TraceInstant::submit, 1'000'000);
        }
        const Json json = JsonReader(text).whole();
        CHECK(json["traceEvents"].items.size() > 5);
        for (const Json& event : json["traceEvents"].items)
            if (event.has("ts")) CHECK(event["ts"].number() < 1'000);
    }
}

TEST_CASE("a trace of no capacity is off: it takes no memory and is empty JSON") {
    Fixture fixture;
    Trace trace(&fixture.memory, 0, 0);
    CHECK_FALSE(trace.on());
    TraceTrack track = trace.new_track(1, 0);
    CHECK(track.line == 0);
    run_engine(&trace, 10);
    CHECK(trace.recorded() == 0);
    CHECK(fixture.allocator.calls() == 0);
    CHECK(checked_events(text_of(trace)).empty());
}

TEST_CASE("recording and reading allocate nothing after the start, and times may be anything") {
    Fixture fixture;
    Trace trace(&fixture.memory, 100, INT64_MIN);
    CHECK(fixture.allocator.calls() == 1);
    fixture.allocator.fail_from(0);
    run_engine(&trace, 20);
    trace.phase(TracePhase::run, INT64_MIN, INT64_MAX);
    trace.phase(TracePhase::run, INT64_MAX, INT64_MIN);
    trace.phase(TracePhase::run, 500, 400);  // a clock that jumped back
    trace.phase(static_cast<TracePhase>(99), 0, 0);
    TraceTrack unnamed;
    trace.instant(&unnamed, TraceInstant::submit, 0);
    CHECK(unnamed.last_event == 0);
    TraceTrack longest = trace.new_track(UINT64_MAX, INT32_MAX);
    trace.work(&longest, TraceSpan::prompt, INT64_MIN + 1, INT64_MAX, {INT32_MIN, INT32_MIN, INT64_MIN});
    const std::vector<Json> events = checked_events(text_of(trace, TraceReader::piece_bytes_min));
    CHECK(events.size() == 100);
    CHECK(fixture.allocator.calls() == 1);
    fixture.allocator.fail_never();
}

TEST_CASE("no memory for the ring is bad_alloc, and a huge capacity is cut") {
    Fixture fixture;
    fixture.allocator.fail_from(0);
    CHECK_THROWS_AS(Trace(&fixture.memory, 100, 0), std::bad_alloc);
    CHECK_THROWS_AS(Trace(&fixture.memory, SIZE_MAX, 0), std::bad_alloc);
    CHECK(fixture.memory.bytes_in_use() == 0);
}
