// Writes the tests' tiny model into a file, for what takes too long on a real one: 'make check' runs the minimal example on it
// under valgrind.
//
//     write_tiny_model FILE.gguf
#include <cstdio>
#include <fstream>

#include "gguf_writer.h"

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: write_tiny_model FILE.gguf\n");
        return 2;
    }
    treadle::test::TinyLlamaOptions options;
    options.set_all(treadle::TensorType::Q4_1);
    const treadle::test::Bytes bytes = treadle::test::tiny_llama(42, options).bytes();
    std::ofstream file(argv[1], std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (file) return 0;
    std::fprintf(stderr, "write_tiny_model: %s cannot be written\n", argv[1]);
    return 1;
}
