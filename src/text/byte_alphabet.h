// The alphabet of byte-level BPE: each byte has a printable character that stands for it in the vocabulary of
// a file. Printable ASCII and most of Latin-1 stand for themselves, the other bytes are U+0100 and on, in
// order: the space is U+0120.
//
// Used only while a vocabulary is built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string_view>
#include <vector>

namespace treadle {

// The character of a byte.
uint32_t alphabet_character(uint8_t byte);

// Appends what `text` spells, and returns true; false if it is not all of this alphabet, and nothing is
// appended.
bool append_alphabet_bytes(std::string_view text, std::pmr::vector<char>& out);

}  // namespace treadle
