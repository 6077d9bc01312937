// What the machine itself can do: int8 multiply-adds per second, and bytes per second read from memory. No code of the library
// is in here; ceilings.py holds the engine's figures against these.
//
//     ceilings_bench [--threads N] [COMMAND...]      without commands: one a line from standard input
//
//     about           the instructions there are, and the buffer
//     int8 NAME       multiply-adds of N threads, in registers alone: vpdpbusd512 (AVX-512 VNNI) or maddubs256 (AVX2)
//     read            reading of a buffer far larger than the caches by N threads, each its part
//
// Each answer is a line of JSON with the rate. Each measurement takes about a tenth of a second.
//
// Invariant: what a loop computes is handed to the compiler as something that might be used, so it stays in.
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "clock.h"

using treadle::bench::now_s;

namespace {

constexpr double measured_s = 0.1;
constexpr size_t line_bytes = 64;

[[noreturn]] void give_up(const std::string& why) {
    std::fprintf(stderr, "ceilings_bench: %s\n", why.c_str());
    std::exit(1);
}

// ---- int8: a function runs so many rounds and returns the multiply-adds of one round --------------------------------

__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) int64_t vpdpbusd512(int64_t rounds) {
    constexpr int chains = 12,
                  steps = 8;  // more chains than the latency of an instruction times two of it a cycle
    __m512i weights = _mm512_set1_epi8(7);
    const __m512i activations = _mm512_set1_epi8(3);
    __m512i sums[chains];
    for (__m512i& sum : sums) sum = _mm512_setzero_si512();
    for (int64_t round = 0; round < rounds; round++)
        for (int step = 0; step < steps; step++) {
            asm volatile("" : "+v"(weights));
            for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, weights, activations);
        }
    for (__m512i& sum : sums) asm volatile("" : : "v"(sum));
    return int64_t{chains} * steps * 64;
}

// Weights of 4 bits: eight products are added in 16 bits before they are widened, as exact dot products allow.
__attribute__((target("avx2"))) int64_t maddubs256(int64_t rounds) {
    constexpr int chains = 5, steps = 8;
    __m256i weights = _mm256_set1_epi8(7);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i activations[chains], sums[chains];
    for (__m256i& sum : sums) sum = _mm256_setzero_si256();
    for (int chain = 0; chain < chains; chain++) {
        activations[chain] = _mm256_set1_epi8(static_cast<char>(chain));
        asm volatile("" : "+x"(activations[chain]));  // else equal products would be computed once
    }
    for (int64_t round = 0; round < rounds; round++) {
        __m256i shorts[chains];
        for (__m256i& half : shorts) half = _mm256_setzero_si256();
        for (int step = 0; step < steps; step++) {
            asm volatile("" : "+x"(weights));
            for (int chain = 0; chain < chains; chain++) {
                shorts[chain] =
                    _mm256_add_epi16(shorts[chain], _mm256_maddubs_epi16(weights, activations[chain]));
                asm volatile(
                    ""
                    : "+x"(shorts[chain]));  // else products would pile up, in more than the registers
            }
        }
        for (int chain = 0; chain < chains; chain++)
            sums[chain] = _mm256_add_epi32(sums[chain], _mm256_madd_epi16(shorts[chain], ones));
    }
    for (__m256i& sum : sums) asm volatile("" : : "x"(sum));
    return int64_t{chains} * steps * 32;
}

struct Int8 {
    const char* name;
    bool there;
    int64_t (*run)(int64_t rounds);
};

std::vector<Int8> int8_kernels() {
    const bool vnni = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    return {{"vpdpbusd512", vnni, vpdpbusd512},
            {"maddubs256", __builtin_cpu_supports("avx2") != 0, maddubs256}};
}

// ---- Reading --------------------------------------------------------------------------------------------------------

class Buffer {
public:
    Buffer() {
        void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) give_up("no memory");
        madvise(memory, bytes, MADV_HUGEPAGE);
        data = static_cast<char*>(memory);
        std::fill(data, data + bytes, 1);
    }
    ~Buffer() { munmap(data, bytes); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    static constexpr size_t bytes = size_t{512} << 20;
    char* data;
};

// Every line once, front to back, asked for well ahead.
void read_lines(const char* from, size_t bytes) {
    constexpr size_t ahead = 2048;
    __m128i sums[4] = {};
    for (const char* line = from; line < from + bytes; line += line_bytes) {
        _mm_prefetch(line + ahead, _MM_HINT_T0);
        for (int part = 0; part < 4; part++)
            sums[part] =
                _mm_xor_si128(sums[part], _mm_load_si128(reinterpret_cast<const __m128i*>(line) + part));
    }
    for (__m128i& sum : sums) asm volatile("" : : "x"(sum));
}

// ---- Threads --------------------------------------------------------------------------------------------------------

// Pieces per second of `threads` that all begin together and go on for so long: piece(index, count) is one's count'th.
template <class Piece>
double rate(int threads, const Piece& piece) {
    std::atomic<int> waiting{threads};
    std::vector<double> rates(static_cast<size_t>(threads));
    const auto work = [&](int index) {
        waiting--;
        while (waiting > 0) _mm_pause();
        const double begin_s = now_s();
        double seconds = 0;
        int64_t count = 0;
        while (seconds < measured_s) {
            piece(index, count++);
            seconds = now_s() - begin_s;
        }
        rates[static_cast<size_t>(index)] = static_cast<double>(count) / seconds;
    };
    std::vector<std::thread> others;
    for (int index = 1; index < threads; index++) others.emplace_back(work, index);
    work(0);
    for (std::thread& other : others) other.join();
    return std::accumulate(rates.begin(), rates.end(), 0.0);
}

double int8_rate(const std::string& name, int threads) {
    constexpr int64_t rounds = 10000;  // some tenths of a millisecond
    for (const Int8& kernel : int8_kernels()) {
        if (name != kernel.name || !kernel.there) continue;
        const double of_piece = static_cast<double>(kernel.run(1) * rounds);
        return of_piece * rate(threads, [&](int, int64_t) { kernel.run(rounds); });
    }
    give_up("'" + name + "' is not there");
}

double read_rate(const Buffer& buffer, int threads) {
    constexpr size_t piece = size_t{4} << 20;
    const size_t pieces = Buffer::bytes / static_cast<size_t>(threads) / piece;  // of each thread
    if (pieces == 0) give_up("too many threads");
    return static_cast<double>(piece) * rate(threads, [&](int index, int64_t count) {
               const size_t place = static_cast<size_t>(index) * pieces + static_cast<size_t>(count) % pieces;
               read_lines(buffer.data + place * piece, piece);
           });
}

void run(const std::string& command, int threads, const Buffer& buffer) {
    std::istringstream words(command);
    std::string verb, name;
    words >> verb >> name;
    if (verb == "about") {
        std::string names;
        for (const Int8& kernel : int8_kernels())
            if (kernel.there) names += (names.empty() ? "\"" : ", \"") + std::string(kernel.name) + "\"";
        std::printf("{\"int8\": [%s], \"buffer_bytes\": %zu}\n", names.c_str(), Buffer::bytes);
    } else if (verb == "int8") {
        std::printf("{\"rate\": %.6g}\n", int8_rate(name, threads));
    } else if (verb == "read") {
        std::printf("{\"rate\": %.6g}\n", read_rate(buffer, threads));
    } else {
        give_up("unknown command '" + command + "'");
    }
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    int threads = 1;
    std::vector<std::string> commands;
    for (int i = 1; i < argc; i++) {
        if (std::string(argv[i]) == "--threads" && i + 1 < argc)
            threads = std::max(1, std::atoi(argv[++i]));
        else
            commands.emplace_back(argv[i]);
    }
    const Buffer buffer;
    for (const std::string& command : commands) run(command, threads, buffer);
    std::string line;
    while (commands.empty() && std::getline(std::cin, line)) run(line, threads, buffer);
}
