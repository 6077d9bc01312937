// Cuts text into words before merging, with the patterns that the model was trained with. Internal to the tokenizer.
//
// A pre-tokenizer is one or more PCRE2 patterns applied in turn: each cuts the pieces that the one before left, seeing nothing
// beyond a piece, into matches and what lies between them.
//
//     "a12 b"  --\p{N}-->  a|1|2| b        then the words pattern within each piece
//
// Invariant: pieces cover the text without gaps. The patterns are written so that they never step back (possessive loops), so the
// work for a piece is linear; PCRE2 allocates only from the memory handed in, and is given limits that it doesn't reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "base/status.h"

struct pcre2_real_general_context_8;
struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace treadle {

// RAII over the C library's objects. Its header stays out of this one; these are its own names.
struct RegexMemory {
    explicit RegexMemory(std::pmr::memory_resource* memory);
    ~RegexMemory();
    RegexMemory(const RegexMemory&) = delete;
    RegexMemory& operator=(const RegexMemory&) = delete;

    pcre2_real_general_context_8* context;
};

struct RegexCode {
    explicit RegexCode(pcre2_real_code_8* compiled) : code(compiled) {}
    ~RegexCode();
    RegexCode(const RegexCode&) = delete;
    RegexCode& operator=(const RegexCode&) = delete;

    pcre2_real_code_8* code;
};

struct RegexMatcher {
    explicit RegexMatcher(std::pmr::memory_resource* resource);
    ~RegexMatcher();
    RegexMatcher(const RegexMatcher&) = delete;
    RegexMatcher& operator=(const RegexMatcher&) = delete;

    RegexMemory memory;
    pcre2_real_match_context_8* limits = nullptr;
    pcre2_real_match_data_8* result = nullptr;
};

class PreTokenizer {
public:
    explicit PreTokenizer(std::pmr::memory_resource* memory) : regex_memory_(memory), patterns_(memory) {}

    // One call's room for matching; not to be shared between threads.
    class Scratch {
    public:
        explicit Scratch(std::pmr::memory_resource* memory) : matcher_(memory), pieces_(memory) {}

    private:
        friend class PreTokenizer;
        RegexMatcher matcher_;
        std::pmr::vector<uint32_t> pieces_;  // of the pattern before
    };

    // Replaces `ends` by the end offset of each word of `text`, which is valid UTF-8 of at most limits::text_bytes_max bytes.
    [[nodiscard]] Status split(std::string_view text, std::pmr::vector<uint32_t>& ends, Scratch& scratch,
                               Error* error) const;

    bool ignore_merges() const { return ignore_merges_; }  // a word that is a token is taken whole
    bool adds_bos() const { return adds_bos_; }            // the family's habit where the file doesn't say

private:
    friend Status make_pre_tokenizer(std::string_view, std::pmr::memory_resource*, Owned<PreTokenizer>*,
                                     Error*);

    RegexMemory regex_memory_;
    std::pmr::vector<Owned<RegexCode>> patterns_;
    bool ignore_merges_ = false;
    bool adds_bos_ = false;
};

// UNSUPPORTED_TOKENIZER names a pre-tokenizer that is not known.
[[nodiscard]] Status make_pre_tokenizer(std::string_view name, std::pmr::memory_resource* memory,
                                        Owned<PreTokenizer>* out, Error* error);

}  // namespace treadle
