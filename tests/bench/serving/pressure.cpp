// Far more conversations than the KV cache holds: all must finish, with the tokens that each gets alone, and what was computed
// twice is counted. And many requests one after another, which must leave the pool as they found it.
#include <algorithm>

#include "workload.h"

namespace treadle::bench {
namespace {

// Two turns; the second one's prompt is all of the first and what the user adds.
struct Conversation {
    Ask first;
    std::vector<int32_t> more;
    int32_t second_tokens;
    int32_t length() const {
        return static_cast<int32_t>(first.prompt.size() + more.size()) + first.max_tokens + second_tokens;
    }
};

std::vector<Conversation> conversations(const LoadedModel& model, const Flags& flags) {
    const auto scale = static_cast<uint32_t>(flags.integer("scale", 4));
    test::Random random(static_cast<uint64_t>(flags.integer("seed", 1)));
    std::vector<Conversation> all(static_cast<size_t>(flags.integer("conversations", 200)));
    for (Conversation& one : all) {
        one.first.prompt =
            random_prompt(random, static_cast<int32_t>(scale * (8 + random.below(16))), model.vocabulary());
        one.first.max_tokens = static_cast<int32_t>(scale * (4 + random.below(8)));
        one.more =
            random_prompt(random, static_cast<int32_t>(scale * (2 + random.below(6))), model.vocabulary());
        one.second_tokens = static_cast<int32_t>(scale * (4 + random.below(8)));
        one.first.keep = true;
        one.first.seed = random.next();
        one.first.temperature = random.below(2) == 0 ? 0.0f : 0.8f;
    }
    return all;
}

Ask second_turn(const Conversation& conversation, std::vector<int32_t> tokens) {
    Ask ask = conversation.first;
    ask.prompt = std::move(tokens);
    ask.prompt.insert(ask.prompt.end(), conversation.more.begin(), conversation.more.end());
    ask.max_tokens = conversation.second_tokens;
    ask.keep = false;
    return ask;
}

// Each conversation by itself in an engine with room for it: what its tokens must be.
std::vector<uint64_t> hashes_alone(const LoadedModel& model, const std::vector<Conversation>& all,
                                   int32_t blocks) {
    engine_params params = default_params();
    params.kv_blocks = blocks;
    params.prefix_cache = 0;
    Host host(model.handle(), params);
    std::vector<uint64_t> hashes;
    for (const Conversation& one : all) {
        const size_t first = host.submit(one.first);
        host.finish_all();
        const size_t second = host.submit(second_turn(one, host.sequence_tokens(first, 0)));
        host.finish_all();
        host.release(first);
        hashes.push_back(hash_tokens(host.answers()[second].sequences[0].tokens,
                                     hash_tokens(host.answers()[first].sequences[0].tokens)));
    }
    return hashes;
}

struct Outcome {
    std::vector<uint64_t> hashes;
    int32_t refused = 0;
    double useful_tokens = 0, whole_s = 0;
    engine_stats stats;
};

// Everybody at once; a second turn is asked for as soon as the first has ended.
Outcome run_crowd(const LoadedModel& model, const std::vector<Conversation>& all,
                  const engine_params& params) {
    Host host(model.handle(), params);
    Outcome outcome;
    outcome.hashes.resize(all.size(), empty_hash);
    std::vector<size_t> conversation_of;  // of each answer
    std::vector<bool> is_second;
    const double begin = now_s();
    for (size_t i = 0; i < all.size(); i++) {
        if (!host.try_submit(all[i].first)) {
            outcome.refused++;
            continue;
        }
        conversation_of.push_back(i);
        is_second.push_back(false);
    }
    while (!host.live().empty()) {
        const std::vector<size_t> before = host.live();
        host.step();
        for (const size_t answer : before) {
            if (!host.answers()[answer].finished) continue;
            const size_t i = conversation_of[answer];
            const std::vector<int32_t>& tokens = host.answers()[answer].sequences[0].tokens;
            outcome.hashes[i] = hash_tokens(tokens, outcome.hashes[i]);
            outcome.useful_tokens += static_cast<double>(tokens.size());
            if (is_second[answer]) continue;
            outcome.useful_tokens += static_cast<double>(all[i].first.prompt.size() + all[i].more.size());
            const Ask ask = second_turn(all[i], host.sequence_tokens(answer, 0));
            host.release(answer);
            if (!host.try_submit(ask)) {
                outcome.refused++;
                continue;
            }
            conversation_of.push_back(i);
            is_second.push_back(true);
        }
    }
    outcome.whole_s = now_s() - begin;
    outcome.stats = host.stats();
    return outcome;
}

}  // namespace

Json run_pressure(const LoadedModel& model, const Flags& flags) {
    const int32_t fits = flags.integer("fits", 10);
    const std::vector<Conversation> all = conversations(model, flags);
    double tokens = 0;
    int32_t longest = 0;
    for (const Conversation& one : all) {
        tokens += one.length();
        longest = std::max(longest, one.length());
    }
    engine_params params = default_params();
    params.max_sequences = flags.integer("running", 4 * fits);
    params.max_requests = 2 * static_cast<int32_t>(all.size());
    params.kv_blocks =
        static_cast<int32_t>(fits * tokens / static_cast<double>(all.size() * block_tokens)) + 1;
    const Outcome crowd = run_crowd(model, all, params);
    const std::vector<uint64_t> alone = hashes_alone(model, all, longest / block_tokens + 1);
    int32_t different = 0;
    for (size_t i = 0; i < all.size(); i++) different += crowd.hashes[i] != alone[i] ? 1 : 0;

    const engine_stats& stats = crowd.stats;
    Json json;
    json.add("conversations", static_cast<uint64_t>(all.size()))
        .add("pool_holds", fits)
        .add("kv_blocks", params.kv_blocks);
    json.add("finished", stats.requests_finished)
        .add("refused", crowd.refused)
        .add("different_from_alone", different);
    json.add("preemptions", stats.preemptions).add("recomputed_tokens", stats.recomputed_tokens);
    json.add("useful_tokens", crowd.useful_tokens);
    json.add("recomputed_share", static_cast<double>(stats.recomputed_tokens) / crowd.useful_tokens);
    json.add("cached_tokens", stats.cached_tokens);
    json.add("whole_s", crowd.whole_s).add("held_at_end", stats.kv_blocks_held);
    return json;
}

Json run_sequential(const LoadedModel& model, const Flags& flags) {
    const int32_t requests = flags.integer("requests", 1000);
    engine_params params = default_params();
    params.kv_blocks = 64;
    Host host(model.handle(), params);
    test::Random random(1);
    const engine_stats before = host.stats();
    int32_t held_most = 0;  // between two requests
    for (int32_t i = 0; i < requests; i++) {
        Ask ask;
        ask.prompt = random_prompt(random, 4 + static_cast<int32_t>(random.below(40)), model.vocabulary());
        ask.max_tokens = 1 + static_cast<int32_t>(random.below(12));
        host.submit(ask);
        host.finish_all();
        held_most = std::max(held_most, host.stats().kv_blocks_held);
    }
    const engine_stats after = host.stats();
    Json json;
    json.add("requests", requests).add("finished", after.requests_finished);
    json.add("available_before", before.kv_blocks_free + before.kv_blocks_cached);
    json.add("available_after", after.kv_blocks_free + after.kv_blocks_cached)
        .add("held_between_most", held_most);
    return json;
}

}  // namespace treadle::bench
