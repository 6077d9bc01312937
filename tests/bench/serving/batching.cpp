// Continuous batching against the classic fixed batch, on the same requests and the same engine: the fixed batch is the host's
// doing, who submits as many as there are slots and the next ones when all of those are done, so that slots which are done early
// sit idle.
#include <algorithm>
#include <cmath>

#include "workload.h"

namespace treadle::bench {
namespace {

struct Arrival {
    double at_s;
    Ask ask;
};

// All at once, or with --rate so many a second on average.
std::vector<Arrival> arrivals(const LoadedModel& model, const Flags& flags) {
    const double scale = flags.number("scale", 0.25), rate = flags.number("rate", 0);
    ChatLengths lengths;
    lengths.prompt_median *= scale;
    lengths.answer_mean *= scale;
    lengths.answer_max = static_cast<int32_t>(lengths.answer_max * scale);
    lengths.prompt_max = static_cast<int32_t>(lengths.prompt_max * scale);
    test::Random random(static_cast<uint64_t>(flags.integer("seed", 1)));
    std::vector<Arrival> all;
    double at_s = 0;
    for (int32_t i = 0; i < flags.integer("requests", 32); i++) {
        const Lengths drawn = lengths.draw(random);
        Ask ask;
        ask.prompt = random_prompt(random, drawn.prompt, model.vocabulary());
        ask.max_tokens = drawn.answer;
        if (rate > 0) at_s -= std::log(1 - random.uniform()) / rate;
        all.push_back({at_s, std::move(ask)});
    }
    return all;
}

// Waits for nobody: whoever has arrived is submitted when `fixed` lets them, until all have their answers.
struct Played {
    int64_t passes = 0;
    int64_t busy_slots = 0;  // summed over the passes
    double whole_s = 0;
};

Played play(Host& host, const std::vector<Arrival>& work, int32_t slots, bool fixed) {
    Played played;
    const double begin = now_s();
    size_t submitted = 0;
    while (submitted < work.size() || !host.live().empty()) {
        const bool batch_ended = host.live().empty();
        while (submitted < work.size() && begin + work[submitted].at_s <= now_s() &&
               (!fixed || (batch_ended && host.live().size() < static_cast<size_t>(slots)))) {
            const size_t answer = host.submit(work[submitted].ask);
            host.answer(answer).asked_s = begin + work[submitted].at_s;
            submitted++;
        }
        if (host.live().empty()) {
            sleep_until(begin + work[submitted].at_s);
            continue;
        }
        const auto before = static_cast<int64_t>(host.live().size());
        played.passes += host.step().passes;
        played.busy_slots += std::min<int64_t>(before, slots);
    }
    played.whole_s = now_s() - begin;
    return played;
}

engine_params params_for(const std::vector<Arrival>& work, int32_t slots) {
    engine_params params = default_params();
    params.max_sequences = slots;
    params.max_requests = static_cast<int32_t>(work.size());
    params.kv_blocks = 0;
    for (const Arrival& arrival : work)
        params.kv_blocks +=
            (static_cast<int32_t>(arrival.ask.prompt.size()) + arrival.ask.max_tokens) / block_tokens + 1;
    return params;
}

}  // namespace

Json run_batching(const LoadedModel& model, const Flags& flags) {
    const bool fixed = flags.has("static");
    const int32_t slots = flags.integer("slots", 8);
    const std::vector<Arrival> work = arrivals(model, flags);
    engine_params params = params_for(work, slots);
    params.itl_target_us = flags.integer("itl-target-us", 0);
    Host host(model.handle(), params);
    const Played played = play(host, work, slots, fixed);

    std::vector<double> first, gaps, done;
    double tokens = 0;
    uint64_t hash = empty_hash;
    for (const Answer& answer : host.answers()) {
        first.push_back(answer.first_token_s());
        done.push_back(answer.finished_s - answer.asked_s);
        add_gaps(answer.sequences[0], &gaps);
        tokens += static_cast<double>(answer.sequences[0].tokens.size());
        hash = hash_tokens(answer.sequences[0].tokens, hash);
    }
    Json json;
    json.add("requests", static_cast<uint64_t>(work.size()))
        .add("slots", slots)
        .add("passes", static_cast<double>(played.passes));
    json.add("new_tokens", tokens)
        .add("whole_s", played.whole_s)
        .add("tokens_per_s", tokens / played.whole_s);
    json.add("slots_busy_share",
             static_cast<double>(played.busy_slots) / static_cast<double>(played.passes * slots));
    json.percentiles("ttft", first).percentiles("itl", gaps).percentiles("done", done);
    json.hash("hash", hash);
    return json;
}

// Eight requests over four slots, for the picture: --trace FILE is what draw_timeline.py draws.
Json run_timeline(const LoadedModel& model, const Flags& flags) {
    constexpr int32_t slots = 4;
    constexpr int32_t answers[] = {10, 5, 30, 8, 12, 26, 6, 9};
    std::vector<Arrival> work;
    test::Random random(1);
    for (const int32_t answer : answers) {
        Ask ask;
        ask.prompt = random_prompt(random, 24, model.vocabulary());
        ask.max_tokens = answer;
        work.push_back({0, std::move(ask)});
    }
    engine_params params = params_for(work, slots);
    params.trace_events = 1 << 12;
    Host host(model.handle(), params);
    const Played played = play(host, work, slots, flags.has("static"));
    if (flags.has("trace")) host.write_trace(flags.text("trace", ""));
    Json json;
    json.add("passes", static_cast<double>(played.passes));
    return json.add("idle_share",
                    1 - static_cast<double>(played.busy_slots) / static_cast<double>(played.passes * slots));
}

}  // namespace treadle::bench
