// Writes the engine's logits for chunks of token ids, for compare.py:   dump_logits MODEL.gguf TOKENS.txt LOGITS.bin
// TOKENS.txt holds a chunk per line; the file written has per chunk int32 tokens, int32 vocabulary, float32 (tokens, vocabulary).
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "engine_harness.h"

int main(int argc, char** argv) {
    if (argc != 4) {
        std::fprintf(stderr, "usage: dump_logits MODEL.gguf TOKENS.txt LOGITS.bin\n");
        return 2;
    }
    const auto model = treadle::test::load_path(argv[1]);
    std::ifstream chunks(argv[2]);
    std::ofstream out(argv[3], std::ios::binary);
    for (std::string line; std::getline(chunks, line);) {
        if (line.empty() || line[0] == '#') continue;
        std::istringstream numbers(line);
        std::vector<int32_t> tokens;
        for (int32_t token; numbers >> token;) tokens.push_back(token);
        const std::vector<float> logits = treadle::test::logits_of(*model, tokens, 128);
        const int32_t sizes[] = {static_cast<int32_t>(tokens.size()), model->program().vocabulary};
        out.write(reinterpret_cast<const char*>(sizes), sizeof sizes);
        out.write(reinterpret_cast<const char*>(logits.data()),
                  static_cast<std::streamsize>(logits.size() * sizeof(float)));
    }
    return out.good() ? 0 : 1;
}
