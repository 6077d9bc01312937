// The patterns, and the only place that talks to PCRE2.
//
// White space is spelled out: PCRE2's \s has U+180E too, which the tokenizers' \s has not. The usual `\s*[\r\n]+` is written as
// lines of a run, `(?:[blanks]*+[\r\n]++)++`, which matches the same and never steps back. Only the last alternative but one may
// step back, by a single character.
#include "text/pre_tokenizer.h"

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include <new>

namespace treadle {

#define TREADLE_WIDE_BLANKS \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define TREADLE_SPACES "\\t-\\r " TREADLE_WIDE_BLANKS        // \s
#define TREADLE_BLANKS "\\t\\x0b\\x0c " TREADLE_WIDE_BLANKS  // \s without \r and \n
#define TREADLE_TRAILING_SPACES "[" TREADLE_SPACES "]+(?![^" TREADLE_SPACES "])|[" TREADLE_SPACES "]++"
#define TREADLE_PUNCTUATION " ?+[^" TREADLE_SPACES "\\p{L}\\p{N}]++"
#define TREADLE_LLAMA_WORDS(digits)                                                      \
    "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|" digits \
    "|" TREADLE_PUNCTUATION "[\\r\\n]*+|(?:[" TREADLE_BLANKS "]*+[\\r\\n]++)++|" TREADLE_TRAILING_SPACES

namespace {

constexpr const char* gpt2_words =
    "'(?:[stmd]|re|ve|ll)| ?+\\p{L}++| ?+\\p{N}++|" TREADLE_PUNCTUATION "|" TREADLE_TRAILING_SPACES;

constexpr int patterns_max = 4;

struct Recipe {
    std::string_view name;
    const char* patterns[patterns_max];
    bool ignore_merges;
    bool adds_bos;
};

constexpr Recipe recipes[] = {
    {"default", {"[\\p{P}$+<=>\\^~|]++", gpt2_words, "\\p{N}++", "[0-9][0-9][0-9]"}, false, false},
    {"gpt-2", {gpt2_words}, false, false},
    {"smollm", {"\\p{N}", gpt2_words}, false, false},
    {"qwen2", {TREADLE_LLAMA_WORDS("\\p{N}")}, false, false},
    {"deepseek-r1-qwen", {TREADLE_LLAMA_WORDS("\\p{N}")}, false, false},
    {"llama-bpe", {TREADLE_LLAMA_WORDS("\\p{N}{1,3}+")}, true, true},
    {"llama3", {TREADLE_LLAMA_WORDS("\\p{N}{1,3}+")}, true, true},
    {"llama-v3", {TREADLE_LLAMA_WORDS("\\p{N}{1,3}+")}, true, true},
};

// PCRE2 frees without a size, so each block carries its own in front.
constexpr size_t block_header_bytes = 16;

void* regex_allocate(size_t size, void* user) {
    if (size > SIZE_MAX - block_header_bytes) return nullptr;
    try {  // an exception must not cross C code
        auto* memory = static_cast<std::pmr::memory_resource*>(user);
        auto* block = static_cast<char*>(memory->allocate(size + block_header_bytes, block_header_bytes));
        ::new (static_cast<void*>(block)) size_t(size + block_header_bytes);
        return block + block_header_bytes;
    } catch (...) {
        return nullptr;
    }
}

void regex_free(void* pointer, void* user) {
    if (pointer == nullptr) return;
    char* block = static_cast<char*>(pointer) - block_header_bytes;
    const size_t size = *static_cast<size_t*>(static_cast<void*>(block));
    static_cast<std::pmr::memory_resource*>(user)->deallocate(block, size, block_header_bytes);
}

}  // namespace

RegexMemory::RegexMemory(std::pmr::memory_resource* memory)
    : context(pcre2_general_context_create_8(regex_allocate, regex_free, memory)) {
    if (context == nullptr) throw std::bad_alloc();
}

RegexMemory::~RegexMemory() { pcre2_general_context_free_8(context); }

RegexCode::~RegexCode() { pcre2_code_free_8(code); }

RegexMatcher::RegexMatcher(std::pmr::memory_resource* resource)
    : memory(resource), limits(pcre2_match_context_create_8(memory.context)),
      result(pcre2_match_data_create_8(1, memory.context)) {
    if (limits == nullptr || result == nullptr) {
        pcre2_match_data_free_8(result);
        pcre2_match_context_free_8(limits);
        throw std::bad_alloc();
    }
    pcre2_set_heap_limit_8(limits, 1024);  // KiB
    pcre2_set_depth_limit_8(limits, 1000);
}

RegexMatcher::~RegexMatcher() {
    pcre2_match_data_free_8(result);
    pcre2_match_context_free_8(limits);
}

namespace {

// Appends the ends of the matches in text[start .. end) and of what lies between them.
Status split_piece(const RegexCode& pattern, std::string_view text, uint32_t start, uint32_t end,
                   RegexMatcher& matcher, std::pmr::vector<uint32_t>& ends, Error* error) {
    const auto* piece = reinterpret_cast<PCRE2_SPTR8>(text.data()) + start;
    const uint32_t size = end - start;
    pcre2_set_match_limit_8(matcher.limits,
                            size + 1000);  // the patterns' loops need at most one step per byte
    uint32_t position = 0;
    while (position < size) {
        const int status = pcre2_match_8(pattern.code, piece, size, position, PCRE2_NO_UTF_CHECK,
                                         matcher.result, matcher.limits);
        if (status == PCRE2_ERROR_NOMATCH) break;
        if (status == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
        if (status < 0)
            return fail(error, Status::INTERNAL, "pre-tokenizer: matching at byte %u failed: %d",
                        start + position, status);
        const PCRE2_SIZE* span = pcre2_get_ovector_pointer_8(matcher.result);
        if (span[0] > position) ends.push_back(start + static_cast<uint32_t>(span[0]));
        ends.push_back(start + static_cast<uint32_t>(span[1]));
        position = static_cast<uint32_t>(span[1]);  // no pattern matches the empty string
    }
    if (position < size) ends.push_back(end);
    return Status::OK;
}

}  // namespace

Status PreTokenizer::split(std::string_view text, std::pmr::vector<uint32_t>& ends, Scratch& scratch,
                           Error* error) const {
    ends.clear();
    if (text.empty()) return Status::OK;
    ends.push_back(static_cast<uint32_t>(text.size()));
    for (const Owned<RegexCode>& pattern : patterns_) {
        scratch.pieces_.swap(ends);
        ends.clear();
        uint32_t start = 0;
        for (const uint32_t end : scratch.pieces_) {
            TREADLE_TRY(split_piece(*pattern, text, start, end, scratch.matcher_, ends, error));
            start = end;
        }
    }
    return Status::OK;
}

namespace {

Status compile(const char* pattern, const RegexMemory& memory, pcre2_code_8** out, Error* error) {
    pcre2_compile_context_8* context = pcre2_compile_context_create_8(memory.context);
    if (context == nullptr) throw std::bad_alloc();
    int code = 0;
    PCRE2_SIZE offset = 0;
    *out = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern), PCRE2_ZERO_TERMINATED,
                           PCRE2_UTF | PCRE2_UCP, &code, &offset, context);
    pcre2_compile_context_free_8(context);
    if (*out != nullptr) return Status::OK;
    if (code == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
    return fail(error, Status::INTERNAL, "pre-tokenizer: pattern does not compile at %zu: %d",
                static_cast<size_t>(offset), code);
}

}  // namespace

Status make_pre_tokenizer(std::string_view name, std::pmr::memory_resource* memory, Owned<PreTokenizer>* out,
                          Error* error) {
    if (name.empty()) name = "default";
    for (const Recipe& recipe : recipes) {
        if (recipe.name != name) continue;
        Owned<PreTokenizer> made = make_owned<PreTokenizer>(memory, memory);
        made->ignore_merges_ = recipe.ignore_merges;
        made->adds_bos_ = recipe.adds_bos;
        made->patterns_.reserve(patterns_max);
        for (const char* pattern : recipe.patterns) {
            if (pattern == nullptr) break;
            pcre2_code_8* code = nullptr;
            TREADLE_TRY(compile(pattern, made->regex_memory_, &code, error));
            try {
                made->patterns_.push_back(make_owned<RegexCode>(memory, code));
            } catch (...) {
                pcre2_code_free_8(code);
                throw;
            }
        }
        *out = std::move(made);
        return Status::OK;
    }
    const int shown = static_cast<int>(name.size() < 100 ? name.size() : 100);
    return fail(error, Status::UNSUPPORTED_TOKENIZER, "tokenizer.ggml.pre: \"%.*s\" is not supported", shown,
                name.data());
}

}  // namespace treadle
