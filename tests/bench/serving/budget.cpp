// How well a step keeps to its budget of time, alone and with every core busy, and what short budgets cost in throughput.
//
// A step may end late for two reasons: the engine did not look at the clock in time, or the operating system gave the host's
// thread no core. The second is counted by the kernel itself (the thread's wait on the run queue), so both figures are printed:
// the whole overshoot, and the engine's own. Beside them stands the bare one: that of a loop which does nothing but look at the
// clock, in the same process under the same load. No engine can be better than that.
#include <algorithm>
#include <atomic>
#include <thread>

#include "run_queue.h"
#include "workload.h"

namespace treadle::bench {
namespace {

// Threads of normal priority that keep as many cores busy as there are.
class BusyMachine {
public:
    explicit BusyMachine(unsigned threads) {
        for (unsigned i = 0; i < threads; i++)
            threads_.emplace_back([this] {
                while (!stop_.load(std::memory_order_relaxed)) {
                }
            });
    }
    ~BusyMachine() {
        stop_ = true;
        for (std::thread& thread : threads_) thread.join();
    }
    BusyMachine(const BusyMachine&) = delete;
    BusyMachine& operator=(const BusyMachine&) = delete;

private:
    std::atomic<bool> stop_{false};
    std::vector<std::thread> threads_;
};

// So many sequences all the time: who is done is followed by another one.
class Chats {
public:
    Chats(const LoadedModel& model, int32_t sequences, int32_t prompt, int32_t new_tokens)
        : model_(model), sequences_(sequences), prompt_(prompt), new_tokens_(new_tokens),
          host_(model.handle(), params()) {
        refill();
    }

    Host& host() { return host_; }
    void refill() {
        while (host_.live().size() < static_cast<size_t>(sequences_)) {
            Ask ask;
            ask.prompt = random_prompt(random_, prompt_, model_.vocabulary());
            // Ends are spread, so that prompts come one by one as in a chat server.
            ask.max_tokens =
                new_tokens_ / 2 + static_cast<int32_t>(random_.below(static_cast<uint32_t>(new_tokens_)));
            host_.submit(ask);
        }
    }
    // Until every sequence makes tokens.
    void warm_up() {
        for (bool all = false; !all;) {
            host_.step();
            all = std::all_of(host_.live().begin(), host_.live().end(),
                              [this](size_t i) { return !host_.answers()[i].sequences[0].tokens.empty(); });
        }
    }

private:
    engine_params params() const {
        engine_params params = default_params();
        params.max_sequences = sequences_;
        params.max_requests = sequences_;
        params.kv_blocks = sequences_ * ((prompt_ + 2 * new_tokens_) / block_tokens + 1);
        return params;
    }

    const LoadedModel& model_;
    int32_t sequences_, prompt_, new_tokens_;
    test::Random random_{1};
    Host host_;
};

struct Overshoots {
    std::vector<double> whole_s, own_s;
    double worst_tile_us = 0;
    int64_t tokens = 0;
    double step_s = 0;
};

// frame_us: the host sleeps until its next frame begins; 0: it steps again at once.
Overshoots measure(Chats& chats, int64_t budget_us, int32_t steps, int32_t frame_us) {
    const RunQueueWait wait;
    Overshoots result;
    double frame_s = now_s();
    for (int32_t i = 0; i < steps; i++) {
        chats.refill();
        const double waited = wait.seconds();
        const engine_step_report report = chats.host().step(budget_us);
        const double stolen_s = wait.seconds() - waited;
        const double over_s = chats.host().step_s() - static_cast<double>(budget_us) * 1e-6;
        result.whole_s.push_back(std::max(over_s, 0.0));
        result.own_s.push_back(std::max(over_s - stolen_s, 0.0));
        result.worst_tile_us = std::max(result.worst_tile_us, static_cast<double>(report.worst_tile_us));
        result.tokens += report.tokens_produced;
        result.step_s += chats.host().step_s();
        if (frame_us > 0) {
            frame_s = std::max(frame_s + frame_us * 1e-6, now_s());
            sleep_until(frame_s);
        }
    }
    return result;
}

// The overshoots of a step that does nothing but look at the clock.
std::vector<double> measure_bare(int64_t budget_us, int32_t steps, int32_t frame_us) {
    std::vector<double> over_s;
    double frame_s = now_s();
    for (int32_t i = 0; i < steps; i++) {
        const double end_s = now_s() + static_cast<double>(budget_us) * 1e-6;
        double now = now_s();
        while (now < end_s) now = now_s();
        over_s.push_back(now - end_s);
        if (frame_us > 0) {
            frame_s = std::max(frame_s + frame_us * 1e-6, now);
            sleep_until(frame_s);
        }
    }
    return over_s;
}

}  // namespace

Json run_budget(const LoadedModel& model, const Flags& flags) {
    const int32_t sequences = flags.integer("sequences", 8), steps = flags.integer("steps", 10000);
    const int32_t budget_us = flags.integer("budget-us", 4000), frame_us = flags.integer("frame-us", 0);
    const unsigned busy = flags.has("busy") ? std::max(std::thread::hardware_concurrency(), 1u) : 0;
    Chats chats(model, sequences, flags.integer("prompt", 64), flags.integer("new", 256));
    chats.warm_up();
    const BusyMachine machine(busy);
    const Overshoots found = measure(chats, budget_us, steps, frame_us);
    const std::vector<double> bare_s = measure_bare(budget_us, steps / 4 + 1, frame_us);
    Json json;
    json.add("budget_us", budget_us)
        .add("steps", steps)
        .add("sequences", sequences)
        .add("frame_us", frame_us);
    json.add("busy_threads", static_cast<int32_t>(busy))
        .add("run_queue_known", RunQueueWait().known() ? 1 : 0);
    json.percentiles("overshoot", found.whole_s).percentiles("own_overshoot", found.own_s);
    json.percentiles("bare_overshoot", bare_s);
    json.add("worst_tile_us", found.worst_tile_us);
    json.add("tokens_per_s", static_cast<double>(found.tokens) / found.step_s);
    return json;
}

// Steps with a budget and whole passes take turns on the same sequences, so that both meet the same lengths and the same machine.
Json run_throughput(const LoadedModel& model, const Flags& flags) {
    const int32_t sequences = flags.integer("sequences", 8), budget_us = flags.integer("budget-us", 4000);
    const int32_t turns = flags.integer("turns", 20);
    const double turn_s = flags.number("turn-s", 0.5);
    Chats chats(model, sequences, flags.integer("prompt", 64), flags.integer("new", 256));
    chats.warm_up();
    double seconds[2] = {}, tokens[2] = {};
    for (int32_t turn = 0; turn < 2 * turns; turn++) {
        const int which = turn % 2;
        bool ended = false;  // a turn ends with a pass, so that no token is counted on the wrong side
        for (const double begin = now_s(); !ended;) {
            chats.refill();
            const double step_begin = now_s();
            const engine_step_report report = chats.host().step(which == 0 ? budget_us : 0);
            seconds[which] += now_s() - step_begin;
            tokens[which] += report.tokens_produced;
            ended = report.passes > 0 && now_s() - begin >= turn_s;
        }
    }
    const double with = tokens[0] / seconds[0], without = tokens[1] / seconds[1];
    Json json;
    json.add("budget_us", budget_us).add("sequences", sequences);
    json.add("budget_tokens_per_s", with)
        .add("unbudgeted_tokens_per_s", without)
        .add("kept_share", with / without);
    return json;
}

}  // namespace treadle::bench
