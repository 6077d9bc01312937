// The pins of an engine, and what they cost: how many blocks of the cache they take from everybody else. The engine lists a pin
// when it takes it in, long before it is computed, and strikes it off when the host lets it go; submissions ask here how long
// they may get.
//
// Counted are the blocks that the pins fill together: as a forest in which equal whole blocks of equal scope are one.
//
//     pin 1   [16 tokens] ─► [16 tokens] ─► [5 tokens]
//     pin 2        "             "       └► [16 tokens] ─► [16 tokens]           5 blocks
//
// Invariant: all pins and any one live sequence at its greatest length fit into the cache together, counted like that; so the
// first in rank can always go on, whoever is pinned. Runs under the engine's table lock.
#pragma once

#include <cstdint>
#include <span>

#include "request/request.h"

namespace treadle {

// Whole blocks that two lists of tokens begin with in common.
int32_t common_blocks(std::span<const int32_t> a, std::span<const int32_t> b);

class PinList {
public:
    bool empty() const { return first_ == nullptr; }
    int32_t blocks() const { return blocks_; }  // of all pins together, computed or not

    // Whole blocks at the beginning of `tokens` that some pin, other than `except`, has too.
    int32_t shared(std::span<const int32_t> tokens, const CacheScope& scope,
                   const Request* except = nullptr) const;

    // What blocks() would grow by.
    int32_t cost(const Request& pin) const;

    void add(Request* pin);     // its scope must be final
    void remove(Request* pin);  // nothing happens if it isn't listed

private:
    Request* first_ = nullptr;
    int32_t blocks_ = 0;
};

}  // namespace treadle
