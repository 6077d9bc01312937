// What a sequence's tokens say, as text that may be delivered: token bytes → whole UTF-8 → stop strings
// removed. The engine keeps one per sequence and pushes each generated token.
//
// Invariant: the state is a function of the bytes pushed and the stop set, so it can be rebuilt by replaying
// the tokens, and the text delivered doesn't depend on how the bytes were cut into tokens. A handful of
// bytes, copyable; nothing allocates.
#pragma once

#include <cstddef>
#include <string_view>

#include "text/stop.h"
#include "text/utf8.h"

namespace treadle {

class TextStream {
public:
    // Room that `out` needs for a push of so many bytes; finish needs output_bytes_max(stops, 0).
    static size_t output_bytes_max(const StopSet& stops, size_t input_bytes) {
        return stops.longest_bytes() + Utf8Stream::output_bytes_max(input_bytes);
    }

    // Before the first push: the bytes that come before the answer, or the last few of them (a character has four at most).
    // A character that they begin and the answer goes on with is delivered whole; nothing else of them is.
    static constexpr size_t context_bytes = 3;
    void begin_after(std::string_view bytes);

    // Writes the text that became deliverable to `out`. Once stopped, nothing is written any more.
    StopResult push(const StopSet& stops, std::string_view token_bytes, char* out);

    // No more tokens come: a character cut off becomes U+FFFD (which may yet complete a stop string), held
    // text is let go.
    StopResult finish(const StopSet& stops, char* out);

    bool stopped() const { return stopped_; }

private:
    Utf8Stream utf8_;
    StopMatcher matcher_;
    bool only_context_ = true;  // no byte of the answer has come yet
    bool stopped_ = false;
};

}  // namespace treadle
