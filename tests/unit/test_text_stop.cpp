// Stop strings and the text stream against slow models, for every cut of the input.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "text/stop.h"
#include "text/text_stream.h"

using namespace treadle;

namespace {

std::pmr::memory_resource* heap() { return std::pmr::new_delete_resource(); }

struct Outcome {
    std::string text;
    bool stopped = false;
    bool operator==(const Outcome&) const = default;
};

// The rule, word for word: the first end at which some stop string is complete; the longest of those; all
// before it is text.
Outcome model(const std::vector<std::string>& stops, const std::string& text) {
    for (size_t end = 1; end <= text.size(); ++end) {
        size_t longest = 0;
        for (const std::string& stop : stops) {
            if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0)
                longest = std::max(longest, stop.size());
        }
        if (longest > 0) return {text.substr(0, end - longest), true};
    }
    return {text, false};
}

StopSet make(const std::vector<std::string>& stops) {
    StopSet set(heap());
    const std::vector<std::string_view> views(stops.begin(), stops.end());
    Error error;
    REQUIRE(set.build(views, &error) == Status::OK);
    return set;
}

// Feeds `pieces`; checks on the way that nothing is delivered too early or held too long.
Outcome feed(const StopSet& set, const std::vector<std::string>& stops,
             const std::vector<std::string>& pieces) {
    StopMatcher matcher;
    Outcome outcome;
    std::string seen;
    for (const std::string& piece : pieces) {
        std::string out(matcher.held_bytes(set) + piece.size(), '\0');
        const StopResult result = matcher.feed(set, piece, out.data());
        REQUIRE(result.bytes <= out.size());
        outcome.text.append(out, 0, result.bytes);
        seen += piece;
        if (result.stopped) {
            outcome.stopped = true;
            return outcome;
        }
        size_t held = 0;  // exactly the longest tail that begins a stop string
        for (const std::string& stop : stops) {
            for (size_t n = 1; n < stop.size() && n <= seen.size(); ++n) {
                if (seen.compare(seen.size() - n, n, stop, 0, n) == 0) held = std::max(held, n);
            }
        }
        REQUIRE(outcome.text == seen.substr(0, seen.size() - held));
    }
    std::string rest(set.longest_bytes(), '\0');
    outcome.text.append(rest, 0, matcher.finish(set, rest.data()));
    return outcome;
}

std::string random_text(std::mt19937& random, size_t size) {
    static const char* letters[] = {"a", "b", "ab", "\xc3\xa9",
                                    "\xc3\xa8"};  // the last two share their first byte
    std::string text;
    while (text.size() < size) text += letters[random() % 5];
    return text;
}

std::vector<std::string> characters(const std::string& text) {
    std::vector<std::string> list;
    for (const char c : text) {
        if ((c & 0xc0) == 0x80)
            list.back() += c;
        else
            list.emplace_back(1, c);
    }
    return list;
}

}  // namespace

TEST_CASE("stop: equals the model for random strings, texts and cuts") {
    std::mt19937 random(11);
    for (int round = 0; round < 3000; ++round) {
        std::vector<std::string> stops;
        for (size_t n = random() % 5; n > 0; --n) stops.push_back(random_text(random, 1 + random() % 5));
        const StopSet set = make(stops);
        const std::string text = random_text(random, random() % 24);
        const Outcome expected = model(stops, text);
        const std::vector<std::string> list = characters(text);
        CHECK(feed(set, stops, list) == expected);
        CHECK(feed(set, stops, {text}) == expected);
        std::string head;
        for (size_t cut = 0; cut < list.size(); ++cut) {
            CHECK(feed(set, stops, {head, text.substr(head.size())}) == expected);
            head += list[cut];
        }
    }
}

TEST_CASE("stop: what is held comes out when it turns out not to be one") {
    const StopSet set = make({"</answer>", "</ans>", "wer"});
    CHECK(feed(set, {"</answer>", "</ans>", "wer"}, {"x </", "an", "gle>"}) == Outcome{"x </angle>", false});
    CHECK(feed(set, {"</answer>", "</ans>", "wer"}, {"x </", "ans"}) == Outcome{"x </ans", false});
    CHECK(feed(set, {"</answer>", "</ans>", "wer"}, {"x </", "answer>!"}) ==
          Outcome{"x </ans", true});  // "wer" ends first
    CHECK(feed(make({}), {}, {"any", "thing"}) == Outcome{"anything", false});
}

TEST_CASE("stop: of strings complete at the same byte the longest goes") {
    CHECK(feed(make({"end", "the end"}), {"end", "the end"}, {"say the end."}) == Outcome{"say ", true});
}

TEST_CASE("stop: bad sets name the string and leave the set as it was") {
    StopSet set = make({"stop"});
    Error error;
    const auto status = [&](std::vector<std::string_view> views) { return set.build(views, &error); };
    CHECK(status({"a", ""}) == Status::INVALID_ARGUMENT);
    CHECK(std::string(error.message).find("stop string 1") != std::string::npos);
    CHECK(status({"a\x80"}) == Status::INVALID_UTF8);
    CHECK(status(std::vector<std::string_view>(65, "a")) == Status::LIMIT);
    CHECK(std::string(error.message).find("65") != std::string::npos);
    const std::string longest(4096, 'x');
    CHECK(status({longest + "x"}) == Status::LIMIT);
    CHECK(set.longest_bytes() == 4);
    CHECK(feed(set, {"stop"}, {"a stop b"}) == Outcome{"a ", true});
    CHECK(status({longest, "y", "y"}) == Status::OK);
    CHECK(set.longest_bytes() == 4096);
}

TEST_CASE("stop: 64 strings of 4096 bytes that share all but the end") {
    std::vector<std::string> stops;
    for (int i = 0; i < 64; ++i) stops.push_back(std::string(4095, 'x') + static_cast<char>('0' + i));
    const StopSet set = make(stops);
    StopMatcher matcher;
    const std::string text(200000, 'x');
    std::string out(text.size() + set.longest_bytes(), '\0');
    StopResult result = matcher.feed(set, text, out.data());
    CHECK(result.bytes == text.size() - 4095);
    result = matcher.feed(set, "5", out.data());
    CHECK(result.stopped);
    CHECK(result.bytes == 0);
}

TEST_CASE("text stream: bytes to text without stops equals UTF-8 and stop models together, for every cut") {
    std::mt19937 random(13);
    static const char* bits[] = {"a",    "b", "\xf0\x9f\x98\x80", "\xf0\x9f", "\x98", "\xc3\xa9", "\xc3",
                                 "\xff", "ab"};
    for (int round = 0; round < 3000; ++round) {
        std::string bytes;
        for (size_t n = random() % 10; n > 0; --n) bytes += bits[random() % 9];
        static const std::vector<std::string> choices = {"ab",
                                                         "ba",
                                                         "\xf0\x9f\x98\x80",
                                                         "\xc3\xa9"
                                                         "a",
                                                         "\xef\xbf\xbd",
                                                         "aa",
                                                         "b\xef\xbf\xbd"};
        std::vector<std::string> stops;
        for (size_t n = random() % 3; n > 0; --n) stops.push_back(choices[random() % choices.size()]);
        const StopSet set = make(stops);

        Utf8Stream utf8;  // trusted here: it has its own test
        std::string text(Utf8Stream::output_bytes_max(bytes.size()) + 3, '\0');
        size_t size = utf8.push(bytes, text.data());
        size += utf8.finish(text.data() + size);
        text.resize(size);
        const Outcome expected = model(stops, text);

        for (size_t cut = 0; cut <= bytes.size(); ++cut) {
            TextStream stream;
            Outcome outcome;
            const auto take = [&](std::string_view piece, bool last) {
                std::string out(TextStream::output_bytes_max(set, piece.size()), '\0');
                const StopResult result =
                    last ? stream.finish(set, out.data()) : stream.push(set, piece, out.data());
                REQUIRE(result.bytes <= out.size());
                CHECK(find_invalid_utf8({out.data(), result.bytes}) == utf8_valid);
                outcome.text.append(out, 0, result.bytes);
                outcome.stopped = result.stopped;
            };
            take(std::string_view(bytes).substr(0, cut), false);
            take(std::string_view(bytes).substr(cut), false);
            take({}, true);
            CHECK(outcome == expected);
        }
    }
}

TEST_CASE(
    "a character that begins before the answer is delivered whole, and nothing else of what comes before") {
    struct Case {
        std::string before, answer, text;
    };
    const std::vector<Case> cases = {
        {"abc\xc3", "\xa9!", "\xc3\xa9!"},
        {"\xf0\x9f\x98", "\x80", "\xf0\x9f\x98\x80"},
        {"many bytes \xe2\x82", "\xac", "\xe2\x82\xac"},
        {"\xe2", "\x82\xac", "\xe2\x82\xac"},
        {"abc\xc3", "def", "def"},
        {"abc\xe0", "\x80x", "\xef\xbf\xbdx"},  // not one of its continuations
        {"abc\xc3", "", ""},
        {"\xf0\x9f", "\x98", "\xef\xbf\xbd"},  // the answer's byte, cut off
        {"\xf0\x9f", "\x98z", "\xef\xbf\xbdz"},
        {"\x80\x80\x80\x80", "\x80", "\xef\xbf\xbd"},
        {"", "\xc3\xa9", "\xc3\xa9"},
        {"whole \xc3\xa9", "\xa9", "\xef\xbf\xbd"},
    };
    const StopSet none = make({});
    for (const Case& one : cases) {
        CAPTURE(one.before);
        CAPTURE(one.answer);
        for (size_t cut = 0; cut <= one.answer.size(); ++cut) {
            TextStream stream;
            stream.begin_after(one.before);
            std::string out;
            const auto take = [&](std::string_view piece) {
                char room[64];
                out.append(room, stream.push(none, piece, room).bytes);
            };
            take(std::string_view(one.answer).substr(0, cut));
            take(std::string_view(one.answer).substr(cut));
            char room[64];
            out.append(room, stream.finish(none, room).bytes);
            CHECK(out == one.text);
        }
    }
}
