// The benches of the engine's own cost, and who owns which block: what can't be seen through engine.h. Each scenario prints one
// line of JSON; serving.py calls them.
//
//     serving_inside SCENARIO [flags]
//
//     step      [--running N --steps N --prompt N --temperature X]    a step of so many running sequences, and what it allocates
//     queue     [--running N --steps N --queued N]    the same while 10 or 100,000 requests wait
//     intake    [--queued N --budget-us N]            steps with a budget that find so many submissions
//     heads     [--running N --steps N --found N]     of a step while heads of the queue find much but lack blocks
//     lookup    [--tokens N --repeats N]              of a prompt in the prefix cache
//     blocks    [--blocks N --reserved N --conversations N --seed N]    panels for draw_blocks.py
#include <cstdio>
#include <cstring>

#include "inside.h"

using namespace treadle::bench;

namespace {

struct Scenario {
    const char* name;
    Json (*run)(const Flags&);
};

constexpr Scenario scenarios[] = {
    {"step", run_step},   {"queue", run_queue},   {"intake", run_intake},
    {"heads", run_heads}, {"lookup", run_lookup}, {"blocks", run_blocks},
};

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) give_up("usage: serving_inside SCENARIO [flags]");
    for (const Scenario& scenario : scenarios) {
        if (std::strcmp(scenario.name, argv[1]) != 0) continue;
        std::printf("%s\n", scenario.run(Flags(argc, argv, 2)).text().c_str());
        return 0;
    }
    give_up(std::string("there is no scenario '") + argv[1] + "'");
}
