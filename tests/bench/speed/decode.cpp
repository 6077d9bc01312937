// Prompts and generation, alone and together.
#include <algorithm>
#include <numeric>

#include "speed.h"

namespace treadle::bench {
namespace {

constexpr size_t opening_tokens = 8;
constexpr size_t cold_bytes = size_t{128} << 20;  // more than a processor's caches

Ask ask_for(const LoadedModel& model, int32_t request, int32_t prompt, int32_t new_tokens) {
    Ask ask;
    ask.prompt = shared_prompt(prompt, request, model.vocabulary());
    ask.max_tokens = new_tokens;
    return ask;
}

// Of the answers from `first` on: seconds from the first submission to the last token, and the part of them in which every
// request makes a token in every pass, with the tokens made in that part.
Json figures_of(const std::vector<Answer>& answers, size_t first, double begin_s) {
    double full_begin_s = begin_s, full_end_s = 1e300, end_s = begin_s;
    uint64_t hash = empty_hash;
    for (size_t i = first; i < answers.size(); i++) {
        const Answer::Sequence& sequence = answers[i].sequences[0];
        full_begin_s = std::max(full_begin_s, sequence.times_s.front());
        full_end_s = std::min(full_end_s, sequence.times_s.back());
        end_s = std::max(end_s, sequence.times_s.back());
        hash = hash_tokens(sequence.tokens, hash);
    }
    int32_t full_tokens = 0;
    for (size_t i = first; i < answers.size(); i++)
        for (const double time_s : answers[i].sequences[0].times_s)
            full_tokens += time_s > full_begin_s && time_s <= full_end_s;
    std::vector<int32_t> opening = answers[first].sequences[0].tokens;
    opening.resize(std::min(opening.size(), opening_tokens));
    Json json;
    json.add("whole_s", end_s - begin_s).add("full_s", full_tokens > 0 ? full_end_s - full_begin_s : 0.0);
    json.add("full_tokens", full_tokens).hash("hash", hash).hash("opening", hash_tokens(opening));
    return json;
}

}  // namespace

std::vector<int32_t> shared_prompt(int32_t tokens, int32_t request, int32_t vocabulary) {
    std::vector<int32_t> prompt(static_cast<size_t>(tokens));
    for (int32_t place = 0; place < tokens; place++)
        prompt[static_cast<size_t>(place)] =
            static_cast<int32_t>(3 + (place * int64_t{7919} + request * int64_t{104729}) % (vocabulary - 3));
    return prompt;
}

engine_params room_for(int32_t sequences, int32_t tokens) {
    engine_params params = default_params();
    params.max_sequences = sequences;
    params.max_requests = sequences;
    params.max_batch_tokens = batch_tokens_max;
    params.context_length = tokens;
    params.kv_blocks = sequences * ((tokens + block_tokens - 1) / block_tokens);
    return params;
}

Json run_decode(const LoadedModel& model, int32_t sequences, int32_t prompt, int32_t new_tokens) {
    std::vector<Ask> asks;
    for (int32_t i = 0; i < sequences; i++) asks.push_back(ask_for(model, i, prompt, new_tokens));
    Host host(model.handle(), room_for(sequences, prompt + new_tokens));
    const double begin_s = now_s();
    for (const Ask& ask : asks) host.submit(ask);
    host.finish_all();
    return figures_of(host.answers(), 0, begin_s);
}

// With blocks to spare, so that what one turn generated needn't be evicted for the next.
engine_params KeptContexts::params() const {
    engine_params params = room_for(sequences_, prompt_ + new_tokens_);
    params.kv_blocks += sequences_ * (new_tokens_ / block_tokens + 4);
    params.key_type = options_.key_type;
    params.value_type = options_.value_type;
    if (options_.phases) params.trace_events = 16 * new_tokens_;
    return params;
}

KeptContexts::KeptContexts(const LoadedModel& model, int32_t sequences, int32_t prompt, int32_t new_tokens,
                           const KeptOptions& options)
    : model_(model), sequences_(sequences), prompt_(prompt), new_tokens_(new_tokens), options_(options),
      cold_(options.cold ? cold_bytes : 0), host_(model.handle(), params()) {}

void KeptContexts::empty_caches() {
    constexpr size_t line_bytes = 64;
    for (size_t i = 0; i < cold_.size(); i += line_bytes) cold_[i]++;
}

double KeptContexts::token_bytes() const {
    return static_cast<double>(host_.about().kv_block_bytes) / block_tokens;
}

Json KeptContexts::fill() {
    if (filled_ == sequences_) give_up("all contexts are filled");
    const Ask ask = ask_for(model_, filled_++, prompt_, 1);
    const size_t first = host_.answers().size();
    const double begin_s = now_s();
    host_.submit(ask);
    host_.finish_all();
    return figures_of(host_.answers(), first, begin_s);
}

Json KeptContexts::generate(int32_t sequences, int32_t prompt) {
    if (sequences > sequences_ || filled_ == 0 || prompt > prompt_) give_up("that wasn't filled");
    std::vector<Ask> asks;
    for (int32_t i = 0; i < sequences; i++) asks.push_back(ask_for(model_, i % filled_, prompt, new_tokens_));
    const size_t first = host_.answers().size();
    for (const Ask& ask : asks) host_.submit(ask);
    std::vector<double> passes_s;
    bool all_began = false;  // the first pass of all computes the ends of prompts
    while (!host_.live().empty()) {
        if (!cold_.empty()) empty_caches();
        const double begin_s = now_s();
        const bool all = host_.step().tokens_produced == sequences;
        if (all && all_began) passes_s.push_back(now_s() - begin_s);
        all_began = all_began || all;
    }
    uint64_t hash = empty_hash;
    for (size_t i = first; i < host_.answers().size(); i++) {
        if (host_.answers()[i].cached_tokens < prompt - block_tokens) give_up("a context was not kept");
        hash = hash_tokens(host_.answers()[i].sequences[0].tokens, hash);
    }
    Json json;
    json.add("full_s", std::accumulate(passes_s.begin(), passes_s.end(), 0.0));
    json.add("full_tokens", static_cast<double>(passes_s.size()) * sequences);
    json.add("pass_s", percentile(passes_s, 0.5)).hash("hash", hash);
    if (options_.phases) {
        std::string trace = host_.trace();
        std::replace(trace.begin(), trace.end(), '\n', ' ');  // an answer is a line
        json.raw("trace", trace);
    }
    return json;
}

}  // namespace treadle::bench
