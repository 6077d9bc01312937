// Pins: taking them in, letting them go, and what they leave to everybody else. From any thread, like submissions.
#include <algorithm>
#include <span>

#include "base/limits.h"
#include "engine/engine.h"

namespace treadle {
namespace {

// The tokens by which a sequence shares blocks with pins, whatever becomes of it: hypotheses of a beam search have only their
// prompt in common.
std::span<const int32_t> lasting_tokens(const Sequence& sequence) {
    const std::span<const int32_t> tokens = sequence.tokens;
    return sequence.request->beams == nullptr ? tokens
                                              : tokens.first(static_cast<size_t>(sequence.given_tokens));
}

// What must fit beside the pins at one time: a sequence, or a beam search as a whole, which its first sequence stands for then.
int64_t blocks_at_once(const Sequence& sequence) {
    if (sequence.request->beams == nullptr) return sequence.blocks_most();
    if (sequence.index > 0) return 0;
    return beam_blocks(sequence.request->beams->width(), sequence.given_tokens, sequence.limit);
}

}  // namespace

Status Engine::pin(RequestParams&& params, std::pmr::vector<int32_t>&& prefix, uint64_t* id, Error* error) {
    free_the_buried();
    const auto length = static_cast<int32_t>(prefix.size());
    int32_t limit = 0;
    TREADLE_TRY(limit_of(length, limit_wanted(length, 1), &limit, error));
    params.pin = true;
    params.scope = scope_of(params.scope);
    return enter(make_request(std::move(params), std::move(prefix), length, length), id, error);
}

Status Engine::unpin(uint64_t id) {
    {
        const std::lock_guard lock(table_lock_);
        const Request* request = table_.find(id);
        if (request == nullptr) return Status::STALE_ID;
        if (!request->params.pin) return Status::INVALID_ARGUMENT;
    }
    return release(id);
}

// Whether the request and all that live and are pinned can finish, one after the other at the worst; a request that could get
// too long for that gets a lower limit. Runs under the lock, just before the request enters.
Status Engine::fit_among_pins(Request* request, Error* error) const {
    if (request->params.pin) return fit_pin(*request, error);
    if (pins_.empty() || request->over != FinishReason::none) return Status::OK;
    const Sequence& first = *request->sequences.front();  // the others begin alike
    const int32_t shared = pins_.shared(first.tokens, request->params.scope);
    const int32_t blocks = cache_.total() - pins_.blocks() + shared;
    if (request->beams != nullptr) return fit_beams(request, blocks, error);
    const int32_t most = blocks * limits::kv_block_tokens;
    if (first.length() >= most)
        return fail(
            error, Status::POOL_TOO_SMALL,
            "the prompt has %d tokens, one more is for the answer, and the KV cache holds %d beside the pins "
            "(kv_blocks is %d, pinned are %d, of which the prompt begins with %d)",
            first.length(), most, cache_.total(), pins_.blocks(), shared);
    for (const Owned<Sequence>& sequence : request->sequences)
        sequence->limit = std::min(sequence->limit, most);
    return Status::OK;
}

// A beam search fits whole into so many blocks or is refused; one that asks for as many tokens as fit gets fewer.
Status Engine::fit_beams(Request* request, int32_t blocks, Error* error) const {
    const Sequence& first = *request->sequences.front();
    const int32_t width = request->beams->width();
    int32_t limit = first.limit;
    if (first.wanted_limit == INT32_MAX) {
        const int32_t shared = first.given_tokens / limits::kv_block_tokens;
        const int32_t each = std::max((blocks - shared) / width - 1, 0);
        limit = std::clamp((shared + each) * limits::kv_block_tokens + 1, first.given_tokens + 1, limit);
    }
    const int64_t needed = beam_blocks(width, first.given_tokens, limit);
    if (needed > blocks)
        return fail(
            error, Status::POOL_TOO_SMALL,
            "beam_width is %d: so many hypotheses of %d tokens need up to %lld blocks; kv_blocks is %d, "
            "and pins leave %d of them",
            width, limit, static_cast<long long>(needed), cache_.total(), blocks);
    for (const Owned<Sequence>& sequence : request->sequences) sequence->limit = limit;
    request->beams->tokens_max = limit - first.given_tokens;
    return Status::OK;
}

// A pin must leave a block to compute with, and to each sequence that lives what it was promised.
Status Engine::fit_pin(const Request& pin, Error* error) const {
    const Sequence& prefix = *pin.sequences.front();
    const int32_t pinned = pins_.blocks() + pins_.cost(pin);
    if (pinned >= cache_.total())
        return fail(
            error, Status::POOL_TOO_SMALL,
            "the prefix has %d tokens; with it %d blocks were pinned, and kv_blocks is %d, one of them to "
            "compute with",
            prefix.length(), pinned, cache_.total());
    Status status = Status::OK;
    table_.for_each([&](const Request* request) {
        if (status != Status::OK || request->params.pin || request->released || request->cancelled) return;
        for (const Owned<Sequence>& sequence : request->sequences) {
            const int64_t blocks = blocks_at_once(*sequence);
            if (sequence->finished() || pinned + blocks <= cache_.total()) continue;
            const CacheScope& scope = request->params.scope;
            const std::span<const int32_t> tokens = lasting_tokens(*sequence);
            int32_t shared = pins_.shared(tokens, scope);
            if (scope == pin.params.scope) shared = std::max(shared, common_blocks(tokens, prefix.tokens));
            if (pinned + blocks - shared <= cache_.total()) continue;
            status = fail(error, Status::POOL_TOO_SMALL,
                          "a live request may get %d tokens long, which takes %lld blocks; with this prefix "
                          "of %d tokens "
                          "%d were pinned, %d of them shared with that request, and kv_blocks is %d",
                          sequence->limit, static_cast<long long>(blocks), prefix.length(), pinned, shared,
                          cache_.total());
            return;
        }
    });
    return status;
}

}  // namespace treadle
