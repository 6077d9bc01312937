// Puts text and numbers one after another into a buffer of the caller, for the metrics text and the trace: no locale, no
// allocation, nothing beyond the buffer's end.
//
// Invariant: bytes() counts everything that was put, whether it fitted or not; the buffer holds its beginning, cut where the
// first piece didn't fit, and the caller looks at fits() before it uses it.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace treadle {

class TextWriter {
public:
    explicit TextWriter(std::span<char> out) : out_(out) {}

    size_t bytes() const { return bytes_; }
    bool fits() const { return bytes_ <= out_.size(); }
    void cut_to(size_t bytes) { bytes_ = bytes; }  // takes back what was put after the first `bytes`

    TextWriter& put(std::string_view text) {
        if (fits() && text.size() <= out_.size() - bytes_ && !text.empty())
            std::memcpy(out_.data() + bytes_, text.data(), text.size());
        bytes_ += text.size();
        return *this;
    }

    template <std::integral Number>
    TextWriter& put(Number number) {
        char digits[24];
        return put({digits, std::to_chars(digits, digits + sizeof digits, number).ptr});
    }

    TextWriter& put(
        double number) {  // the shortest text that reads back as the same number; finite ones only
        char digits[32];
        return put({digits, std::to_chars(digits, digits + sizeof digits, number).ptr});
    }

    // value / 10^places as an exact decimal, without zeros at its end: (1500, 3) is 1.5.
    TextWriter& put_decimal(int64_t value, int places) {
        auto left = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
        uint64_t one = 1;
        for (int i = 0; i < places; i++) one *= 10;
        if (value < 0) put("-");
        put(left / one);
        if ((left %= one) == 0) return *this;
        put(".");
        for (one /= 10; left > 0; left %= one, one /= 10) put(left / one);
        return *this;
    }

private:
    std::span<char> out_;
    size_t bytes_ = 0;
};

}  // namespace treadle
