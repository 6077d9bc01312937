// UTF-8 against a model made by encoding every code point: what is a character, and what is a piece of one.
#include <doctest/doctest.h>

#include <bitset>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "text/utf8.h"

using namespace treadle;

namespace {

std::string encode(uint32_t c) {
    if (c < 0x80) return {static_cast<char>(c)};
    if (c < 0x800) return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    if (c < 0x10000) {
        return {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
                static_cast<char>(0x80 | (c & 63))};
    }
    return {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
            static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
}

// All characters of up to three bytes, and all beginnings of characters, as sets of numbers.
struct Model {
    std::bitset<256> begin1, character1;
    std::bitset<65536> begin2, character2;
    std::vector<bool> begin3 = std::vector<bool>(1 << 24), character3 = std::vector<bool>(1 << 24);

    Model() {
        for (uint32_t c = 0; c <= 0x10ffff; ++c) {
            if (c >= 0xd800 && c <= 0xdfff) continue;
            const std::string s = encode(c);
            (s.size() == 1 ? character1 : begin1).set(number(s, 1));
            if (s.size() >= 2) (s.size() == 2 ? character2 : begin2).set(number(s, 2));
            if (s.size() >= 3) (s.size() == 3 ? character3 : begin3)[number(s, 3)] = true;
        }
    }
    static size_t number(std::string_view s, size_t count) {
        size_t n = 0;
        for (size_t i = 0; i < count; ++i) n = n << 8 | static_cast<uint8_t>(s[i]);
        return n;
    }
    bool is_begin(std::string_view s) const {
        return s.size() == 1   ? begin1[number(s, 1)]
               : s.size() == 2 ? begin2[number(s, 2)]
                               : s.size() == 3 && begin3[number(s, 3)];
    }
    bool is_character(std::string_view s) const {
        if (s.size() == 1) return character1[number(s, 1)];
        if (s.size() == 2) return character2[number(s, 2)];
        if (s.size() == 3) return character3[number(s, 3)];
        return s.size() == 4 && is_begin(s.substr(0, 3)) && (static_cast<uint8_t>(s[3]) & 0xc0) == 0x80;
    }

    std::string decode(std::string_view in, size_t* first_invalid) const {
        std::string out;
        *first_invalid = utf8_valid;
        for (size_t i = 0; i < in.size();) {
            size_t length = 1;
            while (length <= 4 && i + length <= in.size() && !is_character(in.substr(i, length))) ++length;
            if (length <= 4 && i + length <= in.size()) {
                out += in.substr(i, length);
                i += length;
                continue;
            }
            if (*first_invalid == utf8_valid) *first_invalid = i;
            length = 1;
            while (length < 3 && i + length < in.size() && is_begin(in.substr(i, length + 1))) ++length;
            out += "\xef\xbf\xbd";
            i += length;
        }
        return out;
    }
};

const Model& model() {
    static const auto made = std::make_unique<Model>();
    return *made;
}

std::string stream(std::string_view in, const std::vector<size_t>& cuts) {
    Utf8Stream utf8;
    std::string out;
    size_t start = 0;
    const auto push = [&](size_t end) {
        std::string buffer(Utf8Stream::output_bytes_max(end - start), '\0');
        const size_t written = utf8.push(in.substr(start, end - start), buffer.data());
        CHECK(written <= buffer.size());
        CHECK(find_invalid_utf8({buffer.data(), written}) == utf8_valid);
        out.append(buffer, 0, written);
        start = end;
    };
    for (const size_t cut : cuts) push(cut);
    push(in.size());
    char tail[Utf8Stream::output_bytes_max(0)];
    out.append(tail, utf8.finish(tail));
    return out;
}

// Bytes that make interesting sequences more often than chance would.
std::string random_bytes(std::mt19937& random, size_t size) {
    static const uint8_t likely[] = {'a',  0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2,
                                     0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff};
    std::string s;
    while (s.size() < size) {
        switch (random() % 4) {
            case 0: s += static_cast<char>(random()); break;
            case 1: s += encode(0xe000 + random() % 0x2000); break;
            default: s += static_cast<char>(likely[random() % sizeof likely]);
        }
    }
    s.resize(size);
    return s;
}

}  // namespace

TEST_CASE("utf8: every code point is valid, and is whole only at its last byte") {
    for (uint32_t c = 0; c <= 0x10ffff; c += c < 0x12000 || c > 0x10ff00 ? 1 : 61) {
        const std::string s = encode(c);
        const bool surrogate = c >= 0xd800 && c <= 0xdfff;
        if ((find_invalid_utf8(s) == utf8_valid) == surrogate) FAIL_CHECK("code point ", c);
        if (!surrogate && s.size() > 1 && find_invalid_utf8("ok" + s.substr(0, s.size() - 1)) != 2)
            FAIL_CHECK("code point ", c);
    }
}

TEST_CASE("utf8: validation and replacement equal the model, for every cut") {
    std::mt19937 random(7);
    for (int round = 0; round < 4000; ++round) {
        const std::string in = random_bytes(random, random() % 12);
        size_t first_invalid;
        const std::string expected = model().decode(in, &first_invalid);
        CHECK(find_invalid_utf8(in) == first_invalid);
        CHECK(find_invalid_utf8("0123456789" + in) ==
              (first_invalid == utf8_valid ? utf8_valid : first_invalid + 10));
        for (size_t first = 0; first <= in.size(); ++first) {
            for (size_t second = first; second <= in.size(); second += 1 + in.size() / 4) {
                CHECK(stream(in, {first, second}) == expected);
            }
        }
        std::vector<size_t> each;
        for (size_t i = 0; i < in.size(); ++i) each.push_back(i);
        CHECK(stream(in, each) == expected);
    }
}

TEST_CASE("utf8: an emoji split at each byte appears whole or not at all") {
    const std::string family = "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7";  // woman, joiner, girl
    for (size_t cut = 0; cut <= family.size(); ++cut) {
        Utf8Stream utf8;
        char out[64];
        size_t written = utf8.push(std::string_view(family).substr(0, cut), out);
        CHECK(find_invalid_utf8({out, written}) == utf8_valid);
        CHECK(family.substr(0, written) == std::string(out, written));
        CHECK(cut - written <= 3);
        written += utf8.push(std::string_view(family).substr(cut), out + written);
        CHECK(std::string(out, written) == family);
        CHECK(utf8.finish(out) == 0);
    }
}

TEST_CASE("utf8: the standard's examples of ill-formed pieces") {
    CHECK(stream("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", {}) ==
          "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
          "\x41");
    CHECK(stream("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", {}) ==
          "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x41");
    CHECK(stream("\xed\xa0\x80", {}) == "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    CHECK(stream("a\xf0\x9f\x98", {}) == "a\xef\xbf\xbd");
    CHECK(stream("", {}).empty());
}
