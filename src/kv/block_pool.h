// Who owns which block of the KV cache. The scheduler reserves blocks when it admits a request, a sequence acquires them one by
// one as it grows, and both come back when it ends:
//
//     reserve(n) ─► acquire() … acquire() ─► release(block) …     and forfeit(what was reserved but never acquired)
//
// Invariant: free + held = total, and reserved <= free. A block is held as long as its count of references is above zero.
#pragma once

#include <cstdint>

#include "base/memory.h"

namespace treadle {

class BlockPool {
public:
    BlockPool(Memory* memory, int32_t blocks);

    int32_t total() const { return static_cast<int32_t>(references_.size()); }
    int32_t free_blocks() const { return free_count_; }
    int32_t reserved() const { return reserved_; }
    int32_t available() const { return free_count_ - reserved_; }  // free and promised to nobody
    int32_t references(int32_t block) const { return references_[static_cast<size_t>(block)]; }

    bool reserve(int32_t blocks);  // false: fewer are available; nothing was reserved
    void forfeit(int32_t blocks);  // gives a part of a reservation back
    int32_t acquire();             // turns one reserved block into a held one with one reference
    void add_reference(int32_t block);
    void release(int32_t block);  // drops one reference; at zero the block is free

    // Recounts everything; O(total). For debug builds and tests.
    bool consistent() const;

private:
    AlignedArray<int32_t> references_;  // (total)
    AlignedArray<int32_t>
        free_list_;  // (total) a stack: the block freed last is taken first, it may still be in a cache
    int32_t free_count_ = 0;
    int32_t reserved_ = 0;
};

}  // namespace treadle
