// What running conversations notice of others: of a long prompt that arrives among them, and of a queue full of bulk work.
#include <algorithm>
#include <cmath>

#include "workload.h"

namespace treadle::bench {
namespace {

constexpr int32_t chat_prompt = 32;
constexpr int32_t chat_tokens_max = 2048;

// How the host steps: whole passes, or so much time of every frame.
struct Rhythm {
    int64_t budget_us;
    int32_t frame_us;

    explicit Rhythm(const Flags& flags)
        : budget_us(flags.integer("budget-us", 0)), frame_us(flags.integer("frame-us", 0)) {}
    void step(Host& host) {
        const double begin = now_s();
        host.step(budget_us);
        if (frame_us > 0) sleep_until(begin + frame_us * 1e-6);
    }
};

// Conversations that all generate, with room for a long prompt beside them.
class RunningChats {
public:
    RunningChats(const LoadedModel& model, const Flags& flags, int64_t itl_target_us)
        : sequences_(flags.integer("sequences", 8)), host_(model.handle(), params(flags, itl_target_us)) {
        for (int32_t i = 0; i < sequences_; i++) {
            Ask ask;
            ask.prompt = random_prompt(random_, chat_prompt, model.vocabulary());
            ask.max_tokens = chat_tokens_max;
            host_.submit(ask);
        }
    }

    Host& host() { return host_; }
    test::Random& random() { return random_; }
    void run_until_tokens(Rhythm& rhythm, size_t tokens) {
        while (std::any_of(host_.answers().begin(), host_.answers().begin() + sequences_,
                           [&](const Answer& answer) { return answer.sequences[0].tokens.size() < tokens; }))
            rhythm.step(host_);
    }
    std::vector<double> gaps(double from_s, double to_s) const {
        std::vector<double> gaps_s;
        for (int32_t i = 0; i < sequences_; i++)
            add_gaps(host_.answers()[static_cast<size_t>(i)].sequences[0], &gaps_s, from_s, to_s);
        return gaps_s;
    }

private:
    engine_params params(const Flags& flags, int64_t itl_target_us) const {
        engine_params params = default_params();
        params.itl_target_us = itl_target_us;
        params.max_sequences = sequences_ + 1;
        params.max_batch_tokens = flags.integer("batch-tokens", params.max_batch_tokens);
        params.kv_blocks = sequences_ * ((chat_prompt + chat_tokens_max) / block_tokens + 1) +
                           flags.integer("prompt", 8000) / block_tokens + 2;
        return params;
    }

    int32_t sequences_;
    test::Random random_{1};
    Host host_;
};

// Median time between tokens while nothing else happens.
double quiet_itl_s(const LoadedModel& model, const Flags& flags, Rhythm& rhythm, size_t tokens) {
    RunningChats chats(model, flags, 0);
    chats.run_until_tokens(rhythm, 4);
    const double begin = now_s();
    chats.run_until_tokens(rhythm, 4 + tokens);
    return percentile(chats.gaps(begin, now_s()), 0.5);
}

// What the engine has learned about its passes, and what it thinks the host gives of the time.
void add_cost(Json& json, const engine_stats& stats) {
    json.add("cost_pass_us", stats.cost_pass_us).add("cost_row_us", stats.cost_row_us);
    json.add("cost_token_us", stats.cost_token_us)
        .add("cost_token_context_us", stats.cost_token_context_us);
    json.add("cost_error", stats.cost_error).add("host_share", stats.host_share);
}

}  // namespace

// The undisturbed time between tokens is measured first, in an engine of its own; --target-times X asks for at most X times that.
Json run_long_prompt(const LoadedModel& model, const Flags& flags) {
    const int32_t prompt = flags.integer("prompt", 8000);
    const auto quiet_tokens = static_cast<size_t>(flags.integer("quiet", 32));
    Rhythm rhythm(flags);
    const double quiet_s = quiet_itl_s(model, flags, rhythm, quiet_tokens);
    const double target_s = flags.number("target-times", 0) * quiet_s;

    RunningChats chats(model, flags, static_cast<int64_t>(target_s * 1e6));
    chats.run_until_tokens(rhythm, 4 + quiet_tokens);
    const engine_stats before = chats.host().stats();
    Ask ask;
    ask.prompt = random_prompt(chats.random(), prompt, model.vocabulary());
    ask.max_tokens = 1;
    const size_t answer = chats.host().submit(ask);
    const double begin = now_s();
    while (!chats.host().answers()[answer].finished) rhythm.step(chats.host());
    const double end = now_s();
    const std::vector<double> gaps = chats.gaps(begin, end);
    const engine_stats after = chats.host().stats();
    Json json;
    json.add("prompt", prompt).add("quiet_itl_ms", quiet_s * 1e3).add("target_ms", target_s * 1e3);
    if (target_s > 0) json.add("p99_of_target", percentile(gaps, 0.99) / target_s);
    json.add("prompt_tokens_per_pass", prompt / static_cast<double>(after.passes - before.passes));
    add_cost(json, after);
    json.percentiles("itl", gaps).add("gaps", static_cast<uint64_t>(gaps.size()));
    json.add("ttft_s", chats.host().answers()[answer].first_token_s());
    json.add("prompt_tokens_per_s", prompt / chats.host().answers()[answer].first_token_s());
    return json;
}

// Interactive requests arrive at random; --bulk N requests of bulk work wait from the beginning.
Json run_bulk(const LoadedModel& model, const Flags& flags) {
    const int32_t requests = flags.integer("requests", 40), bulk = flags.integer("bulk", 0);
    const int32_t prompt = flags.integer("prompt", 48), new_tokens = flags.integer("new", 32);
    const double rate = flags.number("rate", 1);
    engine_params params = default_params();
    params.max_sequences = flags.integer("slots", 8);
    params.max_requests = requests + bulk;
    params.kv_blocks = (params.max_sequences * 2) * ((4 * (prompt + new_tokens)) / block_tokens + 1);
    Host host(model.handle(), params);
    test::Random random(static_cast<uint64_t>(flags.integer("seed", 1)));
    Ask ask;
    ask.priority = ENGINE_PRIORITY_BULK;
    ask.max_tokens = 4 * new_tokens;
    for (int32_t i = 0; i < bulk; i++) {
        ask.prompt = random_prompt(random, 4 * prompt, model.vocabulary());
        host.submit(ask);
    }
    test::Random arrivals(static_cast<uint64_t>(flags.integer("seed", 1)) +
                          1);  // the same with and without bulk
    ask.priority = ENGINE_PRIORITY_INTERACTIVE;
    ask.max_tokens = new_tokens;
    const double begin = now_s();
    double next_s = begin;
    int32_t submitted = 0;
    std::vector<size_t> interactive;
    int64_t interactive_left = requests;
    while (interactive_left > 0) {
        for (; submitted < requests && next_s <= now_s(); submitted++) {
            ask.prompt = random_prompt(arrivals, prompt, model.vocabulary());
            interactive.push_back(host.submit(ask));
            host.answer(interactive.back()).asked_s = next_s;
            next_s -= std::log(1 - arrivals.uniform()) / rate;
        }
        if (host.live().empty()) {
            sleep_until(next_s);
            continue;
        }
        host.step();
        interactive_left = requests - std::count_if(interactive.begin(), interactive.end(),
                                                    [&](size_t i) { return host.answers()[i].finished; });
    }
    const double whole_s = now_s() - begin;
    std::vector<double> gaps, first;
    for (const size_t i : interactive) {
        add_gaps(host.answers()[i].sequences[0], &gaps);
        first.push_back(host.answers()[i].first_token_s());
    }
    double bulk_tokens = 0, bulk_done = 0;
    for (int32_t i = 0; i < bulk; i++) {
        bulk_tokens += static_cast<double>(host.answers()[static_cast<size_t>(i)].sequences[0].tokens.size());
        bulk_done += host.answers()[static_cast<size_t>(i)].finished ? 1 : 0;
    }
    Json json;
    json.add("requests", requests).add("rate", rate).add("bulk", bulk).add("whole_s", whole_s);
    json.percentiles("itl", gaps).percentiles("ttft", first);
    json.add("interactive_tokens_per_s", requests * new_tokens / whole_s);
    json.add("bulk_tokens_per_s", bulk_tokens / whole_s).add("bulk_finished", bulk_done);
    json.add("preemptions", host.stats().preemptions);
    return json;
}

}  // namespace treadle::bench
