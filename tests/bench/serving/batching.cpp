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

}  // namespace

Json run_batching(const LoadedModel& model, const Flags& flags) {
    const bool fixed = flags.has("static");
    const int32_t slots = flags.integer("slots", 8);
    const std::vector<Arrival> work = arrivals(model, flags);
    engine_params params = default_params();
    params.max_sequences = slots;
    params.max_requests = static_cast<int32_t>(work.size());
    params.kv_blocks = 0;
    for (const Arrival& arrival : work)
        params.kv_blocks +=
            (static_cast<int32_t>(arrival.ask.prompt.size()) + arrival.ask.max_tokens) / block_tokens + 1;
    Host host(model.handle(), params);

    const double begin = now_s();
    size_t submitted = 0;
    int64_t passes = 0, sequences = 0;
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
        passes += host.step().passes;
        sequences += std::min<int64_t>(before, slots);
    }
    const double whole_s = now_s() - begin;

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
        .add("passes", static_cast<double>(passes));
    json.add("new_tokens", tokens).add("whole_s", whole_s).add("tokens_per_s", tokens / whole_s);
    json.add("slots_busy_share", static_cast<double>(sequences) / static_cast<double>(passes * slots));
    json.percentiles("ttft", first).percentiles("itl", gaps).percentiles("done", done);
    json.hash("hash", hash);
    return json;
}

}  // namespace treadle::bench
