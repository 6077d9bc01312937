// The tokenizer against llama-cpp-python (tests/golden/tokens), against a slow model of merging, and at its edges.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "test_text_goldens.h"
#include "text/vocabulary.h"

using namespace treadle;

namespace {

const char* const pre_tokenizers[] = {"smollm", "gpt-2", "llama-bpe", "qwen2", "default"};

std::pmr::memory_resource* heap() { return std::pmr::new_delete_resource(); }

Owned<Vocabulary> make_tiny(std::string_view pre) {
    goldens::TinyVocabulary tiny;
    Owned<Vocabulary> made;
    Error error;
    const Status status = make_vocabulary(tiny.source(pre), heap(), &made, &error);
    INFO(error.message);
    REQUIRE(status == Status::OK);
    return made;
}

std::vector<int32_t> tokenize(const Vocabulary& vocabulary, const std::vector<TextSegment>& segments) {
    std::pmr::vector<int32_t> ids(heap());
    Error error;
    const Status status = vocabulary.tokenize(segments, ids, heap(), &error);
    INFO(error.message);
    REQUIRE(status == Status::OK);
    return {ids.begin(), ids.end()};
}

std::vector<int32_t> tokenize(const Vocabulary& vocabulary, std::string_view text, bool specials = false) {
    return tokenize(vocabulary, {{text, specials}});
}

std::string detokenize(const Vocabulary& vocabulary, const std::vector<int32_t>& ids, bool specials = true) {
    std::pmr::vector<char> bytes(heap());
    REQUIRE(vocabulary.detokenize(ids, specials, bytes, nullptr) == Status::OK);
    return {bytes.begin(), bytes.end()};
}

// A vocabulary by hand: the byte alphabet, then what is given.
struct Handmade {
    goldens::TinyVocabulary tiny;

    Handmade() {
        tiny.tokens.resize(256);
        tiny.types.assign(256, 1);
        tiny.merges.clear();
    }
    int32_t token(const std::string& text, int32_t type = 1) {
        tiny.tokens.push_back(text);
        tiny.types.push_back(type);
        return static_cast<int32_t>(tiny.tokens.size() - 1);
    }
    int32_t merge(const std::string& left, const std::string& right) {
        tiny.merges.push_back(left + " " + right);
        const auto found = std::find(tiny.tokens.begin(), tiny.tokens.end(), left + right);
        return found != tiny.tokens.end() ? static_cast<int32_t>(found - tiny.tokens.begin())
                                          : token(left + right);
    }
    Owned<Vocabulary> make(std::string_view pre = "gpt-2") {
        Owned<Vocabulary> made;
        Error error;
        const Status status = make_vocabulary(tiny.source(pre), heap(), &made, &error);
        INFO(error.message);
        REQUIRE(status == Status::OK);
        return made;
    }
};

}  // namespace

TEST_CASE(
    "vocabulary: ids equal the outside reference's for every pre-tokenizer, with and without specials") {
    const std::vector<std::string> strings = goldens::strings();
    REQUIRE(strings.size() > 2000);
    for (const char* pre : pre_tokenizers) {
        const Owned<Vocabulary> vocabulary = make_tiny(pre);
        const std::string golden = goldens::read_file(std::string("tiny-") + pre + ".bin");
        REQUIRE(golden.size() == 8 * strings.size());
        for (size_t i = 0; i < strings.size(); ++i) {
            for (const bool specials : {false, true}) {
                uint32_t expected = 0;
                for (size_t b = 0; b < 4; ++b) {
                    expected |= uint32_t{static_cast<uint8_t>(golden[8 * i + 4 * specials + b])} << 8 * b;
                }
                const std::vector<int32_t> ids = tokenize(*vocabulary, strings[i], specials);
                if (goldens::hash(ids) != expected) FAIL_CHECK(pre, " string ", i, ": ", strings[i]);
                if (detokenize(*vocabulary, ids) != strings[i])
                    FAIL_CHECK(pre, " decode of string ", i, ": ", strings[i]);
            }
        }
    }
}

TEST_CASE("vocabulary: merging equals the slow model") {
    std::mt19937 random(3);
    for (int round = 0; round < 60; ++round) {
        Handmade hand;
        std::vector<std::string> known = {"a", "b", "c"};
        std::map<std::pair<std::string, std::string>, size_t> ranks;
        for (int i = 0; i < 30; ++i) {
            const std::string left = known[random() % known.size()], right = known[random() % known.size()];
            if (left.size() + right.size() > 8 || ranks.contains({left, right})) continue;
            ranks[{left, right}] = ranks.size();
            hand.merge(left, right);
            if (std::find(known.begin(), known.end(), left + right) == known.end())
                known.push_back(left + right);
        }
        const Owned<Vocabulary> vocabulary = hand.make();
        for (int text = 0; text < 40; ++text) {
            std::string word;
            for (size_t n = 1 + random() % 40; n > 0; --n) word += "abc"[random() % 3];
            std::vector<std::string> symbols;
            for (const char c : word) symbols.emplace_back(1, c);
            while (true) {
                size_t best = symbols.size(), best_rank = SIZE_MAX;
                for (size_t i = 0; i + 1 < symbols.size(); ++i) {
                    const auto found = ranks.find({symbols[i], symbols[i + 1]});
                    if (found != ranks.end() && found->second < best_rank) {
                        best = i;
                        best_rank = found->second;
                    }
                }
                if (best == symbols.size()) break;
                symbols[best] += symbols[best + 1];
                symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
            }
            std::vector<std::string> got;
            for (const int32_t id : tokenize(*vocabulary, word))
                got.emplace_back(vocabulary->token_bytes(id));
            CHECK(got == symbols);
        }
    }
}

TEST_CASE("vocabulary: specials are made only from segments that allow them, and lie wholly inside one") {
    const Owned<Vocabulary> vocabulary = make_tiny("smollm");
    const int32_t start = vocabulary->find_special("<|im_start|>"),
                  end = vocabulary->find_special("<|im_end|>");
    REQUIRE(start >= 0);
    REQUIRE(end >= 0);
    CHECK(vocabulary->is_control(start));
    const auto count = [](const std::vector<int32_t>& ids, int32_t id) {
        return std::count(ids.begin(), ids.end(), id);
    };

    CHECK(count(tokenize(*vocabulary, "<|im_end|>", false), end) == 0);
    CHECK(tokenize(*vocabulary, "<|im_end|>", true) == std::vector<int32_t>{end});
    const std::string text = "x<|im_start|>y<|im_end|>z";
    for (size_t cut = 0; cut <= text.size(); ++cut) {
        const std::string_view head = std::string_view(text).substr(0, cut),
                               tail = std::string_view(text).substr(cut);
        for (const bool first : {false, true}) {
            for (const bool second : {false, true}) {
                const std::vector<int32_t> ids = tokenize(*vocabulary, {{head, first}, {tail, second}});
                CHECK(detokenize(*vocabulary, ids) == text);
                CHECK(count(ids, start) == ((first && cut >= 13) || (second && cut <= 1)));
                CHECK(count(ids, end) == ((first && cut >= 24) || (second && cut <= 14)));
            }
        }
    }
}

TEST_CASE("vocabulary: text between specials is one string, however it is cut into segments") {
    std::mt19937 random(17);
    const std::vector<std::string> strings = goldens::strings();
    for (const char* pre : pre_tokenizers) {
        const Owned<Vocabulary> vocabulary = make_tiny(pre);
        for (size_t i = 0; i < strings.size(); i += 3) {
            const std::vector<int32_t> whole = tokenize(*vocabulary, strings[i]);
            std::vector<TextSegment> segments;
            for (size_t at = 0; at < strings[i].size();) {  // characters may be cut too: it is one string
                const size_t size = std::min<size_t>(1 + random() % 6, strings[i].size() - at);
                segments.push_back({std::string_view(strings[i]).substr(at, size), false});
                at += size;
            }
            CHECK(tokenize(*vocabulary, segments) == whole);
        }
    }
}

TEST_CASE(
    "vocabulary: user-defined tokens are found everywhere, the longest first, and those like <|x|> are "
    "control tokens") {
    Handmade hand;
    const int32_t tool = hand.token("<tool>", 4), toolbox = hand.token("<tool><box>", 4),
                  marker = hand.token("<|tool|>", 4);
    const int32_t spaces = hand.token("   ", 4);
    const Owned<Vocabulary> vocabulary = hand.make();
    CHECK(tokenize(*vocabulary, "<tool><box><tool>") == std::vector<int32_t>{toolbox, tool});
    CHECK(tokenize(*vocabulary, {{"<to", false}, {"ol>", false}}) == std::vector<int32_t>{tool});
    CHECK(tokenize(*vocabulary, "      ") == std::vector<int32_t>{spaces, spaces});
    CHECK(vocabulary->is_control(marker));
    CHECK(tokenize(*vocabulary, "<|tool|>", true) == std::vector<int32_t>{marker});
    CHECK(tokenize(*vocabulary, "<|tool|>", false).size() == 8);
    CHECK(detokenize(*vocabulary, {tool, marker}, false) == "<tool>");
}

TEST_CASE("vocabulary: what a user types never becomes a control token, by merges or as a whole word") {
    Handmade hand;
    hand.merge("E", "O");
    hand.token("EOT", 3);
    hand.tiny.merges.push_back("EO T");
    const int32_t byte_like = hand.token("you", 3);
    const Owned<Vocabulary> vocabulary = hand.make("llama-bpe");
    for (const int32_t id : tokenize(*vocabulary, "EOT you")) CHECK_FALSE(vocabulary->is_control(id));
    CHECK(tokenize(*vocabulary, "you", true) == std::vector<int32_t>{byte_like});
}

TEST_CASE("vocabulary: bytes without a token are left out, and has_byte tells") {
    Handmade hand;
    hand.tiny.tokens['a'] = "letter-a";  // the byte 'a' loses its token
    const Owned<Vocabulary> vocabulary = hand.make();
    CHECK_FALSE(vocabulary->has_byte('a'));
    CHECK(vocabulary->has_byte('b'));
    CHECK(detokenize(*vocabulary, tokenize(*vocabulary, "banana")) == "bnn");
}

TEST_CASE("vocabulary: long runs of one kind are tokenized in full, in bounded time") {
    const char* kinds[] = {"a",        " ",   "\n", "7",       "!", "\xc3\xa9", "\xf0\x9f\x98\x80",
                           "\xc2\xa0", " \n", "'",  "\xcc\x81"};
    for (const char* pre : pre_tokenizers) {
        const Owned<Vocabulary> vocabulary = make_tiny(pre);
        for (const std::string kind : kinds) {
            std::string text;
            while (text.size() < 27000) text += kind;
            text += "x";
            CHECK(detokenize(*vocabulary, tokenize(*vocabulary, text)) == text);
        }
    }
    const Owned<Vocabulary> vocabulary = make_tiny("llama-bpe");
    for (const char kind : {'a', ' '}) {
        const std::string text(1 << 20, kind);
        const auto before = std::chrono::steady_clock::now();
        CHECK(detokenize(*vocabulary, tokenize(*vocabulary, text)) == text);
        CHECK(std::chrono::steady_clock::now() - before <
              std::chrono::seconds(60));  // quadratic would be hours
    }
}

TEST_CASE("vocabulary: text that is not UTF-8 names the byte, and changes nothing") {
    const Owned<Vocabulary> vocabulary = make_tiny("smollm");
    std::pmr::vector<int32_t> ids({7}, heap());
    Error error;
    const TextSegment segments[] = {{"good \xf0\x9f", false}, {"\x98\x80 \xff bad", true}};
    CHECK(vocabulary->tokenize(segments, ids, heap(), &error) == Status::INVALID_UTF8);
    CHECK(std::string(error.message) == "text: byte 10 (0xff) begins no valid UTF-8 character");
    CHECK(ids == std::pmr::vector<int32_t>({7}, heap()));
    const TextSegment cut[] = {{"\xf0\x9f\x98", false}};
    CHECK(vocabulary->tokenize(cut, ids, heap(), &error) == Status::INVALID_UTF8);
    CHECK(vocabulary->tokenize({}, ids, heap(), &error) == Status::OK);
    CHECK(ids.size() == 1);
}

TEST_CASE("vocabulary: detokenizing refuses ids that are none") {
    const Owned<Vocabulary> vocabulary = make_tiny("smollm");
    std::pmr::vector<char> bytes({'x'}, heap());
    Error error;
    for (const int32_t bad : {-1, vocabulary->size(), INT32_MAX, INT32_MIN}) {
        const int32_t ids[] = {0, bad};
        CHECK(vocabulary->detokenize(ids, true, bytes, &error) == Status::TOKEN_OUT_OF_RANGE);
        CHECK(std::string(error.message).starts_with("token 1 is " + std::to_string(bad)));
        CHECK(bytes.size() == 1);
    }
    CHECK(detokenize(*vocabulary, tokenize(*vocabulary, "a<|im_end|>b", true), false) == "ab");
    size_t longest = 0;
    for (int32_t id = 0; id < vocabulary->size(); ++id)
        longest = std::max(longest, vocabulary->token_bytes(id).size());
    CHECK(vocabulary->max_token_bytes() == longest);
}

TEST_CASE("vocabulary: ends of generation by key and by text") {
    goldens::TinyVocabulary tiny;
    VocabularySource source = tiny.source("llama-bpe");
    source.eos = 5;
    source.eot = 6;
    source.bos = 7;
    Owned<Vocabulary> vocabulary;
    REQUIRE(make_vocabulary(source, heap(), &vocabulary, nullptr) == Status::OK);
    for (const int32_t id :
         {5, 6, vocabulary->find_special("<|im_end|>"), vocabulary->find_special("<|endoftext|>")}) {
        CHECK(vocabulary->is_end_of_generation(id));
    }
    CHECK_FALSE(vocabulary->is_end_of_generation(vocabulary->find_special("<|im_start|>")));
    CHECK_FALSE(vocabulary->is_end_of_generation(-1));
    CHECK(vocabulary->bos() == 7);
    CHECK(vocabulary->unk() == -1);
    CHECK(vocabulary->add_bos());  // the family's habit
    source.add_bos = false;
    REQUIRE(make_vocabulary(source, heap(), &vocabulary, nullptr) == Status::OK);
    CHECK_FALSE(vocabulary->add_bos());
    source.pre = "smollm";
    source.add_bos.reset();
    REQUIRE(make_vocabulary(source, heap(), &vocabulary, nullptr) == Status::OK);
    CHECK_FALSE(vocabulary->add_bos());
}

TEST_CASE("vocabulary: a file's faults are statuses that name key and value") {
    goldens::TinyVocabulary tiny;
    const auto expect = [&](Status status, std::string_view part, auto change) {
        goldens::TinyVocabulary changed = tiny;
        VocabularySource source = changed.source("gpt-2");
        change(changed, source);
        Owned<Vocabulary> made;
        Error error;
        CHECK(make_vocabulary(source, heap(), &made, &error) == status);
        INFO(error.message);
        CHECK(std::string_view(error.message).find(part) != std::string_view::npos);
        CHECK(made == nullptr);
    };
    using Tiny = goldens::TinyVocabulary;
    expect(Status::UNSUPPORTED_TOKENIZER, "tokenizer.ggml.model: \"llama\"",
           [](Tiny&, auto& s) { s.model = "llama"; });
    expect(Status::UNSUPPORTED_TOKENIZER, "tokenizer.ggml.pre: \"nosuch\"",
           [](Tiny&, auto& s) { s.pre = "nosuch"; });
    expect(Status::CORRUPT, "tokenizer.ggml.tokens: there are none", [](Tiny&, auto& s) { s.tokens = {}; });
    expect(Status::CORRUPT, "tokenizer.ggml.token_type: 3 values",
           [](Tiny&, auto& s) { s.types = s.types.subspan(0, 3); });
    for (const int32_t type : {0, 7, -1, INT32_MAX}) {
        expect(Status::CORRUPT, "token 9 has type " + std::to_string(type),
               [&](Tiny& t, auto&) { t.types[9] = type; });
    }
    expect(Status::CORRUPT, "token 9 is empty", [](Tiny& t, auto&) { t.token_views[9] = {}; });
    expect(Status::CORRUPT, "tokens 8 and 9 are both",
           [](Tiny& t, auto&) { t.token_views[9] = t.token_views[8]; });
    const std::string huge(70000, 'x');
    expect(Status::LIMIT, "token 9 has 70000 bytes", [&](Tiny& t, auto&) { t.token_views[9] = huge; });
    expect(Status::LIMIT, "special token 9 has 300 bytes", [&](Tiny& t, auto&) {
        t.token_views[9] = std::string_view(huge).substr(0, 300);
        t.types[9] = 3;
    });
    expect(Status::CORRUPT, "special token 9 is not valid UTF-8", [&](Tiny& t, auto&) {
        t.token_views[9] = "\x9f";
        t.types[9] = 4;
    });
    for (const int64_t id : {int64_t{-2}, int64_t{1} << 32, static_cast<int64_t>(tiny.tokens.size())}) {
        expect(Status::CORRUPT, "tokenizer.ggml.eos_token_id: " + std::to_string(id),
               [&](Tiny&, auto& s) { s.eos = id; });
    }
    expect(Status::CORRUPT, "tokenizer.ggml.add_bos_token", [](Tiny&, auto& s) { s.add_bos = true; });
    for (const char* merge : {"", " ", "a", "ab", "a ", " a"}) {
        expect(Status::CORRUPT, "merge 2, ", [&](Tiny& t, auto&) { t.merge_views[2] = merge; });
    }
    expect(Status::CORRUPT, "its left side", [](Tiny& t, auto&) { t.merge_views[2] = "nosuchtoken a"; });
    expect(Status::CORRUPT, "its right side", [](Tiny& t, auto&) { t.merge_views[2] = "a b c"; });
    expect(Status::CORRUPT, "its result", [](Tiny& t, auto&) { t.merge_views[2] = "Q Q"; });
}

TEST_CASE(
    "vocabulary: memory comes from where it should, and running out of it at any point leaves all as it "
    "was") {
    struct Counting final : std::pmr::memory_resource {
        size_t left = SIZE_MAX, in_use = 0;
        void* do_allocate(size_t size, size_t alignment) override {
            if (left == 0) throw std::bad_alloc();
            --left;
            in_use += size;
            return heap()->allocate(size, alignment);
        }
        void do_deallocate(void* pointer, size_t size, size_t alignment) override {
            in_use -= size;
            heap()->deallocate(pointer, size, alignment);
        }
        bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
    };
    goldens::TinyVocabulary tiny;
    const VocabularySource source = tiny.source("default");
    std::pmr::memory_resource* before = std::pmr::set_default_resource(std::pmr::null_memory_resource());
    {
        Counting memory, scratch;
        Owned<Vocabulary> vocabulary;
        for (size_t budget = 0; vocabulary == nullptr; ++budget) {
            memory.left = budget;
            try {
                const Status status = make_vocabulary(source, &memory, &vocabulary, nullptr);
                REQUIRE(status == Status::OK);
            } catch (const std::bad_alloc&) {
                CHECK(memory.in_use == 0);
            }
        }
        const TextSegment segments[] = {{"Hello <|im_end|> 12345 world", true},
                                        {" it's <tool> \n\n done", false}};
        std::pmr::vector<int32_t> ids({1, 2}, heap());
        bool done = false;
        for (size_t budget = 0; !done; ++budget) {
            scratch.left = budget;
            try {
                done = vocabulary->tokenize(segments, ids, &scratch, nullptr) == Status::OK;
            } catch (const std::bad_alloc&) {
                CHECK(ids.size() == 2);
            }
            CHECK(scratch.in_use == 0);
        }
        CHECK(ids.size() > 10);
        vocabulary.reset();
        CHECK(memory.in_use == 0);
    }
    std::pmr::set_default_resource(before);
}

TEST_CASE("vocabulary: many threads share one") {
    const Owned<Vocabulary> vocabulary = make_tiny("default");
    const std::vector<std::string> strings = goldens::strings();
    std::vector<std::thread> threads;
    std::vector<uint32_t> hashes(4, 0);
    for (size_t t = 0; t < hashes.size(); ++t) {
        threads.emplace_back([&, t] {
            std::pmr::vector<int32_t> ids(heap());
            for (size_t i = 0; i < strings.size(); i += 5) {
                const TextSegment segment[] = {{strings[i], true}};
                (void)vocabulary->tokenize(segment, ids, heap(), nullptr);
            }
            hashes[t] = goldens::hash(ids);
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const uint32_t hash : hashes) CHECK(hash == hashes[0]);
}
