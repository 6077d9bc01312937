// Makes a name from a file fit to be shown in an error message. Called wherever gguf/ names a key or a
// tensor.
//
// Invariant: `text` is a short zero-terminated string in double quotes of printable ASCII and whole UTF-8
// only: no control byte of a stranger's file reaches a terminal.
#pragma once

#include <string_view>

namespace treadle {

struct Quoted {
    static constexpr size_t shown_bytes_max = 96;
    explicit Quoted(std::string_view name);
    char text[shown_bytes_max + 8];
};

// Length of the UTF-8 character that `text` begins with (1 to 4), or 0 if it begins with none. Overlong
// forms, surrogates and what lies beyond U+10FFFF are none.
size_t utf8_character_bytes(std::string_view text);

bool is_utf8(std::string_view text);

}  // namespace treadle
