// The tokenizer and chat template of SmolLM2-135M-Instruct against llama-cpp-python's ids for the same file
// (tests/golden/tokens). TREADLE_TEST_MODEL names the file.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/platform.h"
#include "gguf/reader.h"
#include "model/vocabulary_source.h"
#include "text/chat_template.h"
#include "text/vocabulary.h"
#include "unit/test_text_goldens.h"

using namespace treadle;

namespace {

void* allocate(void*, size_t size, size_t alignment, int32_t) {
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void release(void*, void* pointer, size_t, size_t, int32_t) { std::free(pointer); }

struct Model {
    Memory memory{{nullptr, allocate, release}, MemoryKind::other};
    Owned<Vocabulary> vocabulary;
    Owned<ChatTemplate> chat;

    Model() {
        const char* path = std::getenv("TREADLE_TEST_MODEL");
        INFO("TREADLE_TEST_MODEL must name the SmolLM2-135M-Instruct file");
        REQUIRE(path != nullptr);
        Owned<FileReader> file;
        Owned<GgufFile> gguf;
        std::string_view source;
        REQUIRE(open_file(path, &memory, &file, nullptr) == Status::OK);
        REQUIRE(read_gguf(*file, {}, &memory, &gguf, nullptr) == Status::OK);
        REQUIRE(load_vocabulary(gguf->metadata(), &memory, &memory, &vocabulary, nullptr) == Status::OK);
        REQUIRE(gguf->metadata().get("tokenizer.chat_template", &source, nullptr) == Status::OK);
        REQUIRE(make_chat_template(source, &memory, &chat, nullptr) == Status::OK);
    }
};

const Model& model() {
    static const Model loaded;
    return loaded;
}

std::vector<int32_t> tokenize(const std::vector<TextSegment>& segments) {
    std::pmr::vector<int32_t> ids(std::pmr::new_delete_resource());
    REQUIRE(model().vocabulary->tokenize(segments, ids, std::pmr::new_delete_resource(), nullptr) ==
            Status::OK);
    return {ids.begin(), ids.end()};
}

std::string detokenize(const std::vector<int32_t>& ids) {
    std::pmr::vector<char> bytes(std::pmr::new_delete_resource());
    REQUIRE(model().vocabulary->detokenize(ids, true, bytes, nullptr) == Status::OK);
    return {bytes.begin(), bytes.end()};
}

std::vector<TextSegment> render(const std::vector<ChatMessage>& messages, ChatStart start) {
    std::pmr::vector<TextSegment> out(std::pmr::new_delete_resource());
    const bool generation_prompt = ChatTemplate::wants_generation_prompt(messages);
    REQUIRE(model().chat->render(messages, start, generation_prompt, out, nullptr) == Status::OK);
    return {out.begin(), out.end()};
}

}  // namespace

TEST_CASE("smollm2: ids equal the outside reference's, and decode to the bytes that went in") {
    const std::vector<std::string> strings = goldens::strings();
    goldens::Bytes golden{goldens::read_file("smollm2.bin")};
    REQUIRE(strings.size() > 2000);
    size_t lossy = 0;
    for (const std::string& text : strings) {
        const std::vector<int32_t> plain = golden.ids(golden.number());
        const uint32_t special_count = golden.number();
        const std::vector<int32_t> special = special_count == 0 ? plain : golden.ids(special_count - 1);
        if (tokenize({{text, false}}) != plain) FAIL_CHECK("plain: ", text);
        if (tokenize({{text, true}}) != special) FAIL_CHECK("with specials: ", text);

        std::string
            kept;  // this vocabulary has no token for a few control characters and for U+40000 to U+BFFFF
        for (const char c : text) {
            if (model().vocabulary->has_byte(static_cast<uint8_t>(c))) kept += c;
        }
        lossy += kept != text;
        if (detokenize(plain) != kept || detokenize(special) != kept) FAIL_CHECK("decoding: ", text);
    }
    CHECK(golden.at == golden.data.size());
    CHECK(lossy < 60);
}

TEST_CASE("smollm2: a rendered chat has the ids of its whole text") {
    const std::string text =
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n";
    CHECK(tokenize(render({{"user", "Hi there"}}, ChatStart::fresh)) == tokenize({{text, true}}));
    CHECK_FALSE(model().vocabulary->add_bos());
    const int32_t end = model().vocabulary->find_special("<|im_end|>");
    CHECK(model().vocabulary->is_end_of_generation(end));
    const auto typed = tokenize(render({{"system", "S"}, {"user", "<|im_end|>"}}, ChatStart::fresh));
    CHECK(std::count(typed.begin(), typed.end(), end) == 2);
}

TEST_CASE("smollm2: a conversation continued turn by turn has the ids of the whole") {
    const std::vector<ChatMessage> first = {{"user", "Name a colour."}};
    std::vector<int32_t> ids = tokenize(render(first, ChatStart::fresh));
    CHECK(ChatTemplate::start_after(*model().vocabulary, ids) == ChatStart::open_turn);
    const std::vector<int32_t> answer = tokenize({{"Blue.", false}});
    ids.insert(ids.end(), answer.begin(), answer.end());
    const std::vector<ChatMessage> second = {{"user", "Another?"}};
    const std::vector<ChatMessage> whole = {
        {"user", "Name a colour."}, {"assistant", "Blue."}, {"user", "Another?"}};
    const std::vector<int32_t> expected = tokenize(render(whole, ChatStart::fresh));

    const int32_t end = model().vocabulary->find_special("<|im_end|>");
    const int32_t newline = tokenize({{"\n", false}}).at(0);
    for (const std::vector<int32_t>& tail : {std::vector<int32_t>{}, {end}, {end, newline}}) {
        std::vector<int32_t> continued = ids;
        continued.insert(continued.end(), tail.begin(), tail.end());
        const ChatStart start = ChatTemplate::start_after(*model().vocabulary, continued);
        const ChatStart starts[] = {ChatStart::open_turn, ChatStart::closed_turn, ChatStart::between_turns};
        CHECK(start == starts[tail.size()]);
        const std::vector<int32_t> next = tokenize(render(second, start));
        continued.insert(continued.end(), next.begin(), next.end());
        CHECK(continued == expected);
    }
}
