// The engine's side of the comparisons with the oracle:
//
//     dump_logits MODEL.gguf TOKENS.txt LOGITS.bin [KEYS VALUES]      KEYS, VALUES: f16, q8_0, tbq4, keys also tbq4x
//     dump_logits MODEL.gguf TEXT.txt > TOKENS.txt                    the text's token ids on a line
//
// TOKENS.txt holds a chunk per line; LOGITS.bin gets per chunk int32 tokens, int32 vocabulary, float32 (tokens, vocabulary).
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory_resource>
#include <optional>
#include <sstream>
#include <string>

#include "engine_harness.h"

using namespace treadle;

namespace {

std::optional<KvType> kv_type_of(const std::string& name) {
    for (const KvType type : {KvType::f16, KvType::q8_0, KvType::tbq4, KvType::tbq4x})
        if (name == kv_type_name(type)) return type;
    return {};
}

int write_tokens(const test::LoadedModel& model, const char* path) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const TextSegment segment{text, false};
    std::pmr::vector<int32_t> tokens;
    Error error;
    if (!file || model.vocabulary().tokenize({&segment, 1}, tokens, tokens.get_allocator().resource(),
                                             &error) != Status::OK) {
        std::fprintf(stderr, "%s: %s\n", path, file ? error.message : "can't be read");
        return 1;
    }
    for (const int32_t token : tokens) std::printf("%d ", token);
    std::printf("\n");
    return 0;
}

int write_logits(const test::LoadedModel& model, const char* tokens_path, const char* logits_path) {
    std::ifstream chunks(tokens_path);
    std::ofstream out(logits_path, std::ios::binary);
    for (std::string line; std::getline(chunks, line);) {
        if (line.empty() || line[0] == '#') continue;
        std::istringstream numbers(line);
        std::vector<int32_t> tokens;
        for (int32_t token; numbers >> token;) tokens.push_back(token);
        const std::vector<float> logits = test::logits_of(model, tokens, 128);
        const int32_t sizes[] = {static_cast<int32_t>(tokens.size()), model.program().vocabulary};
        out.write(reinterpret_cast<const char*>(sizes), sizeof sizes);
        out.write(reinterpret_cast<const char*>(logits.data()),
                  static_cast<std::streamsize>(logits.size() * sizeof(float)));
    }
    return out.good() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    const std::optional<KvType> keys = argc == 6 ? kv_type_of(argv[4]) : KvType::f16;
    const std::optional<KvType> values = argc == 6 ? kv_type_of(argv[5]) : KvType::f16;
    if (argc < 3 || argc == 5 || argc > 6 || !keys || !values) {
        std::fprintf(stderr,
                     "usage: dump_logits MODEL.gguf TOKENS.txt LOGITS.bin [KEYS VALUES]\n"
                     "       dump_logits MODEL.gguf TEXT.txt > TOKENS.txt\n");
        return 2;
    }
    const auto model = test::load_path(argv[1]);
    if (argc == 3) return write_tokens(*model, argv[2]);
    model->keep_kv_as(*keys, *values);
    return write_logits(*model, argv[2], argv[3]);
}
