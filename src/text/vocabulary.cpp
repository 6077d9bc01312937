// Tokenizing and detokenizing with a vocabulary that is built (vocabulary_build.cpp).
#include "text/vocabulary.h"

#include <algorithm>

#include "base/limits.h"
#include "text/utf8.h"

namespace treadle {

struct Vocabulary::Scratch {
    explicit Scratch(std::pmr::memory_resource* memory) : words(memory), merger(memory), word_ends(memory) {}
    PreTokenizer::Scratch words;
    WordMerger merger;
    std::pmr::vector<uint32_t> word_ends;
};

Vocabulary::Vocabulary(std::pmr::memory_resource* memory)
    : bytes_(memory), offsets_(memory), types_(memory), ends_(memory), specials_(memory), merges_(memory),
      words_(memory) {
    std::fill(std::begin(byte_tokens_), std::end(byte_tokens_), -1);
}

std::string_view Vocabulary::token_bytes(int32_t id) const {
    const uint32_t start = offsets_[static_cast<size_t>(id)];
    return {bytes_.data() + start, offsets_[static_cast<size_t>(id) + 1] - start};
}

bool Vocabulary::is_control(int32_t id) const {
    const TokenType type = types_[static_cast<size_t>(id)];
    return type == TokenType::control || type == TokenType::unknown;
}

bool Vocabulary::is_end_of_generation(int32_t id) const {
    return std::binary_search(ends_.begin(), ends_.end(), id);
}

int32_t Vocabulary::find_special(std::string_view text) const { return specials_.find(text); }

int32_t Vocabulary::find_word(std::string_view word) const {
    const auto found =
        std::lower_bound(words_.begin(), words_.end(), word,
                         [this](int32_t id, std::string_view text) { return token_bytes(id) < text; });
    return found != words_.end() && token_bytes(*found) == word ? *found : -1;
}

// The longest special that starts at `position`: its length and id, or 0. A control token must end by segment_end.
size_t Vocabulary::find_special_at(std::string_view text, size_t position, size_t segment_end,
                                   bool allow_control, int32_t* id) const {
    size_t length = 0;
    uint32_t node = 0;
    for (size_t i = position; i < text.size(); ++i) {
        node = specials_.child(node, static_cast<uint8_t>(text[i]));
        if (node == ByteTrie::none) break;
        const int32_t value = specials_.node(node).value;
        if (value < 0 || (is_control(value) && (!allow_control || i >= segment_end))) continue;
        length = i + 1 - position;
        *id = value;
    }
    return length;
}

Status Vocabulary::tokenize_plain(std::string_view text, std::pmr::vector<int32_t>& out, Scratch& scratch,
                                  Error* error) const {
    TREADLE_TRY(pre_tokenizer_->split(text, scratch.word_ends, scratch.words, error));
    size_t start = 0;
    for (const uint32_t end : scratch.word_ends) {
        const std::string_view word = text.substr(start, end - start);
        start = end;
        if (const int32_t whole = words_.empty() ? -1 : find_word(word); whole >= 0) {
            out.push_back(whole);
            continue;
        }
        scratch.merger.clear();
        for (const char c : word) scratch.merger.add(byte_tokens_[static_cast<uint8_t>(c)]);
        scratch.merger.merge(merges_, out);
    }
    return Status::OK;
}

Status Vocabulary::tokenize(std::span<const TextSegment> segments, std::pmr::vector<int32_t>& out,
                            std::pmr::memory_resource* memory, Error* error) const {
    size_t total = 0;
    for (const TextSegment& segment : segments) {
        if (segment.text.size() > limits::text_bytes_max - total) {
            return fail(error, Status::LIMIT, "text: more than %llu bytes in one call",
                        static_cast<unsigned long long>(limits::text_bytes_max));
        }
        total += segment.text.size();
    }
    std::pmr::vector<char> joined(memory);
    std::string_view text = segments.empty() ? std::string_view() : segments[0].text;
    if (segments.size() > 1) {
        joined.reserve(total);
        for (const TextSegment& segment : segments)
            joined.insert(joined.end(), segment.text.begin(), segment.text.end());
        text = {joined.data(), joined.size()};
    }
    if (const size_t offset = find_invalid_utf8(text); offset != utf8_valid) {
        return fail(error, Status::INVALID_UTF8, "text: byte %zu (0x%02x) begins no valid UTF-8 character",
                    offset, static_cast<unsigned>(static_cast<uint8_t>(text[offset])));
    }

    Scratch scratch(memory);
    const size_t size_before = out.size();
    size_t plain_start = 0;
    size_t position = 0;
    size_t segment_end = 0;
    Status status = Status::OK;
    try {
        for (const TextSegment& segment : segments) {
            segment_end += segment.text.size();
            while (position < segment_end && status == Status::OK) {
                int32_t special = -1;
                const size_t length =
                    !special_starts_[static_cast<uint8_t>(text[position])]
                        ? 0
                        : find_special_at(text, position, segment_end, segment.specials, &special);
                if (length == 0) {
                    ++position;
                    continue;
                }
                status =
                    tokenize_plain(text.substr(plain_start, position - plain_start), out, scratch, error);
                out.push_back(special);
                position += length;  // a user-defined token may reach into the next segments
                plain_start = position;
            }
        }
        if (status == Status::OK) status = tokenize_plain(text.substr(plain_start), out, scratch, error);
    } catch (...) {
        out.resize(size_before);
        throw;
    }
    if (status != Status::OK) out.resize(size_before);
    return status;
}

Status Vocabulary::detokenize(std::span<const int32_t> ids, bool specials, std::pmr::vector<char>& out,
                              Error* error) const {
    size_t total = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < 0 || ids[i] >= size()) {
            return fail(error, Status::TOKEN_OUT_OF_RANGE, "token %zu is %d, the vocabulary has 0 to %d", i,
                        ids[i], size() - 1);
        }
        if (specials || !is_control(ids[i])) total += token_bytes(ids[i]).size();
    }
    out.reserve(out.size() + total);
    for (const int32_t id : ids) {
        const std::string_view bytes = token_bytes(id);
        if (specials || !is_control(id)) out.insert(out.end(), bytes.begin(), bytes.end());
    }
    return Status::OK;
}

}  // namespace treadle
