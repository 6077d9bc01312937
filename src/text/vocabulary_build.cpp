// Checks what a file says about its tokenizer and builds the Vocabulary. Nothing of the file is trusted: each
// count, id and text is looked at before it is used.
#include <algorithm>
#include <cstring>

#include "base/limits.h"
#include "text/byte_alphabet.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace treadle {
namespace {

// Texts that end a turn or a text in known models. The careful ones are words too: they count only where the
// file has them as control or user-defined tokens.
struct KnownEnd {
    std::string_view text;
    bool careful;
};
constexpr KnownEnd known_ends[] = {
    {"<|im_end|>", false},
    {"<|endoftext|>", false},
    {"<|eot_id|>", false},
    {"<|eom_id|>", false},
    {"<|end|>", false},
    {"<|return|>", false},
    {"<|call|>", false},
    {"<|end_of_text|>", false},
    {"<end_of_turn>", false},
    {"<turn|>", false},
    {"<end_of_utterance>", false},
    {"<|endofturn|>", false},
    {"<EOT>", true},
    {"[EOT]", true},
    {"[EOS]", true},
    {"<eos>", true},
    {"</s>", true},
};

// Token text → id, for the time of building. Open addressing with few probes, so that no file makes it slow.
class TokenIndex {
public:
    TokenIndex(std::span<const std::string_view> tokens, std::pmr::memory_resource* memory)
        : tokens_(tokens), slots_(memory) {
        size_t slots = 2;
        while (slots < 2 * tokens.size()) slots *= 2;
        slots_.assign(slots, -1);
    }

    // False if there is an equal text (`other` is its id) or no free place near (`other` is -1).
    bool insert(int32_t id, int32_t* other) {
        const std::string_view text = tokens_[static_cast<size_t>(id)];
        size_t at = place_of(hash(text));
        *other = -1;
        for (size_t probe = 0; probe < probes_max && probe < slots_.size(); ++probe) {
            if (slots_[at] < 0) {
                slots_[at] = id;
                return true;
            }
            if (tokens_[static_cast<size_t>(slots_[at])] == text) {
                *other = slots_[at];
                return false;
            }
            at = (at + 1) & (slots_.size() - 1);
        }
        return false;
    }

    // `tail` is joined to `text` without a copy.
    int32_t find(std::string_view text, std::string_view tail = {}) const {
        size_t at = place_of(hash(tail, hash(text)));
        for (size_t probe = 0; probe < probes_max && probe < slots_.size() && slots_[at] >= 0; ++probe) {
            const std::string_view token = tokens_[static_cast<size_t>(slots_[at])];
            if (token.size() == text.size() + tail.size() && token.substr(0, text.size()) == text &&
                token.substr(text.size()) == tail) {
                return slots_[at];
            }
            at = (at + 1) & (slots_.size() - 1);
        }
        return -1;
    }

private:
    static constexpr size_t probes_max = 256;
    static uint64_t hash(std::string_view text, uint64_t value = 0xcbf29ce484222325u) {
        for (const char c : text) value = (value ^ static_cast<uint8_t>(c)) * 0x100000001b3u;  // FNV-1a
        return value;
    }
    size_t place_of(uint64_t hash) const {
        hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
        return static_cast<size_t>(hash >> 32) & (slots_.size() - 1);
    }

    std::span<const std::string_view> tokens_;
    std::pmr::vector<int32_t> slots_;
};

int shown(std::string_view text) { return static_cast<int>(std::min<size_t>(text.size(), 80)); }

}  // namespace

class VocabularyBuilder {
public:
    VocabularyBuilder(const VocabularySource& source, std::pmr::memory_resource* memory)
        : source_(source), memory_(memory), made_(make_owned<Vocabulary>(memory, memory)) {}

    Status build(Owned<Vocabulary>* out, Error* error) {
        TREADLE_TRY(check_counts(error));
        TREADLE_TRY(make_pre_tokenizer(source_.pre, memory_, &made_->pre_tokenizer_, error));
        TokenIndex index(source_.tokens, memory_);
        TREADLE_TRY(read_tokens(index, error));
        TREADLE_TRY(read_ids(error));
        mark_ends(index);
        TREADLE_TRY(collect_specials(error));
        collect_bytes(index);
        TREADLE_TRY(read_merges(index, error));
        if (made_->pre_tokenizer_->ignore_merges()) collect_words();
        *out = std::move(made_);
        return Status::OK;
    }

private:
    Status check_counts(Error* error) const {
        if (source_.model != "gpt2") {
            return fail(error, Status::UNSUPPORTED_TOKENIZER,
                        "tokenizer.ggml.model: \"%.*s\" is not supported, only \"gpt2\" is",
                        shown(source_.model), source_.model.data());
        }
        const size_t tokens = source_.tokens.size();
        if (tokens == 0) return fail(error, Status::CORRUPT, "tokenizer.ggml.tokens: there are none");
        if (tokens > limits::vocabulary_max) {
            return fail(error, Status::LIMIT, "tokenizer.ggml.tokens: %zu of them, the most is %u", tokens,
                        limits::vocabulary_max);
        }
        if (!source_.types.empty() && source_.types.size() != tokens) {
            return fail(error, Status::CORRUPT, "tokenizer.ggml.token_type: %zu values for %zu tokens",
                        source_.types.size(), tokens);
        }
        if (source_.merges.size() > limits::array_values_max) {
            return fail(error, Status::LIMIT, "tokenizer.ggml.merges: %zu of them, the most is %llu",
                        source_.merges.size(), static_cast<unsigned long long>(limits::array_values_max));
        }
        return Status::OK;
    }

    Status read_tokens(TokenIndex& index, Error* error) {
        Vocabulary& made = *made_;
        const size_t count = source_.tokens.size();
        made.offsets_.reserve(count + 1);
        made.types_.reserve(count);
        made.offsets_.push_back(0);
        uint64_t total = 0;
        for (size_t i = 0; i < count; ++i) {
            const std::string_view text = source_.tokens[i];
            total += text.size();
            if (text.empty())
                return fail(error, Status::CORRUPT, "tokenizer.ggml.tokens: token %zu is empty", i);
            if (text.size() > limits::token_bytes_max || total > limits::vocabulary_bytes_max) {
                return fail(error, Status::LIMIT,
                            "tokenizer.ggml.tokens: token %zu has %zu bytes, the most is %u, and %llu in all",
                            i, text.size(), limits::token_bytes_max,
                            static_cast<unsigned long long>(limits::vocabulary_bytes_max));
            }
            if (int32_t other; !index.insert(static_cast<int32_t>(i), &other)) {
                if (other < 0)
                    return fail(error, Status::LIMIT,
                                "tokenizer.ggml.tokens: too many collide with token %zu", i);
                return fail(error, Status::CORRUPT,
                            "tokenizer.ggml.tokens: tokens %d and %zu are both \"%.*s\"", other, i,
                            shown(text), text.data());
            }
            const int32_t type = source_.types.empty() ? 1 : source_.types[i];
            if (type < 1 || type > 6) {
                return fail(error, Status::CORRUPT,
                            "tokenizer.ggml.token_type: token %zu has type %d, known are 1 to 6", i, type);
            }
            made.types_.push_back(append_bytes(text, static_cast<TokenType>(type)));
        }
        return Status::OK;
    }

    // Ordinary tokens are spelled in the byte alphabet, special ones stand for themselves. So does an
    // ordinary one that can't be spelled; no text becomes it. Returns the type that the token has in effect.
    TokenType append_bytes(std::string_view text, TokenType type) {
        Vocabulary& made = *made_;
        const bool ordinary =
            type == TokenType::normal || type == TokenType::unused || type == TokenType::byte;
        if (!ordinary || !append_alphabet_bytes(text, made.bytes_)) {
            made.bytes_.insert(made.bytes_.end(), text.begin(), text.end());
            if (ordinary) type = TokenType::unused;
        }
        const auto end = static_cast<uint32_t>(made.bytes_.size());
        made.max_token_bytes_ = std::max<size_t>(made.max_token_bytes_, end - made.offsets_.back());
        made.offsets_.push_back(end);
        return type;
    }

    Status read_id(const char* key, int64_t value, int32_t* id, Error* error) const {
        if (value < -1 || value >= static_cast<int64_t>(source_.tokens.size())) {
            return fail(error, Status::CORRUPT,
                        "tokenizer.ggml.%s_token_id: %lld, the vocabulary has 0 to %zu", key,
                        static_cast<long long>(value), source_.tokens.size() - 1);
        }
        *id = static_cast<int32_t>(value);
        return Status::OK;
    }

    Status read_ids(Error* error) {
        Vocabulary& made = *made_;
        TREADLE_TRY(read_id("bos", source_.bos, &made.bos_, error));
        TREADLE_TRY(read_id("eos", source_.eos, &made.eos_, error));
        TREADLE_TRY(read_id("eot", source_.eot, &made.eot_, error));
        TREADLE_TRY(read_id("unknown", source_.unk, &made.unk_, error));
        TREADLE_TRY(read_id("padding", source_.pad, &made.pad_, error));
        if (source_.add_bos.value_or(false) && made.bos_ < 0) {
            return fail(error, Status::CORRUPT,
                        "tokenizer.ggml.add_bos_token: true, but there is no bos_token_id");
        }
        if (source_.add_eos.value_or(false) && made.eos_ < 0) {
            return fail(error, Status::CORRUPT,
                        "tokenizer.ggml.add_eos_token: true, but there is no eos_token_id");
        }
        made.add_bos_ = source_.add_bos.value_or(made.pre_tokenizer_->adds_bos() && made.bos_ >= 0);
        made.add_eos_ = source_.add_eos.value_or(false);
        return Status::OK;
    }

    // The text of a token that ends a generation must not be something that a user can type, whatever the
    // file calls it.
    void mark_ends(const TokenIndex& index) {
        Vocabulary& made = *made_;
        const auto mark = [&made](int32_t id) {
            if (id >= 0) made.ends_.push_back(id);
        };
        mark(made.eos_);
        mark(made.eot_);
        // Where a model has both <|return|> and <|call|>, <|end|> ends a message and not the turn.
        const bool end_is_inner = index.find("<|return|>") >= 0 && index.find("<|call|>") >= 0;
        for (const KnownEnd& known : known_ends) {
            const int32_t id = index.find(known.text);
            if (id < 0 || (end_is_inner && known.text == "<|end|>")) continue;
            const TokenType type = made.types_[static_cast<size_t>(id)];
            if (known.careful && type != TokenType::control && type != TokenType::user_defined) continue;
            made.types_[static_cast<size_t>(id)] = TokenType::control;
            mark(id);
        }
        std::sort(made.ends_.begin(), made.ends_.end());
        made.ends_.erase(std::unique(made.ends_.begin(), made.ends_.end()), made.ends_.end());
    }

    Status collect_specials(Error* error) {
        Vocabulary& made = *made_;
        std::pmr::vector<TrieEntry> entries(memory_);
        for (int32_t id = 0; id < made.size(); ++id) {
            TokenType& type = made.types_[static_cast<size_t>(id)];
            const std::string_view text = source_.tokens[static_cast<size_t>(id)];
            if (type == TokenType::user_defined && text.starts_with("<|") && text.ends_with("|>"))
                type = TokenType::control;
            if (type != TokenType::user_defined && !made.is_control(id)) continue;
            if (text.size() > limits::special_bytes_max) {
                return fail(error, Status::LIMIT,
                            "tokenizer.ggml.tokens: special token %d has %zu bytes, the most is %zu", id,
                            text.size(), limits::special_bytes_max);
            }
            if (find_invalid_utf8(text) != utf8_valid) {  // it could cut a character of the text in two
                return fail(error, Status::CORRUPT,
                            "tokenizer.ggml.tokens: special token %d is not valid UTF-8", id);
            }
            entries.push_back({made.token_bytes(id), id});
            made.special_starts_[static_cast<uint8_t>(made.token_bytes(id)[0])] = true;
        }
        made.specials_.build(entries);
        return Status::OK;
    }

    void collect_bytes(const TokenIndex& index) {
        for (int byte = 0; byte < 256; ++byte) {
            const uint32_t character = alphabet_character(static_cast<uint8_t>(byte));
            char spelled[2] = {static_cast<char>(character), 0};
            size_t length = 1;
            if (character >= 0x80) {
                spelled[0] = static_cast<char>(0xc0 | character >> 6);
                spelled[1] = static_cast<char>(0x80 | (character & 0x3f));
                length = 2;
            }
            const int32_t id = index.find({spelled, length});
            if (id < 0 || made_->is_control(id)) continue;
            const std::string_view bytes = made_->token_bytes(id);
            if (bytes.size() == 1 && static_cast<uint8_t>(bytes[0]) == byte) made_->byte_tokens_[byte] = id;
        }
    }

    Status read_merges(const TokenIndex& index, Error* error) {
        made_->merges_.reserve(source_.merges.size());
        for (size_t rank = 0; rank < source_.merges.size(); ++rank) {
            const std::string_view merge = source_.merges[rank];
            const size_t space = merge.find(' ', 1);
            if (space == std::string_view::npos || space + 1 == merge.size()) {
                return fail(error, Status::CORRUPT,
                            "tokenizer.ggml.merges: merge %zu, \"%.*s\", is not two tokens and a space", rank,
                            shown(merge), merge.data());
            }
            const int32_t left = index.find(merge.substr(0, space));
            const int32_t right = index.find(merge.substr(space + 1));
            const int32_t result = index.find(merge.substr(0, space), merge.substr(space + 1));
            if (left < 0 || right < 0 || result < 0) {
                return fail(error, Status::CORRUPT,
                            "tokenizer.ggml.merges: merge %zu, \"%.*s\": %s is not in the vocabulary", rank,
                            shown(merge), merge.data(),
                            left < 0    ? "its left side"
                            : right < 0 ? "its right side"
                                        : "its result");
            }
            // Plain text never becomes a control token, and bytes are never changed.
            if (made_->is_control(result) || !joins(left, right, result)) continue;
            const auto insertion = made_->merges_.insert(left, right, static_cast<uint32_t>(rank), result);
            if (insertion == MergeTable::Insertion::crowded) {
                return fail(error, Status::LIMIT,
                            "tokenizer.ggml.merges: too many collide with merge %zu, \"%.*s\"", rank,
                            shown(merge), merge.data());
            }
        }
        return Status::OK;
    }

    // Whether a merge keeps the bytes: not so where a special token, which stands for itself, is part of it.
    bool joins(int32_t left, int32_t right, int32_t result) const {
        const std::string_view head = made_->token_bytes(left);
        const std::string_view whole = made_->token_bytes(result);
        return whole.starts_with(head) && whole.substr(head.size()) == made_->token_bytes(right);
    }

    void collect_words() {
        Vocabulary& made = *made_;
        for (int32_t id = 0; id < made.size(); ++id) {
            const TokenType type = made.types_[static_cast<size_t>(id)];
            if (type == TokenType::normal) made.words_.push_back(id);
        }
        std::sort(made.words_.begin(), made.words_.end(), [&made](int32_t a, int32_t b) {
            const int order = made.token_bytes(a).compare(made.token_bytes(b));
            return order != 0 ? order < 0 : a < b;
        });
    }

    const VocabularySource& source_;
    std::pmr::memory_resource* memory_;
    Owned<Vocabulary> made_;
};

Status make_vocabulary(const VocabularySource& source, std::pmr::memory_resource* memory,
                       Owned<Vocabulary>* out, Error* error) {
    return VocabularyBuilder(source, memory).build(out, error);
}

}  // namespace treadle
