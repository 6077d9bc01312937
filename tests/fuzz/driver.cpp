// Runs a fuzz target without a fuzzing engine: on files if some are named, else on random inputs that depend on their number
// only. So the targets are plain tests on every compiler and sanitizer; a build for libFuzzer leaves this file out.
//
//     fuzz_NAME [--first NUMBER] [--count NUMBER] [FILE...]
//
// When an input makes the target die, its number is printed: --first NUMBER --count 1 repeats it.
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);

namespace {

constexpr uint64_t count_default = 20000;
constexpr int size_log2_max = 12;  // inputs have up to 4,096 bytes, short ones as often as long ones

char current_input[512];  // what the handler of fatal signals prints

void name_input(const std::string& name) {
    std::snprintf(current_input, sizeof current_input, "failed: the target died on input %s\n", name.c_str());
}

void report_death(int signal) {
    const ssize_t written = write(STDERR_FILENO, current_input, std::strlen(current_input));
    std::signal(signal, written >= 0 ? SIG_DFL : SIG_IGN);
    std::raise(signal);
}

uint64_t splitmix64(uint64_t* state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// A third of the inputs is random throughout, a third draws from few different bytes, a third from the bytes at the edges of
// integers, lengths and floats.
std::vector<uint8_t> make_input(uint64_t number) {
    static constexpr uint8_t edges[] = {0, 0, 0, 1, 2, 0x3f, 0x40, 0x7f, 0x80, 0xc0, 0xfe, 0xff, 0xff};
    uint64_t state = number;
    const uint64_t kind = splitmix64(&state) % 3;
    const uint64_t size_max = uint64_t{1} << splitmix64(&state) % (size_log2_max + 1);
    std::vector<uint8_t> input(splitmix64(&state) % (size_max + 1));
    const auto few = static_cast<uint8_t>(splitmix64(&state));
    for (uint8_t& byte : input) {
        const uint64_t random = splitmix64(&state);
        byte = static_cast<uint8_t>(random >> 32);
        if (kind == 1) byte = static_cast<uint8_t>(few + random % 4);
        if (kind == 2 && random % 8 != 0) byte = edges[random / 8 % std::size(edges)];
    }
    return input;
}

}  // namespace

int main(int argc, char** argv) {
    uint64_t first = 0, count = count_default;
    std::vector<std::string> files;
    for (int i = 1; i < argc; i++) {
        const bool has_value = i + 1 < argc;
        if (std::strcmp(argv[i], "--first") == 0 && has_value) {
            first = std::strtoull(argv[++i], nullptr, 10);
        } else if (std::strcmp(argv[i], "--count") == 0 && has_value) {
            count = std::strtoull(argv[++i], nullptr, 10);
        } else {
            files.emplace_back(argv[i]);
        }
    }
    for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGILL, SIGBUS}) std::signal(signal, report_death);

    for (const std::string& file : files) {
        std::ifstream stream(file, std::ios::binary);
        const std::vector<char> bytes((std::istreambuf_iterator<char>(stream)),
                                      std::istreambuf_iterator<char>());
        name_input(file);
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    }
    if (files.empty()) {
        for (uint64_t number = first; number < first + count; number++) {
            const std::vector<uint8_t> input = make_input(number);
            name_input(std::to_string(number));
            LLVMFuzzerTestOneInput(input.data(), input.size());
        }
    }
    const std::string program = argv[0];
    std::printf("ok: %s, %llu inputs\n", program.substr(program.find_last_of('/') + 1).c_str(),
                static_cast<unsigned long long>(files.empty() ? count : files.size()));
    return EXIT_SUCCESS;
}
