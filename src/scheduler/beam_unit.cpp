// What the scheduler does for a beam search: all its sequences are admitted and preempted as one unit, and hold places among the
// running whether there is a hypothesis in them or not, so that there is always room for the children of a selection.
//
// When they compute again after a preemption, those that begin alike do it once: a sequence waits until an earlier sibling has
// computed what they share, and then finds it in the cache.
#include <algorithm>

#include "base/limits.h"
#include "scheduler/scheduler.h"

namespace treadle {
namespace {

bool has_hypothesis(const Sequence& sequence) { return sequence.beam_row != BeamRow::idle; }

// Two siblings have equal tokens up to the end of their prompt.
int32_t common_with(const Sequence& a, const Sequence& b) {
    const auto last = a.tokens.begin() + std::min(a.length(), b.length());
    return static_cast<int32_t>(
        std::mismatch(a.tokens.begin() + a.given_tokens, last, b.tokens.begin() + a.given_tokens).first -
        a.tokens.begin());
}

}  // namespace

// The one that starts to compute when the unit is admitted.
Sequence* Scheduler::first_of_unit(Sequence* sequence) {
    if (sequence->request->beams == nullptr) return sequence;
    for (const Owned<Sequence>& sibling : sequence->request->sequences)
        if (has_hypothesis(*sibling)) return sibling.get();
    return sequence;
}

// Positions that a victim and its siblings hold; what they share counts once.
int32_t Scheduler::tokens_of_unit(const Sequence& sequence) {
    if (sequence.request->beams == nullptr) return sequence.computed();
    int32_t tokens = 0;
    for (const Owned<Sequence>& one : sequence.request->sequences) {
        int32_t shared = 0;
        for (const Owned<Sequence>& earlier : sequence.request->sequences) {
            if (earlier == one) break;
            shared = std::max(shared, std::min(common_with(*one, *earlier), earlier->computed()));
        }
        tokens += std::max(one->computed() - shared, 0);
    }
    return tokens;
}

// The first of the unit has what the cache had of the prompt; its siblings will share that.
void Scheduler::note_admission(Sequence* first) {
    if (observer_ != nullptr) observer_->admitted(*first);
    const int32_t found =
        first->cached_tokens >= 0 ? first->cached_tokens : std::min(first->computed(), first->prompt_tokens);
    for_each_of_unit(first, [&](Sequence* one) {
        one->cached_tokens = found;
        if (one != first && observer_ != nullptr) observer_->admitted(*one);
    });
}

// A sequence of a beam search that has nothing in the cache yet takes from it what there is, unless a sibling is still computing
// it: false, it waits.
bool Scheduler::find_beginning(Sequence* sequence) {
    if (sequence->request->beams == nullptr || !sequence->cache.blocks.empty()) return true;
    for (const Owned<Sequence>& sibling : sequence->request->sequences) {
        if (sibling.get() == sequence) break;
        if (has_hypothesis(*sibling) && sibling->state == SequenceState::prompt &&
            sibling->computed() < common_with(*sequence, *sibling))
            return false;
    }
    cache_->match(sequence->tokens, &sequence->cache);
    return true;
}

// To hold the keys and values of all its tokens. A place without a hypothesis will need one soon, for a child.
int32_t Scheduler::blocks_still_needed(const Sequence& sequence) const {
    if (sequence.request->beams == nullptr || !sequence.cache.blocks.empty())
        return cache_->blocks_needed(sequence.cache, sequence.length());
    if (!has_hypothesis(sequence)) return 1;
    int32_t shared = 0;
    for (const Owned<Sequence>& sibling : sequence.request->sequences) {
        if (sibling.get() == &sequence) break;
        if (has_hypothesis(*sibling)) shared = std::max(shared, common_with(sequence, *sibling));
    }
    return blocks_of(sequence.length()) - shared / limits::kv_block_tokens;
}

// Blocks that the unit may still take: all that it may come to hold, but for those that it has computed whole. What siblings
// share counts once.
int32_t Scheduler::growth_of_unit(const Sequence& sequence) {
    int32_t blocks = 0;
    for (const Owned<Sequence>& one : sequence.request->sequences) {
        const auto& own = one->cache.blocks;
        const auto whole = static_cast<std::ptrdiff_t>(one->computed() / limits::kv_block_tokens);
        std::ptrdiff_t shared = 0;
        for (const Owned<Sequence>& earlier : sequence.request->sequences) {
            if (earlier == one) break;
            const auto& other = earlier->cache.blocks;
            const auto most = std::min(whole, static_cast<std::ptrdiff_t>(other.size()));
            shared = std::max(
                shared, std::mismatch(own.begin(), own.begin() + most, other.begin()).first - own.begin());
        }
        blocks += one->blocks_most() - static_cast<int32_t>(whole - shared);
    }
    return std::max(blocks, 0);
}

}  // namespace treadle
