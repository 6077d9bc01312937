// Pins: taking them in, letting them go, and what they leave to everybody else. From any thread, like submissions.
#include <algorithm>

#include "base/limits.h"
#include "engine/engine.h"

namespace treadle {

Status Engine::pin(RequestParams&& params, std::pmr::vector<int32_t>&& prefix, uint64_t* id, Error* error) {
    free_the_buried();
    const auto length = static_cast<int32_t>(prefix.size());
    int32_t limit = 0;
    TREADLE_TRY(limit_of(length, 1, &limit, error));
    params.pin = true;
    set_scope(&params);
    return enter(make_request(std::move(params), std::move(prefix), length), id, error);
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
    if (pins_.empty()) return Status::OK;
    const Sequence& first = *request->sequences.front();  // the others begin alike
    const int32_t shared = pins_.shared(first.tokens, request->params.scope);
    const int32_t most = (cache_.total() - pins_.blocks() + shared) * limits::kv_block_tokens;
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
            if (sequence->finished() || pinned + sequence->blocks_most() <= cache_.total()) continue;
            const CacheScope& scope = request->params.scope;
            int32_t shared = pins_.shared(sequence->tokens, scope);
            if (scope == pin.params.scope)
                shared = std::max(shared, common_blocks(sequence->tokens, prefix.tokens));
            if (pinned + sequence->blocks_most() - shared <= cache_.total()) continue;
            status = fail(
                error, Status::POOL_TOO_SMALL,
                "a live request may get %d tokens long, which takes %d blocks; with this prefix of %d tokens "
                "%d were pinned, %d of them shared with that request, and kv_blocks is %d",
                sequence->limit, sequence->blocks_most(), prefix.length(), pinned, shared, cache_.total());
            return;
        }
    });
    return status;
}

}  // namespace treadle
