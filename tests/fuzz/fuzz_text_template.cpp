// Promise: any bytes as a chat template, or as the tokens and merges of a vocabulary, are a status with a
// message or an object that works; nothing is read or written out of bounds and nothing takes long.
//
// Input: the text of a template; cut at its zero bytes it is also the list of a vocabulary's tokens and
// merges.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "text/chat_template.h"
#include "text/vocabulary.h"

using namespace treadle;

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

std::pmr::memory_resource* heap() { return std::pmr::new_delete_resource(); }

void check_template(std::string_view text) {
    Owned<ChatTemplate> chat;
    Error error;
    if (make_chat_template(text, heap(), &chat, &error) != Status::OK) {
        require(chat == nullptr && error.message[0] != 0);
        return;
    }
    std::pmr::vector<TextSegment> segments(heap());
    const ChatMessage messages[] = {{"user", "Hello"}, {"assistant", "Hi"}};
    require(chat->render(messages, ChatStart::fresh, true, segments, nullptr) == Status::OK);
    require(segments.size() >= 10);
}

void check_vocabulary(std::string_view text) {
    std::vector<std::string_view> tokens, merges;
    std::vector<int32_t> types;
    while (!text.empty()) {
        const std::string_view item = text.substr(0, text.find('\0'));
        text.remove_prefix(item.size() < text.size() ? item.size() + 1 : item.size());
        if (item.find(' ') != std::string_view::npos) {
            merges.push_back(item);
        } else {
            types.push_back(item.empty() ? 1 : 1 + static_cast<uint8_t>(item[0]) % 6);
            tokens.push_back(item);
        }
    }
    static const char* const names[] = {"smollm", "gpt-2", "llama-bpe", "qwen2", "default"};
    VocabularySource source;
    source.model = "gpt2";
    source.pre = names[tokens.size() % 5];
    source.tokens = tokens;
    source.types = types;
    source.merges = merges;
    source.eos = static_cast<int64_t>(merges.size()) - 1;
    Owned<Vocabulary> made;
    Error error;
    if (make_vocabulary(source, heap(), &made, &error) != Status::OK) {
        require(made == nullptr && error.message[0] != 0);
        return;
    }
    std::pmr::vector<int32_t> ids(heap());
    std::pmr::vector<char> bytes(heap());
    const TextSegment segments[] = {{"abc <|im_end|> 123\n", true}, {"abcabc", false}};
    require(made->tokenize(segments, ids, heap(), nullptr) == Status::OK);
    require(made->detokenize(ids, true, bytes, nullptr) == Status::OK);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(bytes), size);
    check_template(text);
    check_vocabulary(text);
    return 0;
}
