// The rules of who is taken in, and how long an answer may get: those of submit, fork and pin, told once more.
#include <algorithm>

#include "simulator.h"

namespace treadle::test {
namespace {

constexpr int32_t block = limits::kv_block_tokens;

int32_t whole_blocks_in_common(std::span<const int32_t> a, std::span<const int32_t> b) {
    int32_t tokens = 0;
    while (static_cast<size_t>(tokens) < std::min(a.size(), b.size()) &&
           a[static_cast<size_t>(tokens)] == b[static_cast<size_t>(tokens)])
        tokens++;
    return tokens / block;
}

// What hypotheses of so many tokens may hold: the whole blocks of the prompt, and beyond them each its own and one to copy to.
int32_t blocks_of_search(int32_t width, int32_t prompt, int32_t tokens) {
    return prompt / block + width * ((tokens - 1 + block - 1) / block - prompt / block + 1);
}

}  // namespace

CacheScope World::scope_of(const Submission& asked) const {
    CacheScope scope = asked.scope;
    scope.is_private |= !driver_->params().prefix_cache;
    if (scope.is_private) scope.salt = uint64_t{1} << 40 | next_number_;  // one of its own
    return scope;
}

// Blocks that pins fill together, with one more if there is one: whole blocks that they begin with in common are one.
int32_t World::pinned_blocks(const Submission* more, const CacheScope& scope, bool whole_ones_only) const {
    std::vector<std::pair<const std::vector<int32_t>*, const CacheScope*>> pins;
    for (const auto& [number, live] : lives_)
        if (live.is_pin() && !live.released && !live.over() && (live.is_whole_pin() || !whole_ones_only))
            pins.emplace_back(&live.asked.prompt, &live.scope);
    if (more != nullptr) pins.emplace_back(&more->prompt, &scope);
    int32_t blocks = 0;
    for (size_t i = 0; i < pins.size(); i++) {
        int32_t shared = 0;
        for (size_t k = 0; k < i; k++)
            if (*pins[k].second == *pins[i].second)
                shared = std::max(shared, whole_blocks_in_common(*pins[k].first, *pins[i].first));
        blocks += blocks_of(static_cast<int32_t>(pins[i].first->size())) - shared;
    }
    return blocks;
}

int32_t World::shared_with_pins(std::span<const int32_t> tokens, const CacheScope& scope) const {
    int32_t most = 0;
    for (const auto& [number, live] : lives_)
        if (live.is_pin() && !live.released && !live.over() && live.scope == scope)
            most = std::max(most, whole_blocks_in_common(live.asked.prompt, tokens));
    return most;
}

World::Fit World::fit(const Submission& asked, const CacheScope& scope) const {
    const auto prompt = static_cast<int32_t>(asked.prompt.size());
    return fit(asked, scope, asked.max_tokens < 0 ? INT32_MAX : prompt + asked.max_tokens);
}

World::Fit World::fit(const Submission& asked, const CacheScope& scope, int32_t wanted) const {
    const EngineParams& params = driver_->params();
    const auto prompt = static_cast<int32_t>(asked.prompt.size());
    if (prompt >= params.context_length) return {.status = Status::PROMPT_TOO_LONG};
    if (prompt >= params.kv_blocks * block) return {.status = Status::POOL_TOO_SMALL};
    Fit fit{.limit = std::min({params.context_length, params.kv_blocks * block, wanted}), .wanted = wanted};
    const bool as_many_as_fit = wanted == INT32_MAX;
    if (asked.beam_width > params.max_sequences) return {.status = Status::INVALID_ARGUMENT};
    if (asked.beam_width > 1) fit.status = fit_search(asked, as_many_as_fit, params.kv_blocks, &fit.limit);
    const int32_t pinned = pinned_blocks(nullptr, scope, false);
    if (fit.status != Status::OK || pinned == 0) return fit;
    const int32_t blocks = params.kv_blocks - pinned + shared_with_pins(asked.prompt, scope);
    if (asked.beam_width > 1) {
        fit.status = fit_search(asked, as_many_as_fit, blocks, &fit.limit);
    } else if (prompt >= blocks * block) {
        fit.status = Status::POOL_TOO_SMALL;
    }
    fit.limit = std::min(fit.limit, blocks * block);
    return fit;
}

// A beam search fits whole or not at all; one of as many tokens as fit gets fewer, but one.
Status World::fit_search(const Submission& asked, bool as_many_as_fit, int32_t blocks, int32_t* limit) const {
    const auto prompt = static_cast<int32_t>(asked.prompt.size());
    const auto fits = [&](int32_t tokens) {
        return blocks_of_search(asked.beam_width, prompt, tokens) <= blocks;
    };
    while (as_many_as_fit && *limit > prompt + 1 && !fits(*limit)) --*limit;
    return fits(*limit) ? Status::OK : Status::POOL_TOO_SMALL;
}

}  // namespace treadle::test
