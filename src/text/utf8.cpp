// The byte ranges are those of the Unicode standard's table of well-formed UTF-8 (3-7).
#include "text/utf8.h"

#include <cstring>

namespace treadle {

Utf8State::Step Utf8State::step(uint8_t byte) {
    if (needed_ > 0) {
        if (byte < lowest_ || byte > highest_) {
            needed_ = 0;
            return Step::invalid;
        }
        lowest_ = 0x80;
        highest_ = 0xbf;
        --needed_;
        return needed_ == 0 ? Step::complete : Step::partial;
    }
    if (byte < 0x80) return Step::complete;
    if (byte < 0xc2 || byte > 0xf4) return Step::invalid;  // continuations, overlong leads, beyond U+10FFFF
    needed_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    lowest_ = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;   // else overlong
    highest_ = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;  // else a surrogate, or beyond U+10FFFF
    return Step::partial;
}

size_t find_invalid_utf8(std::string_view text) {
    Utf8State state;
    size_t start = 0;  // of the character under way
    for (size_t i = 0; i < text.size(); ++i) {
        if (state.at_boundary()) {
            while (i + 8 <= text.size()) {  // eight ASCII bytes at once
                uint64_t word;
                std::memcpy(&word, text.data() + i, 8);
                if ((word & 0x8080808080808080u) != 0) break;
                i += 8;
            }
            if (i == text.size()) return utf8_valid;
            start = i;
        }
        if (state.step(static_cast<uint8_t>(text[i])) == Utf8State::Step::invalid) return start;
    }
    return state.at_boundary() ? utf8_valid : start;
}

namespace {

size_t write_replacement(char* out) {
    std::memcpy(out, "\xef\xbf\xbd", 3);
    return 3;
}

}  // namespace

size_t Utf8Stream::push(std::string_view input, char* out) {
    size_t written = 0;
    for (const char c : input) {
        const auto byte = static_cast<uint8_t>(c);
        Utf8State::Step step = state_.step(byte);
        if (step == Utf8State::Step::invalid && held_count_ > 0) {
            written += write_replacement(out + written);  // for what was held; the byte gets a fresh start
            held_count_ = 0;
            step = state_.step(byte);
        }
        switch (step) {
            case Utf8State::Step::invalid: written += write_replacement(out + written); break;
            case Utf8State::Step::partial: held_[held_count_++] = c; break;
            case Utf8State::Step::complete:
                std::memcpy(out + written, held_, held_count_);
                written += held_count_;
                out[written++] = c;
                held_count_ = 0;
                break;
        }
    }
    return written;
}

bool Utf8Stream::continues_with(uint8_t byte) const {
    Utf8State next = state_;
    return held_count_ > 0 && next.step(byte) != Utf8State::Step::invalid;
}

size_t Utf8Stream::finish(char* out) {
    const size_t written = held_count_ > 0 ? write_replacement(out) : 0;
    held_count_ = 0;
    state_.reset();
    return written;
}

}  // namespace treadle
