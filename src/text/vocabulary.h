// The vocabulary of a model and its tokenizer: text → token ids and token ids → bytes. The model loader hands the file's plain
// data in, the api and the engine use the result; requests on many threads share one const Vocabulary.
//
// Invariants: every id below size() has bytes, and detokenizing is the concatenation of token_bytes(), exact to the byte. Text
// becomes a control token only inside a segment that allows specials, so what a user typed can't. Valid UTF-8 survives the way
// through tokens unchanged as long as the vocabulary has a token for each of its bytes.
//
//     segments   [template: <|im_start|>][user: hi <|im_end|>][template: <|im_end|>\n]       adjacent ones are one string
//     specials   ^ a control token                             ^ a control token             longest first, leftmost first
//     words                               hi| <|im|_|end|>                                 \n     pre_tokenizer.h
//     tokens     merges of each word's bytes, lowest rank first                              merges.h
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "text/byte_trie.h"
#include "text/merges.h"
#include "text/pre_tokenizer.h"

namespace treadle {

// The numbers are those of tokenizer.ggml.token_type.
enum class TokenType : int32_t {
    normal = 1,
    unknown = 2,
    control = 3,
    user_defined = 4,
    unused = 5,
    byte = 6
};

// What the file says, as views that need to live only while make_vocabulary runs. An id of -1 means that the key is absent.
struct VocabularySource {
    std::string_view model;                    // tokenizer.ggml.model; "gpt2" is byte-level BPE
    std::string_view pre;                      // tokenizer.ggml.pre; empty means "default"
    std::span<const std::string_view> tokens;  // tokenizer.ggml.tokens
    std::span<const int32_t> types;            // tokenizer.ggml.token_type; empty: all are normal
    std::span<const std::string_view> merges;  // tokenizer.ggml.merges, each "left right"
    int64_t bos = -1;                          // tokenizer.ggml.bos_token_id and so on
    int64_t eos = -1;
    int64_t eot = -1;
    int64_t unk = -1;
    int64_t pad = -1;
    std::optional<bool> add_bos;  // absent: what the pre-tokenizer's family does
    std::optional<bool> add_eos;
};

// A stretch of text to tokenize. specials: control tokens are found in it.
struct TextSegment {
    std::string_view text;
    bool specials = false;
};

class Vocabulary {
public:
    explicit Vocabulary(std::pmr::memory_resource* memory);

    // Appends the tokens of the joined segments to `out`, without BOS and EOS. Specials lie wholly inside one segment that
    // allows them; the text between two of them is one string across segment borders. User-defined tokens (type 4) are no
    // secret handshake but words of the vocabulary, so they are found in every segment, as other tokenizers do; those that look
    // like <|…|> count as control tokens. Bytes that the vocabulary has no token for are left out (has_byte tells).
    // INVALID_UTF8 names the byte offset in the joined text, LIMIT its size; then `out` is as before.
    // Works in memory from `scratch`, linear in the text; time is O(n log n).
    [[nodiscard]] Status tokenize(std::span<const TextSegment> segments, std::pmr::vector<int32_t>& out,
                                  std::pmr::memory_resource* scratch, Error* error) const;

    // Appends the bytes of the tokens to `out`; control and unknown tokens give their text only with `specials`.
    // TOKEN_OUT_OF_RANGE names index and id; then `out` is as before.
    [[nodiscard]] Status detokenize(std::span<const int32_t> ids, bool specials, std::pmr::vector<char>& out,
                                    Error* error) const;

    int32_t size() const { return static_cast<int32_t>(types_.size()); }
    std::string_view token_bytes(int32_t id) const;  // id must be in 0 .. size()-1
    size_t max_token_bytes() const { return max_token_bytes_; }
    bool is_control(int32_t id) const;            // control or unknown: its text is not part of what is said
    bool is_end_of_generation(int32_t id) const;  // eos, eot and the well-known ends of a turn or text
    bool has_byte(uint8_t byte) const { return byte_tokens_[byte] >= 0; }
    int32_t find_special(
        std::string_view text) const;  // the control or user-defined token of exactly this text, or -1

    int32_t bos() const { return bos_; }  // -1: none
    int32_t eos() const { return eos_; }
    int32_t eot() const { return eot_; }
    int32_t unk() const { return unk_; }
    int32_t pad() const { return pad_; }
    bool add_bos() const { return add_bos_; }  // a fresh prompt starts with bos()
    bool add_eos() const { return add_eos_; }

private:
    friend class VocabularyBuilder;
    struct Scratch;

    size_t find_special_at(std::string_view text, size_t position, size_t segment_end, bool allow_control,
                           int32_t* id) const;
    int32_t find_word(std::string_view word) const;
    [[nodiscard]] Status tokenize_plain(std::string_view text, std::pmr::vector<int32_t>& out,
                                        Scratch& scratch, Error* error) const;

    std::pmr::vector<char> bytes_;        // all tokens' bytes, one after another
    std::pmr::vector<uint32_t> offsets_;  // (size + 1): token i is bytes_[offsets_[i] .. offsets_[i + 1])
    std::pmr::vector<TokenType> types_;   // (size)
    std::pmr::vector<int32_t> ends_;      // ids that end a generation, ascending
    ByteTrie specials_;                   // control, unknown and user-defined tokens; values are ids
    bool special_starts_[256] = {};       // bytes that a special begins with
    int32_t byte_tokens_[256];            // byte → id of its token, -1: none
    MergeTable merges_;
    Owned<PreTokenizer> pre_tokenizer_;
    std::pmr::vector<int32_t> words_;  // only with ignore_merges: the tokens that text may become, by bytes
    size_t max_token_bytes_ = 0;
    int32_t bos_ = -1, eos_ = -1, eot_ = -1, unk_ = -1, pad_ = -1;
    bool add_bos_ = false, add_eos_ = false;
};

// Checks everything in `source` and builds the tokenizer. UNSUPPORTED_TOKENIZER names the model or pre-tokenizer, CORRUPT and
// LIMIT name key, index and value. `out` is set only on success.
[[nodiscard]] Status make_vocabulary(const VocabularySource& source, std::pmr::memory_resource* memory,
                                     Owned<Vocabulary>* out, Error* error);

}  // namespace treadle
