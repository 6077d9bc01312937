// The text of tokens that were generated before: what a fork or a restored session goes on behind, and how far a saved one got.
// Called by submit, fork, save and restore, without a lock.
//
// Invariant: the stream is afterwards as it was when the last of the tokens had been told (Engine::append_token), whatever
// pieces they came in; but a stop string or token that is among them ends nothing that goes on behind it.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>

#include "request/request.h"
#include "text/text_stream.h"
#include "text/vocabulary.h"

namespace treadle {

// The prompt may end in the middle of a character, which the answer then completes. The stream is a new one.
inline void begin_after_prompt(const Vocabulary& vocabulary, std::span<const int32_t> prompt,
                               TextStream* stream) {
    char tail[TextStream::context_bytes];
    size_t free = sizeof tail;  // filled from its end
    for (size_t i = prompt.size(); i > 0 && free > 0; i--) {
        if (vocabulary.is_control(prompt[i - 1])) continue;
        const std::string_view bytes = vocabulary.token_bytes(prompt[i - 1]);
        const size_t taken = std::min(bytes.size(), free);
        free -= taken;
        std::memcpy(tail + free, bytes.data() + bytes.size() - taken, taken);
    }
    stream->begin_after({tail + free, sizeof tail - free});
}

// Whether the token ends an answer; then its own text isn't told.
inline bool ends_answer(const Vocabulary& vocabulary, const RequestParams& params, int32_t token) {
    const auto& stops = params.stop_tokens;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) return true;
    return !params.ignore_end && vocabulary.is_end_of_generation(token);
}

// Calls told(std::string_view) with what each token after the prompt let go. `scratch` has room for what one can. The stream is
// a new one. A stop string is removed with the rest of the token that completes it, and a stop token lets go what was held back;
// what comes then is as after a prompt. goes_on: also what comes after the last token.
template <class Told>
void replay_text(const Vocabulary& vocabulary, const RequestParams& params, std::span<const int32_t> tokens,
                 size_t prompt_tokens, bool goes_on, std::span<char> scratch, TextStream* stream, Told told) {
    const auto begin_after = [&](size_t count) {
        *stream = TextStream();
        begin_after_prompt(vocabulary, tokens.first(count), stream);
    };
    begin_after(prompt_tokens);
    for (size_t i = prompt_tokens; i < tokens.size(); i++) {
        if (stream->stopped()) begin_after(i);
        const bool end = ends_answer(vocabulary, params, tokens[i]);
        if (!end && vocabulary.is_control(tokens[i])) continue;
        const StopResult text =
            end ? stream->finish(params.stops, scratch.data())
                : stream->push(params.stops, vocabulary.token_bytes(tokens[i]), scratch.data());
        told(std::string_view(scratch.data(), text.bytes));
    }
    if (goes_on && stream->stopped()) begin_after(tokens.size());
}

}  // namespace treadle
