// Who owns which block of the KV cache, and which tokens lie in it. Blocks that hold equal beginnings of sequences are shared:
// they form a forest, in which each path from a root spells a sequence, 16 tokens per block, the last one perhaps fewer.
//
//     root ─► [16 tokens] ─► [16 tokens] ─┬─► [16 tokens] ─► [7 tokens]
//                                         └─► [3 tokens]
//
//     free ── prepare ──► held (references > 0) ── release ──► cached (references = 0, findable) ── evict ──► free
//                           ▲                                      │
//                           └────────────── match ─────────────────┘
//
// The scheduler matches a sequence's tokens when it admits it, prepares blocks for what the next pass writes, commits what a
// pass has computed (only then it can be found), and releases. A block that others read further than this sequence has got
// is copied before it is written.
//
// Blocks come in slabs (limits::kv_slabs), and slabs may be away: their blocks are in none of these states. Blocks of the first
// slabs are taken first, so that the last ones get empty.
//
// Invariants: free + held + cached + away = total. Who holds a block holds all blocks before it. A cached block is released after
// those that continue it, so the least recently used one continues nowhere: eviction takes leaves first, in constant time.
// A lookup compares the tokens themselves; a hash only finds the place to look. What continues one block, or begins, is a search
// tree ordered by tokens (a treap): the longest common beginning is on the way to where the tokens would stand, however many
// there are. Nothing allocates after creation.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "base/block_copy.h"
#include "base/limits.h"
#include "base/memory.h"

namespace treadle {

// Whose blocks may meet whose: equal salts only. Blocks of a private scope are not kept when nobody holds them any more.
struct CacheScope {
    uint64_t salt = 0;
    bool is_private = false;
    bool operator==(const CacheScope&) const = default;
};

// What a sequence has in the cache. Positions 16 i … 16 i + 15 are in blocks[i].
struct BlockTable {
    explicit BlockTable(Memory* memory) : blocks(memory) {}
    std::pmr::vector<int32_t> blocks;
    int32_t tokens = 0;  // positions that are computed; a last block may be prepared beyond
    CacheScope scope;
};

// What has happened to the blocks, so that who lacked some needn't look again before it can have them (Scheduler).
struct CacheChanges {
    int64_t let_go = 0;  // references that were given up, and blocks that came back
    int64_t freed = 0;   // those of them with which a block became available
    int64_t linked = 0;  // blocks that became findable, less those that were taken
};

class BlockCache {
public:
    // cached_max: most blocks that are kept while nobody holds them. copies_max: most copies of one pass.
    BlockCache(Memory* memory, int32_t blocks, int32_t cached_max, int32_t copies_max);

    int32_t total() const { return static_cast<int32_t>(blocks_.size()); }
    int32_t free_blocks() const { return free_count_; }
    int32_t cached_blocks() const { return cached_count_; }
    int32_t held_blocks() const { return present() - free_count_ - cached_count_; }
    int32_t away_blocks() const { return away_count_; }
    int32_t present() const { return total() - away_count_; }
    int32_t available() const { return free_count_ + cached_count_; }  // for whoever prepares next
    int32_t references(int32_t block) const { return blocks_[static_cast<size_t>(block)].references; }
    uint64_t evictions() const { return evictions_; }
    const CacheChanges& changes() const { return changes_; }

    // Finds the longest beginning of `tokens` that is cached, to the token, and holds its blocks: lookup and hold are one act.
    // The table must be empty; its tokens become the number found. The last block may reach further than that.
    void match(std::span<const int32_t> tokens, BlockTable* table);

    // Makes positions table.tokens … end - 1 writable: takes blocks, evicting cached ones, and copies a last block that others
    // share; the copy must run at the start of the pass that writes. False: too few blocks, nothing was changed.
    [[nodiscard]] bool prepare(BlockTable* table, int32_t end, std::pmr::vector<BlockCopy>* copies);
    int32_t blocks_needed(const BlockTable& table,
                          int32_t end) const;           // that prepare would take, a copy among them
    int32_t preparable(const BlockTable& table) const;  // the largest `end` that prepare can serve now

    // The pass that was prepared for has ended: the blocks that it copied from are let go. Before any commit or release.
    void end_copies();
    // The plan is changed before it ran: a table's copy is taken back, and must be released.
    void cancel_copy(BlockTable* table, std::pmr::vector<BlockCopy>* copies);

    // Positions up to `computed` now hold `tokens`: makes them findable. Where another sequence computed the same block
    // meanwhile, that one takes its place in the table.
    void commit(std::span<const int32_t> tokens, int32_t computed, BlockTable* table);

    // A table of the same scope becomes what another is; the blocks of `from` are shared, where `to` doesn't hold them yet.
    void share(const BlockTable& from, BlockTable* to);

    // Lets go of all blocks; what is computed stays findable until it is evicted.
    void release(BlockTable* table);

    // Undoes a match that led to nothing, and nothing else has happened since: it is no change.
    void unmatch(BlockTable* table);

    // As if the table were released, for a question: how many blocks that lets go of beyond the tables lent before. In between
    // nothing but blocks_needed is asked of the cache; then all that was lent must be returned.
    int32_t lend_references(const BlockTable& table);
    void return_references(const BlockTable& table);

    // Slabs that go and come back.
    int32_t slabs() const { return static_cast<int32_t>(slabs_.size()); }
    int32_t blocks_of_slab(int32_t slab) const;
    bool is_away(int32_t slab) const { return slabs_[static_cast<size_t>(slab)].away; }
    bool is_held(int32_t slab) const;  // somebody holds a block of it
    // Of one that nobody holds: forgets what is cached in it, and what continues that.
    void remove_slab(int32_t slab);
    void add_slab(int32_t slab);  // that is away

    // Forgets cached blocks, least recently used first, until at most so many are left.
    void shrink(int32_t cached_most);

    // Recounts everything; O(total). `held` is the number of references that all tables and copies together should have.
    bool consistent(int64_t held) const;
    int32_t copies_under_way() const { return static_cast<int32_t>(sources_.size()); }

private:
    static constexpr int32_t none = -1;
    static constexpr int32_t size = limits::kv_block_tokens;

    struct Block {
        int32_t references;
        int32_t filled;   // tokens that can be found here
        int32_t written;  // positions that are written or being written: at least `filled`
        bool linked;      // it stands in the forest: below `parent`, or a root
        bool hashed;      // it is full, and in a bucket
        bool alone;       // it has no sibling; false is always safe
        int32_t parent;
        int32_t child;  // the root of the tree of those that continue it
        int32_t left;  // below it in the tree of its siblings: those that come before it by scope and tokens,
        int32_t right;  // and those that come after it
        int32_t next_in_bucket;
        int32_t older;  // among the cached; of a free one, the next in its slab's list
        int32_t newer;
        CacheScope scope;
        int32_t tokens[size];

        std::span<const int32_t> findable() const { return {tokens, static_cast<size_t>(filled)}; }
    };

    struct Slab {
        int32_t
            first_free;  // a stack: what was freed last is taken first, it may still be in a processor's cache
        int32_t free_count;
        bool away;
    };

    Block& at(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
    const Block& at(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }

    int32_t take();
    void give_back(int32_t block);
    void hold(int32_t block);
    void let_go(int32_t block);
    bool appendable(int32_t block, int32_t filled) const;
    bool tail_needs_copy(const BlockTable& table) const;
    void truncate(int32_t block, int32_t filled);
    bool consistent_links(int32_t block, int32_t* below) const;
    bool consistent_slab(int32_t slab, int32_t* free) const;

    size_t bucket(int32_t parent, const CacheScope& scope, const int32_t* tokens) const;
    int32_t& root_of(int32_t parent, const CacheScope& scope);
    int32_t find_full(int32_t parent, const CacheScope& scope, const int32_t* tokens) const;
    int32_t nearest(int32_t parent, const CacheScope& scope, std::span<const int32_t> tokens, int32_t* equal);
    int32_t find_partial(int32_t parent, const CacheScope& scope, std::span<const int32_t> tokens,
                         int32_t* equal);
    void commit_block(const int32_t* tokens, int32_t filled, size_t index, BlockTable* table);
    void link(int32_t block, int32_t parent, const CacheScope& scope);
    void unlink(int32_t block);
    bool before(int32_t a, int32_t b) const;  // in the order of siblings
    void insert_sibling(int32_t block);
    void remove_sibling(int32_t block);
    void unhash(int32_t block);

    void append_cached(int32_t block, bool as_oldest);
    void remove_cached(int32_t block);
    void evict(int32_t block);
    void evict_continuations(int32_t block);
    Slab& slab_of(int32_t block) { return slabs_[static_cast<size_t>(block >> slab_shift_)]; }
    void push_free(int32_t block);
    int32_t end_of_slab(int32_t slab) const { return (slab << slab_shift_) + blocks_of_slab(slab); }

    AlignedArray<Block> blocks_;
    AlignedArray<Slab> slabs_;
    AlignedArray<int32_t> buckets_;      // of full blocks, a power of two
    AlignedArray<int32_t> roots_;        // trees of first blocks by salt, a power of two
    std::pmr::vector<int32_t> sources_;  // held for the copies of the pass under way
    int32_t slab_shift_;
    int32_t slab_to_take_from_ = 0;  // no slab before it has a free block
    int32_t free_count_ = 0;
    int32_t away_count_ = 0;
    int32_t cached_count_ = 0;
    int32_t cached_max_;
    int32_t oldest_ = none;
    int32_t newest_ = none;
    uint64_t evictions_ = 0;
    CacheChanges changes_;
};

// Blocks that so many positions fill.
constexpr int32_t blocks_of(int32_t positions) {
    return (positions + limits::kv_block_tokens - 1) / limits::kv_block_tokens;
}

}  // namespace treadle
