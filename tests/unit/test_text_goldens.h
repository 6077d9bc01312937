// Reads the tokenizer goldens of tests/golden/tokens (make.py there says how they look). Also used by the model tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace goldens {

inline std::string read_file(const std::string& name) {
    const auto path = std::filesystem::path(__FILE__).parent_path() / ".." / "golden" / "tokens" / name;
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("no golden file " + path.string());
    return {std::istreambuf_iterator<char>(file), {}};
}

// LEB128 numbers and bytes, one after another.
struct Bytes {
    std::string data;
    size_t at = 0;

    uint32_t number() {
        uint32_t n = 0;
        for (int shift = 0;; shift += 7) {
            const auto byte = static_cast<uint8_t>(data.at(at++));
            n |= uint32_t{byte & 127u} << shift;
            if (byte < 128) return n;
        }
    }
    std::string bytes(size_t count) {
        at += count;
        return data.substr(at - count, count);
    }
    std::vector<int32_t> ids(size_t count) {
        std::vector<int32_t> list;
        while (count-- > 0) list.push_back(static_cast<int32_t>(number()));
        return list;
    }
};

inline std::vector<std::string> strings() {
    Bytes file{read_file("strings.bin")};
    std::vector<std::string> list;
    for (uint32_t count = file.number(); count > 0; --count) list.push_back(file.bytes(file.number()));
    return list;
}

// The small vocabulary, kept by value; source() gives views of it.
struct TinyVocabulary {
    std::vector<std::string> tokens, merges;
    std::vector<int32_t> types;
    std::vector<std::string_view> token_views, merge_views;

    TinyVocabulary() {
        const std::string text = read_file("tiny.txt");
        bool in_merges = false;
        for (size_t at = 0; at < text.size();) {
            const size_t end = text.find('\n', at);
            const std::string line = text.substr(at, end - at);
            at = end + 1;
            if (line.empty()) {
                in_merges = true;
            } else if (in_merges) {
                merges.push_back(line);
            } else {
                types.push_back(line[0] - '0');
                tokens.push_back(line.substr(2));
            }
        }
    }
    treadle::VocabularySource source(std::string_view pre) {
        token_views.assign(tokens.begin(), tokens.end());
        merge_views.assign(merges.begin(), merges.end());
        treadle::VocabularySource made;
        made.model = "gpt2";
        made.pre = pre;
        made.tokens = token_views;
        made.types = types;
        made.merges = merge_views;
        return made;
    }
};

// FNV-1a over ids as 32-bit little-endian numbers.
template <class Ids>
uint32_t hash(const Ids& ids) {
    uint32_t h = 0x811c9dc5;
    for (const int32_t id : ids) {
        for (int shift = 0; shift < 32; shift += 8)
            h = (h ^ (static_cast<uint32_t>(id) >> shift & 255)) * 0x01000193;
    }
    return h;
}

}  // namespace goldens
