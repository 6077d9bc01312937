// Promise: any bytes tokenize to a status or to ids that decode to the same text, however the text is cut
// into segments that allow nothing special; and whatever token bytes come, the text stream delivers valid
// UTF-8 that doesn't depend on how they were cut.
//
// Input: one byte that picks the pre-tokenizer, one byte of cuts, then the text.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "../unit/test_text_goldens.h"
#include "text/text_stream.h"
#include "text/vocabulary.h"

using namespace treadle;

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

std::pmr::memory_resource* heap() { return std::pmr::new_delete_resource(); }

const Vocabulary& vocabulary(uint8_t choice) {
    static const char* const names[] = {"smollm", "gpt-2", "llama-bpe", "qwen2", "default"};
    static Owned<Vocabulary> made[5];
    Owned<Vocabulary>& slot = made[choice % 5];
    if (slot == nullptr) {
        goldens::TinyVocabulary tiny;
        require(make_vocabulary(tiny.source(names[choice % 5]), heap(), &slot, nullptr) == Status::OK);
    }
    return *slot;
}

void check_tokens(const Vocabulary& words, std::string_view text, size_t cut) {
    for (const bool specials : {false, true}) {
        std::pmr::vector<int32_t> ids(heap());
        const TextSegment whole[] = {{text, specials}};
        const Status status = words.tokenize(whole, ids, heap(), nullptr);
        require((status == Status::OK) == (find_invalid_utf8(text) == utf8_valid));
        if (status != Status::OK) {
            require(status == Status::INVALID_UTF8 && ids.empty());
            continue;
        }
        std::pmr::vector<char> bytes(heap());
        require(words.detokenize(ids, true, bytes, nullptr) == Status::OK);
        require(text == std::string_view(bytes.data(), bytes.size()));
        if (specials) continue;
        for (const int32_t id : ids) require(!words.is_control(id));
        std::pmr::vector<int32_t> again(heap());
        const TextSegment parts[] = {{text.substr(0, cut), false}, {text.substr(cut), false}};
        require(words.tokenize(parts, again, heap(), nullptr) == Status::OK);
        require(again == ids);
    }
}

std::string stream(const StopSet& stops, std::string_view bytes, size_t piece) {
    TextStream stream;
    std::string text;
    for (size_t at = 0; at < bytes.size(); at += piece) {
        const std::string_view part = bytes.substr(at, piece);
        std::string out(TextStream::output_bytes_max(stops, part.size()), '\0');
        const StopResult result = stream.push(stops, part, out.data());
        require(result.bytes <= out.size());
        require(find_invalid_utf8({out.data(), result.bytes}) == utf8_valid);
        text.append(out, 0, result.bytes);
    }
    std::string out(TextStream::output_bytes_max(stops, 0), '\0');
    text.append(out, 0, stream.finish(stops, out.data()).bytes);
    return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
    if (size < 2) return 0;
    const std::string_view text(reinterpret_cast<const char*>(bytes) + 2, size - 2);
    const size_t cut = text.empty() ? 0 : bytes[1] % (text.size() + 1);
    check_tokens(vocabulary(bytes[0]), text, cut);

    // Stop strings out of the text itself, so that they are met.
    StopSet stops(heap());
    std::vector<std::string_view> strings = {"<|im_end|>"};
    for (size_t at = 0; at + 3 <= text.size() && strings.size() < 8; at += 5)
        strings.push_back(text.substr(at, 1 + at % 3));
    if (stops.build(strings, nullptr) != Status::OK) (void)stops.build(std::span(strings).first(1), nullptr);
    const std::string expected = stream(stops, text, text.size() + 1);
    require(stream(stops, text, 1) == expected);
    require(stream(stops, text, 1 + bytes[1] % 7) == expected);
    return 0;
}
