// simulate [--steps N] [--seed S] [--only SEED] [--progress]
//
// Runs worlds with the seeds S, S + 1, … until N steps are done, or the one world of SEED. Closes with what happened and
// 'N passed, N failed', counted in worlds. A failed world tells its seed, step and last actions, and how to run it again; one
// that dies or hangs tells at least the latter.
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "simulator.h"

// Of a sanitizer's run time, where there is one.
// NOLINTNEXTLINE(bugprone-reserved-identifier): its name
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using namespace treadle::test;

// What a world says that dies: made before it runs, so that a signal's handler only writes it.
char last_words[300];

void say_last_words() {
    if (write(STDOUT_FILENO, last_words, std::strlen(last_words)) < 0) return;
}

void die(int signal_number) {
    say_last_words();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

constexpr time_t hang_s = 300;  // of computing: a world takes milliseconds; under valgrind seconds

struct Arguments {
    uint64_t steps = 100'000;
    uint64_t seed = 1;
    uint64_t only = 0;
    bool has_only = false;
    bool progress = false;
};

constexpr int64_t steps_for_coverage = 50'000;  // from so many on, everything must have happened once
constexpr int64_t failures_max = 5;

bool read_number(const char* text, uint64_t* out) {
    char* end = nullptr;
    errno = 0;
    *out = std::strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && *text != '-';
}

bool read_arguments(int count, char** values, Arguments* out) {
    for (int i = 1; i < count; i++) {
        const std::string_view name = values[i];
        uint64_t* number = name == "--steps"  ? &out->steps
                           : name == "--seed" ? &out->seed
                           : name == "--only" ? &out->only
                                              : nullptr;
        if (name == "--progress") {
            out->progress = true;
        } else if (number != nullptr && i + 1 < count && read_number(values[i + 1], number)) {
            out->has_only |= number == &out->only;
            i++;
        } else {
            std::fprintf(stderr,
                         "%s: unknown or incomplete: %s\n"
                         "usage: simulate [--steps N] [--seed S] [--only SEED] [--progress]\n",
                         values[0], values[i]);
            return false;
        }
    }
    return true;
}

// True if all checks of the world held.
bool run_world(uint64_t seed, const char* program, Coverage* coverage) {
    std::snprintf(last_words, sizeof last_words,
                  "failed: a world died or hung\n  again: %s --only %" PRIu64 "\n", program, seed);
    const itimerval hang{{0, 0}, {hang_s, 0}};
    setitimer(ITIMER_PROF, &hang, nullptr);
    World world(seed, coverage);
    try {
        world.run();
        return true;
    } catch (const std::exception& failure) {
        std::printf("failed: %s\n%s  again: %s --only %" PRIu64 "\n", failure.what(), world.story().c_str(),
                    program, seed);
        return false;
    }
}

// Prints what happened; returns how much of it should have and did not.
int64_t print_coverage(const Coverage& coverage) {
    int64_t missing = 0;
    for (const Coverage::Line& line : coverage.lines()) {
        std::printf("%12" PRId64 "  %s\n", line.value, line.name);
        if (!line.expected || line.value > 0 || coverage.steps < steps_for_coverage) continue;
        std::printf("failed: %s: it never happened\n", line.name);
        missing++;
    }
    return missing;
}

}  // namespace

int main(int count, char** values) {
    Arguments arguments;
    if (!read_arguments(count, values, &arguments)) return 2;
    for (const int each : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF}) signal(each, die);
    if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(say_last_words);
    Coverage coverage;
    int64_t failed = 0;
    uint64_t seed = arguments.has_only ? arguments.only : arguments.seed;
    do {
        if (arguments.progress && coverage.worlds % 100 == 0) {
            std::printf("seed %" PRIu64 ", %" PRId64 " steps\n", seed, coverage.steps);
            std::fflush(stdout);
        }
        if (!run_world(seed, values[0], &coverage)) failed++;
        seed++;
    } while (!arguments.has_only && failed < failures_max &&
             coverage.steps < static_cast<int64_t>(arguments.steps));
    const int64_t passed = coverage.worlds - failed;
    if (failed == 0) failed += print_coverage(coverage);
    std::printf("%" PRId64 " passed, %" PRId64 " failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
