// What running conversations notice of others: of a long prompt that arrives among them, and of a queue full of bulk work.
#include <algorithm>
#include <cmath>

#include "workload.h"

namespace treadle::bench {
namespace {

constexpr int32_t chat_prompt = 256;
constexpr int32_t chat_tokens = 192, chat_tokens_apart = 16;
constexpr int32_t prompt_tile = 8;  // tokens of a prompt that the engine adds to a pass at least

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

// Conversations that all generate, with room for a long prompt beside them. Who is done asks the same again, which costs a token
// of the prompt as the rest is cached: so the contexts stay as long as they are, however long the other prompt takes.
class RunningChats {
public:
    RunningChats(const LoadedModel& model, const Flags& flags, int64_t itl_target_us)
        : host_(model.handle(), params(flags, itl_target_us)) {
        for (int32_t i = 0; i < flags.integer("sequences", 8); i++) {
            Ask ask;
            ask.prompt = random_prompt(random_, chat_prompt, model.vocabulary());
            ask.max_tokens = chat_tokens + i * chat_tokens_apart;
            asks_.push_back(ask);
            answers_.push_back(host_.submit(ask));
        }
        newest_ = answers_;
    }

    Host& host() { return host_; }
    test::Random& random() { return random_; }
    void step(Rhythm& rhythm) {
        rhythm.step(host_);
        for (size_t i = 0; i < newest_.size(); i++) {
            if (!host_.answers()[newest_[i]].finished) continue;
            newest_[i] = host_.submit(asks_[i]);
            answers_.push_back(newest_[i]);
        }
    }
    // So many of each conversation, counted from now on; returns their median distance.
    double run(Rhythm& rhythm, size_t tokens) {
        const double begin = now_s();
        const size_t most = tokens * asks_.size();
        while (gaps(begin, now_s()).size() < most) step(rhythm);
        return percentile(gaps(begin, now_s()), 0.5);
    }
    std::vector<double> gaps(double from_s, double to_s) const {
        std::vector<double> gaps_s;
        for (const size_t answer : answers_)
            add_gaps(host_.answers()[answer].sequences[0], &gaps_s, from_s, to_s);
        return gaps_s;
    }

private:
    engine_params params(const Flags& flags, int64_t itl_target_us) const {
        const int32_t sequences = flags.integer("sequences", 8), prompt = flags.integer("prompt", 8000);
        engine_params params = default_params();
        params.itl_target_us = itl_target_us;
        params.max_sequences = sequences + 1;
        params.max_batch_tokens = flags.integer("batch-tokens", params.max_batch_tokens);
        params.kv_blocks =
            sequences * ((chat_prompt + chat_tokens + sequences * chat_tokens_apart) / block_tokens + 1) +
            prompt / block_tokens + 2;
        params.watermark_blocks = 0;
        return params;
    }

    test::Random random_{1};
    Host host_;
    std::vector<Ask> asks_;
    std::vector<size_t> answers_, newest_;
};

// What the engine has learned about its passes, and what it thinks the host gives of the time.
void add_cost(Json& json, const engine_stats& stats) {
    json.add("cost_pass_us", stats.cost_pass_us).add("cost_row_us", stats.cost_row_us);
    json.add("cost_token_us", stats.cost_token_us).add("cost_token_context_us", stats.cost_token_context_us);
    json.add("cost_error", stats.cost_error).add("host_share", stats.host_share);
}

// A pass of all conversations and a tile of the prompt at that position, by what the engine has learned.
double tile_cost_s(const engine_stats& stats, int32_t sequences, int32_t position) {
    const double pairs = sequences * (chat_prompt + chat_tokens / 2.0) + double{prompt_tile} * position;
    return 1e-6 * (stats.cost_pass_us + sequences * stats.cost_row_us + prompt_tile * stats.cost_token_us +
                   pairs * stats.cost_token_context_us);
}

}  // namespace

// The undisturbed time between tokens is measured first, in an engine of its own; --target-times X asks for at most X times that.
Json run_long_prompt(const LoadedModel& model, const Flags& flags) {
    const int32_t prompt = flags.integer("prompt", 8000), sequences = flags.integer("sequences", 8);
    const auto quiet_tokens = static_cast<size_t>(flags.integer("quiet", 32));
    Rhythm rhythm(flags);
    double quiet_s = 0;
    {
        RunningChats chats(model, flags, 0);
        chats.run(rhythm, quiet_tokens);  // the prompts are over then
        quiet_s = chats.run(rhythm, quiet_tokens);
    }
    const double target_s = flags.number("target-times", 0) * quiet_s;

    RunningChats chats(model, flags, static_cast<int64_t>(target_s * 1e6));
    chats.run(rhythm, 2 * quiet_tokens);
    Ask ask;
    ask.prompt = random_prompt(chats.random(), prompt, model.vocabulary());
    ask.max_tokens = 1;
    const engine_stats before = chats.host().stats();
    const size_t answer = chats.host().submit(ask);
    const double begin = now_s();
    while (!chats.host().answers()[answer].finished) chats.step(rhythm);
    const std::vector<double> gaps = chats.gaps(begin, now_s());
    const engine_stats after = chats.host().stats();
    const double quiet_after_s = chats.run(rhythm, quiet_tokens);

    Json json;
    json.add("prompt", prompt).add("quiet_itl_ms", quiet_s * 1e3).add("quiet_after_ms", quiet_after_s * 1e3);
    json.percentiles("itl", gaps).add("gaps", static_cast<uint64_t>(gaps.size()));
    json.add("ttft_s", chats.host().answers()[answer].first_token_s());
    json.add("tokens_per_pass", prompt / static_cast<double>(after.passes - before.passes));
    if (target_s > 0) {
        const double tile_s = tile_cost_s(after, sequences, prompt) / after.host_share;
        json.add("target_ms", target_s * 1e3).add("p99_of_target", percentile(gaps, 0.99) / target_s);
        json.add("tile_fits", (tile_s <= target_s ? 1 : 0)).add("tile_ms", tile_s * 1e3);
    }
    add_cost(json, after);
    return json;
}

// Interactive requests arrive at random; --bulk N requests of bulk work wait from the beginning. With --requests 0 it is bulk
// alone, for --seconds.
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
    const double until_s = requests == 0 ? begin + flags.number("seconds", 5) : 0;
    double computed = 0, step_s = 0;
    while (interactive_left > 0 || now_s() < until_s) {
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
        computed += host.step().tokens_computed;
        step_s += host.step_s();
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
    json.add("busy_share", step_s / whole_s);  // of the time there was a pass
    // Prompts' tokens among them; the last token of an answer is never computed.
    json.add("bulk_computed_per_s", (computed - requests * (prompt + new_tokens - 1.0)) / whole_s);
    json.add("bulk_tokens_per_s", bulk_tokens / whole_s).add("bulk_finished", bulk_done);
    json.add("preemptions", host.stats().preemptions);
    return json;
}

}  // namespace treadle::bench
