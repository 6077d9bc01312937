// The list of pins and the count of what they fill.
#include "request/pin_list.h"

#include <algorithm>

#include "base/limits.h"

namespace treadle {

int32_t common_blocks(std::span<const int32_t> a, std::span<const int32_t> b) {
    const auto most = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
    const auto common = std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
    return static_cast<int32_t>(common / limits::kv_block_tokens);
}

// Pins form a forest, so the blocks that these tokens share with all of them are those shared with the one they agree with
// longest. A pin that agrees longer than those before it has the block that comes next: one look at that spares most of a
// thousand pins with a long beginning in common.
int32_t PinList::shared(std::span<const int32_t> tokens, const CacheScope& scope,
                        const Request* except) const {
    int32_t most = 0;
    for (const Request* pin = first_; pin != nullptr; pin = pin->next_pin) {
        if (pin == except || !(pin->params.scope == scope)) continue;
        const std::span<const int32_t> its = pin->sequences.front()->tokens;
        const auto next = static_cast<size_t>(most) * limits::kv_block_tokens;
        if (std::min(its.size(), tokens.size()) < next + limits::kv_block_tokens) continue;
        if (common_blocks(its.subspan(next, limits::kv_block_tokens), tokens.subspan(next)) > 0)
            most = std::max(most, common_blocks(its, tokens));
    }
    return most;
}

int32_t PinList::cost(const Request& pin) const {
    const Sequence& sequence = *pin.sequences.front();
    return sequence.blocks_most() - shared(sequence.tokens, pin.params.scope, &pin);
}

void PinList::add(Request* pin) {
    blocks_ += cost(*pin);
    pin->is_listed_pin = true;
    pin->previous_pin = nullptr;
    pin->next_pin = first_;
    if (first_ != nullptr) first_->previous_pin = pin;
    first_ = pin;
}

void PinList::remove(Request* pin) {
    if (!pin->is_listed_pin) return;
    blocks_ -= cost(*pin);
    pin->is_listed_pin = false;
    (pin->previous_pin == nullptr ? first_ : pin->previous_pin->next_pin) = pin->next_pin;
    if (pin->next_pin != nullptr) pin->next_pin->previous_pin = pin->previous_pin;
    pin->next_pin = pin->previous_pin = nullptr;
}

}  // namespace treadle
