// Giving the KV cache's memory back and taking it again: whole slabs of it, by calls from any thread, never by a step.
//
// Invariant: what is there is enough for the pins and for all live requests, each at its greatest length; so whoever was taken
// in finishes without an allocation.
#include <algorithm>

#include "engine/engine.h"
#include "engine/loose_slabs.h"

namespace treadle {

int64_t Engine::promised_blocks() const { return promised_blocks_ + pins_.blocks(); }

// No pass under way names a block that nobody holds, so a slab of such blocks may go at any time.
uint64_t Engine::trim() {
    free_the_buried();
    uint64_t blocks = 0;
    LooseSlabs loose(backend_.get());  // freed when the lock is open again
    {
        const std::lock_guard lock(table_lock_);
        const int64_t kept = promised_blocks();
        for (int32_t slab = cache_.slabs() - 1; slab >= 0; slab--) {
            const int32_t size = cache_.blocks_of_slab(slab);
            if (cache_.is_away(slab) || cache_.present() - size < kept || cache_.is_held(slab)) continue;
            cache_.remove_slab(slab);
            loose.take_out(slab);
            blocks += static_cast<uint64_t>(size);
        }
    }
    return blocks * kv_bytes_per_block();
}

// Makes sure of the blocks that the request may need, and of some more if there is memory: the watermark, and as much as is
// cached, which would have to make room otherwise. False: `loose` must allocate what it now wants. Runs under the lock.
bool Engine::claim_blocks(const Request& request, LooseSlabs* loose) {
    if (cache_.away_blocks() == 0 || request.over != FinishReason::none) return true;
    int64_t wanted = promised_blocks();
    if (request.params.pin) {
        wanted += pins_.cost(request);
    } else {
        for (const Owned<Sequence>& sequence : request.sequences) wanted += sequence->blocks_most();
    }
    if (!loose->short_of_memory()) wanted += params_.watermark_blocks + cache_.cached_blocks();
    wanted = std::min<int64_t>(wanted, cache_.total());
    loose->want_none();
    int64_t blocks = cache_.present();
    for (int32_t slab = 0; slab < cache_.slabs() && blocks < wanted; slab++) {
        if (!cache_.is_away(slab)) continue;
        loose->want(slab);
        blocks += cache_.blocks_of_slab(slab);
    }
    if (!loose->has_all_wanted()) return false;
    for (int32_t slab = 0; slab < cache_.slabs(); slab++) {
        if (!loose->wants(slab)) continue;
        loose->put_in(slab);
        cache_.add_slab(slab);
    }
    return true;
}

}  // namespace treadle
