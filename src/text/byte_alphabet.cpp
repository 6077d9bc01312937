// The two directions of the byte alphabet, computed when they are asked for.
#include "text/byte_alphabet.h"

namespace treadle {
namespace {

constexpr bool stands_for_itself(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

struct Alphabet {
    uint16_t characters[256] = {};
    int16_t bytes[0x144] = {};  // character → byte, -1: not in the alphabet

    constexpr Alphabet() {
        for (int16_t& byte : bytes) byte = -1;
        uint16_t next = 0x100;
        for (uint16_t byte = 0; byte < 256; ++byte) {
            characters[byte] = stands_for_itself(byte) ? byte : next++;
            bytes[characters[byte]] = static_cast<int16_t>(byte);
        }
    }
};

constexpr Alphabet alphabet;

}  // namespace

uint32_t alphabet_character(uint8_t byte) { return alphabet.characters[byte]; }

bool append_alphabet_bytes(std::string_view text, std::pmr::vector<char>& out) {
    const size_t size_before = out.size();
    for (size_t i = 0; i < text.size(); ++i) {
        uint32_t character = static_cast<uint8_t>(text[i]);
        if (character >= 0xc2 && character <= 0xc5 &&
            i + 1 < text.size()) {  // two bytes; no longer ones are in the alphabet
            const auto second = static_cast<uint8_t>(text[++i]);
            character = (second & 0xc0) == 0x80 ? (character & 0x1f) << 6 | (second & 0x3f) : 0;
        } else if (character >= 0x80) {
            character = 0;
        }
        if (character >= std::size(alphabet.bytes) || alphabet.bytes[character] < 0) {
            out.resize(size_before);
            return false;
        }
        out.push_back(static_cast<char>(alphabet.bytes[character]));
    }
    return true;
}

}  // namespace treadle
