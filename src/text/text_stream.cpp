// Byte by byte through both stages, so that no buffer lies between them.
#include "text/text_stream.h"

namespace treadle {

void TextStream::begin_after(std::string_view bytes) {
    if (bytes.size() > context_bytes) bytes.remove_prefix(bytes.size() - context_bytes);
    char ignored[Utf8Stream::output_bytes_max(context_bytes)];
    static_cast<void>(utf8_.push(bytes, ignored));
}

StopResult TextStream::push(const StopSet& stops, std::string_view token_bytes, char* out) {
    StopResult result;
    result.stopped = stopped_;
    if (only_context_ && !token_bytes.empty()) {
        if (!utf8_.continues_with(static_cast<uint8_t>(token_bytes[0]))) utf8_ = {};
        only_context_ = false;
    }
    for (size_t i = 0; i < token_bytes.size() && !stopped_; ++i) {
        char characters[Utf8Stream::output_bytes_max(1)];
        const size_t count = utf8_.push(token_bytes.substr(i, 1), characters);
        const StopResult step = matcher_.feed(stops, {characters, count}, out + result.bytes);
        result.bytes += step.bytes;
        result.stopped = stopped_ = step.stopped;
    }
    return result;
}

StopResult TextStream::finish(const StopSet& stops, char* out) {
    StopResult result;
    result.stopped = stopped_;
    if (stopped_) return result;
    if (only_context_) utf8_ = {};
    char character[Utf8Stream::output_bytes_max(0)];
    const size_t count = utf8_.finish(character);
    result = matcher_.feed(stops, {character, count}, out);
    if (!result.stopped) result.bytes += matcher_.finish(stops, out + result.bytes);
    stopped_ = true;
    return result;
}

}  // namespace treadle
