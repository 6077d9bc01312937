// The serving benches: scenarios that run through engine.h alone, as a host would, each printing one line of JSON. serving.py
// calls them, repeats them, makes tables and pictures of them; 'make bench' calls that.
//
//     serving_bench MODEL.gguf|--tiny SCENARIO [--threads N] [flags]
//
//     waste        [--requests N --running N --seed N]       empty positions of held blocks, on lengths as in chat logs
//     samples      [--samples N --prompt N --new N]          blocks that n samples of one prompt hold, against copies
//     batching     [--static --requests N --slots N --scale X --rate X --itl-target-us N]
//                                                            continuous batching, or the classic fixed batch
//     timeline     [--static --trace FILE]                   eight unequal requests over four slots, for the picture
//     long_prompt  [--prompt N --sequences N --target-times X --batch-tokens N --budget-us N --frame-us N]
//                                                            a long prompt among running chats; the target for the time
//                                                            between their tokens is X times the undisturbed one (0: none)
//     bulk         [--requests N --rate X --bulk N --slots N]   interactive requests, with bulk work behind them or without;
//                                                            --requests 0 --seconds X: bulk work alone
//     budget       [--budget-us N --steps N --sequences N --busy --frame-us N]   how late steps end
//     throughput   [--budget-us N --turns N --turn-s X]      tokens per second with a budget and without
//     pressure     [--conversations N --fits N --running N --scale N]   far more conversations than the pool holds
//     sequential   [--requests N]                            one request after another
#include <cstdio>
#include <cstring>

#include "workload.h"

using namespace treadle::bench;

namespace {

struct Scenario {
    const char* name;
    Json (*run)(const LoadedModel&, const Flags&);
};

constexpr Scenario scenarios[] = {
    {"waste", run_waste},       {"samples", run_samples},         {"batching", run_batching},
    {"bulk", run_bulk},         {"long_prompt", run_long_prompt}, {"budget", run_budget},
    {"pressure", run_pressure}, {"throughput", run_throughput},   {"sequential", run_sequential},
    {"timeline", run_timeline},
};

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) give_up("usage: serving_bench MODEL.gguf|--tiny SCENARIO [--threads N] [flags]");
    const Flags flags(argc, argv, 3);
    for (const Scenario& scenario : scenarios) {
        if (std::strcmp(scenario.name, argv[2]) != 0) continue;
        const LoadedModel model(argv[1], flags.integer("threads", 0));
        std::printf("%s\n", scenario.run(model, flags).text().c_str());
        return 0;
    }
    give_up(std::string("there is no scenario '") + argv[2] + "'");
}
