// How much of the KV cache that sequences hold is empty, and what a cache of contiguous pieces would hold for the same work.
//
//     held by a sequence    │■■■■■■■■■■■■■■■■│■■■■■■■■■■■■■■■■│■■■■■□□□□□□□□□□□│     ■ position in use   □ empty
//     contiguous, the same  │■■■■■■■■■■■■■■■■ ■■■■■■■■■■■■■■■■ ■■■■■□□□□□□□□□□□ □□□□□□□□□□□□□□□□ □□□□ … up to the most it may get
#include <algorithm>

#include "workload.h"

namespace treadle::bench {
namespace {

// Positions whose keys and values lie in the cache: all but the newest token, which the next pass computes. What samples share
// counts once.
int64_t positions_in_use(Host& host, size_t answer) {
    const engine_request_info info = host.info(answer);
    if (info.state == ENGINE_REQUEST_WAITING || info.state == ENGINE_REQUEST_FINISHED) return 0;
    int64_t positions = info.prompt_tokens_done;
    for (const Answer::Sequence& sequence : host.answers()[answer].sequences)
        if (!sequence.finished)
            positions += std::max<int64_t>(static_cast<int64_t>(sequence.tokens.size()) - 1, 0);
    return positions;
}

struct Sums {  // over all passes
    double held = 0, in_use = 0, to_its_most = 0, whole_context = 0;
};

struct Peak {
    int32_t held = 0;
    uint64_t copied = 0;
    double cached = 0;
};

Peak peak_of(const LoadedModel& model, const std::vector<Ask>& asks, int32_t blocks) {
    engine_params params = default_params();
    params.max_sequences = 16;
    params.kv_blocks = blocks;
    Host host(model.handle(), params);
    for (const Ask& ask : asks) host.submit(ask);
    Peak peak;
    while (!host.live().empty()) {
        host.step();
        peak.held = std::max(peak.held, host.stats().kv_blocks_held);
    }
    peak.copied = host.stats().copied_blocks;
    return peak;
}

}  // namespace

Json run_waste(const LoadedModel& model, const Flags& flags) {
    const int32_t requests = flags.integer("requests", 300), running = flags.integer("running", 32);
    ChatLengths lengths;
    lengths.answer_max = std::min(lengths.answer_max, model.context() / 2);
    lengths.prompt_max = std::min(lengths.prompt_max, model.context() - lengths.answer_max);
    const int32_t longest = lengths.prompt_max + lengths.answer_max;
    engine_params params = default_params();
    params.max_sequences = running;
    params.max_requests = requests;
    params.kv_blocks = running * ((longest + block_tokens - 1) / block_tokens);  // nobody is preempted
    params.context_length = longest;
    Host host(model.handle(), params);

    test::Random random(static_cast<uint64_t>(flags.integer("seed", 1)));
    std::vector<double> prompts, answers;
    for (int32_t i = 0; i < requests; i++) {
        const Lengths drawn = lengths.draw(random);
        prompts.push_back(drawn.prompt);
        answers.push_back(drawn.answer);
        Ask ask;
        ask.prompt = random_prompt(random, drawn.prompt, model.vocabulary());
        ask.max_tokens = drawn.answer;
        host.submit(ask);
    }
    Sums sums;
    double peak = 0;
    while (!host.live().empty()) {
        host.step();
        for (const size_t answer : host.live()) {
            const auto positions = static_cast<double>(positions_in_use(host, answer));
            if (positions == 0) continue;
            sums.in_use += positions;
            sums.to_its_most += host.answers()[answer].prompt_tokens + lengths.answer_max;
            sums.whole_context += longest;
        }
        const double held = host.stats().kv_blocks_held * double{block_tokens};
        sums.held += held;
        peak = std::max(peak, held);
    }
    const engine_stats stats = host.stats();
    Json json;
    json.add("requests", requests).add("running_most", running).add("context", longest);
    json.add("prompt_median", percentile(prompts, 0.5)).add("answer_median", percentile(answers, 0.5));
    json.add("passes", stats.passes).add("preemptions", stats.preemptions);
    json.add("empty_share", 1 - sums.in_use / sums.held).add("peak_held_tokens", peak);
    json.add("contiguous_to_most_empty_share", 1 - sums.in_use / sums.to_its_most);
    json.add("contiguous_context_empty_share", 1 - sums.in_use / sums.whole_context);
    json.add("contiguous_to_most_times", sums.to_its_most / sums.held);
    json.add("contiguous_context_times", sums.whole_context / sums.held);
    return json;
}

// n samples of one prompt share its blocks; copies would each hold all of it.
Json run_samples(const LoadedModel& model, const Flags& flags) {
    const int32_t samples = flags.integer("samples", 8), prompt = flags.integer("prompt", 512);
    const int32_t new_tokens = flags.integer("new", 128);
    const int32_t blocks = samples * ((prompt + new_tokens) / block_tokens + 1);
    test::Random random(1);
    Ask ask;
    ask.prompt = random_prompt(random, prompt, model.vocabulary());
    ask.max_tokens = new_tokens;
    ask.temperature = 1;
    std::vector<Ask> copies(static_cast<size_t>(samples), ask);
    for (Ask& copy : copies) copy.prefix_cache = false;
    ask.samples = samples;
    const Peak shared = peak_of(model, {ask}, blocks), apart = peak_of(model, copies, blocks);
    Json json;
    json.add("samples", samples).add("prompt", prompt).add("new", new_tokens);
    json.add("peak_held_blocks", shared.held).add("copies_held_blocks", apart.held);
    json.add("copied_blocks", shared.copied);
    json.add("fewer_share", 1 - static_cast<double>(shared.held) / apart.held);
    return json;
}

}  // namespace treadle::bench
