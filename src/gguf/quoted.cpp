// Quoting of names for messages, and the check of UTF-8 that it and the parser share.
#include "gguf/quoted.h"

#include <cstdint>
#include <cstring>

namespace treadle {

size_t utf8_character_bytes(std::string_view text) {
    if (text.empty()) return 0;
    const auto byte = [&](size_t index) { return static_cast<uint8_t>(text[index]); };
    const uint8_t first = byte(0);
    if (first < 0x80) return 1;
    const size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (length == 0 || text.size() < length) return 0;
    for (size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
    }
    const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
    const bool surrogate = first == 0xed && byte(1) >= 0xa0;
    const bool beyond = first == 0xf4 && byte(1) >= 0x90;
    return overlong || surrogate || beyond ? 0 : length;
}

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const size_t length = utf8_character_bytes(text);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

Quoted::Quoted(std::string_view name) {
    size_t used = 0;
    text[used++] = '"';
    while (!name.empty()) {
        const size_t length = utf8_character_bytes(name);
        const size_t taken = length == 0 ? 1 : length;
        if (used + taken > shown_bytes_max) break;
        const auto first = static_cast<uint8_t>(name[0]);
        // U+0080 to U+009F, C2 80 to C2 9F, steer terminals too.
        const bool control = first < 0x20 || first == 0x7f ||
                             (first == 0xc2 && length == 2 && static_cast<uint8_t>(name[1]) < 0xa0);
        if (length == 0 || control) {
            text[used++] = '?';
        } else {
            std::memcpy(text + used, name.data(), length);
            used += length;
        }
        name.remove_prefix(taken);
    }
    if (!name.empty()) {
        std::memcpy(text + used, "...", 3);
        used += 3;
    }
    text[used++] = '"';
    text[used] = '\0';
}

}  // namespace treadle
