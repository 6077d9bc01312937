// Strict UTF-8: a check for input, and a decoder of token bytes for output. Used by the tokenizer, the stop
// matcher and the text stream of a sequence.
//
// Invariant: whatever bytes come in, and however they are cut, only complete and valid UTF-8 goes out, and it
// depends only on the concatenation of the bytes. Nothing here allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace treadle {

constexpr size_t utf8_valid = static_cast<size_t>(-1);

// utf8_valid, or the offset of the first byte that begins no valid character: overlong forms, surrogates,
// values beyond U+10FFFF, lone continuation bytes and a character cut off at the end.
size_t find_invalid_utf8(std::string_view text);

// Which bytes may follow in a character that has begun. One byte of lead decides the length and the range of
// the second byte.
class Utf8State {
public:
    // What a byte does: it ends a character, continues one, or can't be here (the bytes before it are then
    // one ill-formed sequence, and the byte must be tried again from the start).
    enum class Step : uint8_t { complete, partial, invalid };
    Step step(uint8_t byte);
    bool at_boundary() const { return needed_ == 0; }
    void reset() { needed_ = 0; }

private:
    uint8_t needed_ = 0;     // continuation bytes still to come
    uint8_t lowest_ = 0x80;  // range of the next one
    uint8_t highest_ = 0xbf;
};

// Token bytes in, whole characters out. Each maximal ill-formed piece becomes one U+FFFD, as the Unicode
// standard recommends and browsers do. Copyable; its state is at most three held bytes.
class Utf8Stream {
public:
    static constexpr size_t output_bytes_max(size_t input_bytes) { return 3 * input_bytes + 3; }

    // Writes what became complete to `out`, which has room for output_bytes_max(input.size()), and returns
    // its size.
    size_t push(std::string_view input, char* out);
    // Ends the stream: a hanging piece becomes U+FFFD. Writes at most 3 bytes; the stream is then as new.
    size_t finish(char* out);
    // Whether a character has begun that this byte continues.
    bool continues_with(uint8_t byte) const;

private:
    Utf8State state_;
    uint8_t held_count_ = 0;
    char held_[4] = {};
};

}  // namespace treadle
