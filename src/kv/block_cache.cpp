// The forest of blocks, its buckets and the order of eviction.
#include "kv/block_cache.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <cstring>
#include <utility>

#include "base/hash.h"

namespace treadle {
namespace {

constexpr size_t root_lists = 256;

uint64_t mixed(const CacheScope& scope) {
    return (scope.salt + (scope.is_private ? 1 : 0)) * 0x9E3779B97F4A7C15u ^ scope.salt >> 29;
}

// Which of two siblings is above the other in their tree: as good as random, so that the tree is as good as balanced.
uint32_t priority(int32_t block) {
    uint32_t bits = static_cast<uint32_t>(block) * 0x9E3779B1u;
    bits = (bits ^ bits >> 15) * 0x85EBCA6Bu;
    return bits ^ bits >> 13;
}

// How the tokens of one thing stand to those of another: so many are equal at the beginning, and it comes before, after, or is
// the same.
struct TokenOrder {
    int32_t equal;
    std::strong_ordering order;
};

TokenOrder compare(std::span<const int32_t> a, std::span<const int32_t> b) {
    const size_t most = std::min(a.size(), b.size());
    size_t equal = 0;
    while (equal < most && a[equal] == b[equal]) equal++;
    return {static_cast<int32_t>(equal), equal < most ? a[equal] <=> b[equal] : a.size() <=> b.size()};
}

std::strong_ordering compare(const CacheScope& a, const CacheScope& b) {
    return a.salt != b.salt ? a.salt <=> b.salt : a.is_private <=> b.is_private;
}

}  // namespace

BlockCache::BlockCache(Memory* memory, int32_t blocks, int32_t cached_max, int32_t copies_max)
    : blocks_(memory, static_cast<size_t>(blocks)),
      slabs_(memory, static_cast<size_t>(limits::kv_slabs(blocks))),
      buckets_(memory, std::bit_ceil(static_cast<size_t>(blocks))), roots_(memory, root_lists),
      sources_(memory), slab_shift_(limits::kv_slab_shift(blocks)), cached_max_(cached_max) {
    sources_.reserve(static_cast<size_t>(copies_max));
    std::fill(buckets_.begin(), buckets_.end(), none);
    std::fill(roots_.begin(), roots_.end(), none);
    std::fill(slabs_.begin(), slabs_.end(), Slab{none, 0, false});
    for (int32_t i = blocks - 1; i >= 0; i--) {  // so that block 0 is on top
        at(i) = {.references = 0,
                 .filled = 0,
                 .written = 0,
                 .linked = false,
                 .hashed = false,
                 .alone = false,
                 .parent = none,
                 .child = none,
                 .left = none,
                 .right = none,
                 .next_in_bucket = none,
                 .older = none,
                 .newer = none,
                 .scope = {},
                 .tokens = {}};
        push_free(i);
    }
}

// ---- Taking, holding, letting go

int32_t BlockCache::take() {
    if (free_count_ == 0) evict(oldest_);
    while (slabs_[static_cast<size_t>(slab_to_take_from_)].free_count == 0) slab_to_take_from_++;
    Slab& slab = slabs_[static_cast<size_t>(slab_to_take_from_)];
    const int32_t block = slab.first_free;
    slab.first_free = std::exchange(at(block).older, none);
    slab.free_count--;
    free_count_--;
    at(block).references = 1;
    changes_.linked--;
    return block;
}

void BlockCache::push_free(int32_t block) {
    Slab& slab = slab_of(block);
    at(block).older = slab.first_free;
    slab.first_free = block;
    slab.free_count++;
    free_count_++;
    slab_to_take_from_ = std::min(slab_to_take_from_, block >> slab_shift_);
}

void BlockCache::give_back(int32_t block) {
    Block& freed = at(block);
    freed.references = freed.filled = freed.written = 0;
    push_free(block);
}

void BlockCache::hold(int32_t block) {
    if (at(block).references++ == 0) remove_cached(block);
}

void BlockCache::let_go(int32_t block) {
    Block& held = at(block);
    changes_.let_go++;
    if (--held.references > 0) return;
    changes_.freed++;
    held.written = held.filled;
    if (!held.linked || held.scope.is_private) {
        if (held.linked) unlink(block);
        give_back(block);
        return;
    }
    append_cached(block, held.filled < size);  // a part of a block is worth little: it goes before whole ones
    if (cached_count_ > cached_max_) evict(oldest_);
}

void BlockCache::evict(int32_t block) {
    remove_cached(block);
    unlink(block);
    give_back(block);
    evictions_++;
}

// Whatever continues a cached block is cached too, since whoever holds a continuation holds the block.
void BlockCache::evict_continuations(int32_t block) {
    while (at(block).child != none) {
        int32_t leaf = at(block).child;
        while (at(leaf).child != none) leaf = at(leaf).child;
        evict(leaf);
    }
}

void BlockCache::shrink(int32_t cached_most) {
    while (cached_count_ > cached_most) evict(oldest_);
}

void BlockCache::append_cached(int32_t block, bool as_oldest) {
    Block& entry = at(block);
    entry.older = as_oldest ? none : newest_;
    entry.newer = as_oldest ? oldest_ : none;
    (entry.older == none ? oldest_ : at(entry.older).newer) = block;
    (entry.newer == none ? newest_ : at(entry.newer).older) = block;
    cached_count_++;
}

void BlockCache::remove_cached(int32_t block) {
    Block& entry = at(block);
    (entry.older == none ? oldest_ : at(entry.older).newer) = entry.newer;
    (entry.newer == none ? newest_ : at(entry.newer).older) = entry.older;
    entry.older = entry.newer = none;
    cached_count_--;
}

// ---- Slabs

int32_t BlockCache::blocks_of_slab(int32_t slab) const { return limits::kv_blocks_of_slab(slab, total()); }

bool BlockCache::is_held(int32_t slab) const {
    for (int32_t i = slab << slab_shift_; i < end_of_slab(slab); i++)
        if (at(i).references > 0) return true;
    return false;
}

void BlockCache::remove_slab(int32_t index) {
    for (int32_t i = index << slab_shift_; i < end_of_slab(index); i++) {
        if (!at(i).linked) continue;  // free, or has just been evicted with what it continued
        evict_continuations(i);
        evict(i);
    }
    Slab& slab = slabs_[static_cast<size_t>(index)];
    free_count_ -= slab.free_count;
    away_count_ += slab.free_count;
    slab = {none, 0, true};
}

void BlockCache::add_slab(int32_t index) {
    slabs_[static_cast<size_t>(index)].away = false;
    away_count_ -= blocks_of_slab(index);
    changes_.let_go += blocks_of_slab(index);
    changes_.freed += blocks_of_slab(index);
    for (int32_t i = end_of_slab(index) - 1; i >= index << slab_shift_; i--) push_free(i);
}

// ---- The forest

size_t BlockCache::bucket(int32_t parent, const CacheScope& scope, const int32_t* tokens) const {
    const uint64_t seed = parent == none ? mixed(scope) : static_cast<uint64_t>(parent) + 1;
    return hash64(tokens, size * sizeof(int32_t), seed) & (buckets_.size() - 1);
}

int32_t& BlockCache::root_of(int32_t parent, const CacheScope& scope) {
    return parent == none ? roots_[mixed(scope) >> 32 & (root_lists - 1)] : at(parent).child;
}

int32_t BlockCache::find_full(int32_t parent, const CacheScope& scope, const int32_t* tokens) const {
    for (int32_t i = buckets_[bucket(parent, scope, tokens)]; i != none; i = at(i).next_in_bucket) {
        const Block& block = at(i);
        if (block.parent == parent && block.scope == scope &&
            std::memcmp(block.tokens, tokens, sizeof block.tokens) == 0)
            return i;
    }
    return none;
}

// A continuation of `parent` that shares the longest beginning with `tokens`. Those that share most stand next to the place of
// `tokens` in the order, and the way to that place passes both neighbours.
int32_t BlockCache::nearest(int32_t parent, const CacheScope& scope, std::span<const int32_t> tokens,
                            int32_t* equal) {
    int32_t best = none;
    *equal = 0;
    for (int32_t i = root_of(parent, scope); i != none;) {
        const Block& block = at(i);
        std::strong_ordering order = compare(scope, block.scope);
        if (std::is_eq(order)) {
            const TokenOrder found = compare(tokens, block.findable());
            order = found.order;
            if (found.equal > *equal || std::is_eq(order)) {
                best = i;
                *equal = found.equal;
            }
        }
        if (std::is_eq(order)) break;
        i = std::is_lt(order) ? block.left : block.right;
    }
    return best;
}

// Of those that share the longest beginning with `tokens` one that ends just there, if there is one, since it can be appended
// to without a copy: it stands where the beginning itself would.
int32_t BlockCache::find_partial(int32_t parent, const CacheScope& scope, std::span<const int32_t> tokens,
                                 int32_t* equal) {
    const int32_t block = nearest(parent, scope, tokens, equal);
    if (block == none || at(block).filled == *equal) return block;
    return nearest(parent, scope, tokens.first(static_cast<size_t>(*equal)), equal);
}

bool BlockCache::before(int32_t a, int32_t b) const {
    const std::strong_ordering scopes = compare(at(a).scope, at(b).scope);
    if (std::is_neq(scopes)) return std::is_lt(scopes);
    const std::strong_ordering tokens = compare(at(a).findable(), at(b).findable()).order;
    return std::is_eq(tokens) ? a < b : std::is_lt(tokens);
}

// As far down as its priority wants it; what was there is parted into what comes before it and what after.
void BlockCache::insert_sibling(int32_t block) {
    int32_t* place = &root_of(at(block).parent, at(block).scope);
    at(block).alone = *place == none;
    if (*place != none) at(*place).alone = false;  // nobody else can be
    while (*place != none && priority(*place) > priority(block))
        place = before(block, *place) ? &at(*place).left : &at(*place).right;
    int32_t rest = std::exchange(*place, block);
    int32_t* less = &at(block).left;
    int32_t* greater = &at(block).right;
    while (rest != none) {
        if (before(rest, block)) {
            *less = rest;
            less = &at(rest).right;
            rest = *less;
        } else {
            *greater = rest;
            greater = &at(rest).left;
            rest = *greater;
        }
    }
    *less = *greater = none;
}

// While it still has the scope and the tokens that it was inserted with.
void BlockCache::remove_sibling(int32_t block) {
    int32_t* place = &root_of(at(block).parent, at(block).scope);
    while (*place != block) place = before(block, *place) ? &at(*place).left : &at(*place).right;
    int32_t less = at(block).left;
    int32_t greater = at(block).right;
    while (less != none && greater != none) {
        if (priority(less) > priority(greater)) {
            *place = less;
            place = &at(less).right;
            less = *place;
        } else {
            *place = greater;
            place = &at(greater).left;
            greater = *place;
        }
    }
    *place = less == none ? greater : less;
    at(block).left = at(block).right = none;
}

void BlockCache::link(int32_t block, int32_t parent, const CacheScope& scope) {
    Block& linked = at(block);
    linked.linked = true;
    changes_.linked++;
    linked.parent = parent;
    linked.scope = scope;
    linked.child = none;
    insert_sibling(block);
}

void BlockCache::unlink(int32_t block) {
    if (at(block).hashed) unhash(block);
    remove_sibling(block);
    at(block).parent = none;
    at(block).linked = false;
}

void BlockCache::unhash(int32_t block) {
    Block& full = at(block);
    int32_t* place = &buckets_[bucket(full.parent, full.scope, full.tokens)];
    while (*place != block) place = &at(*place).next_in_bucket;
    *place = full.next_in_bucket;
    full.next_in_bucket = none;
    full.hashed = false;
}

// ---- What the scheduler calls

void BlockCache::match(std::span<const int32_t> tokens, BlockTable* table) {
    int32_t parent = none;
    size_t found = 0;
    for (; found + size <= tokens.size(); found += size) {
        const int32_t block = find_full(parent, table->scope, tokens.data() + found);
        if (block == none) break;
        hold(block);
        table->blocks.push_back(block);
        parent = block;
    }
    const size_t rest = std::min(tokens.size() - found, static_cast<size_t>(size));
    int32_t count = 0;
    const int32_t block =
        rest == 0 ? none : find_partial(parent, table->scope, tokens.subspan(found, rest), &count);
    if (block != none) {
        hold(block);
        table->blocks.push_back(block);
    }
    table->tokens = static_cast<int32_t>(found) + count;
}

// Nobody has written, or is writing, further than `filled`; what a cancelled pass left there doesn't count if nobody reads it.
bool BlockCache::appendable(int32_t block, int32_t filled) const {
    const Block& tail = at(block);
    return tail.written == filled || (tail.references == 1 && tail.filled == filled);
}

bool BlockCache::tail_needs_copy(const BlockTable& table) const {
    const auto tail = static_cast<size_t>(table.tokens / size);
    return tail < table.blocks.size() && !appendable(table.blocks[tail], table.tokens % size);
}

int32_t BlockCache::blocks_needed(const BlockTable& table, int32_t end) const {
    if (end <= table.tokens) return 0;
    const int32_t more = blocks_of(end) - static_cast<int32_t>(table.blocks.size());
    return std::max(more, 0) + (tail_needs_copy(table) ? 1 : 0);
}

int32_t BlockCache::preparable(const BlockTable& table) const {
    const auto blocks = static_cast<int32_t>(table.blocks.size());
    int32_t more = available();
    if (tail_needs_copy(table) &&
        references(table.blocks.back()) > 1) {  // else the last resort of prepare spares the copy
        if (more == 0) return table.tokens;
        more--;
    }
    const int64_t end = (int64_t{blocks} + more) * size;
    return static_cast<int32_t>(std::min<int64_t>(end, INT32_MAX));
}

bool BlockCache::prepare(BlockTable* table, int32_t end, std::pmr::vector<BlockCopy>* copies) {
    if (end <= table->tokens) return true;
    const auto first = static_cast<size_t>(table->tokens / size);
    const bool copy = tail_needs_copy(*table);
    const int32_t needed = blocks_needed(*table, end);
    if (needed > available()) {
        // The last resort of a sequence that may fill the whole pool: it writes over what only the cache remembers.
        if (!copy || references(table->blocks[first]) > 1 || needed - 1 > available()) return false;
        truncate(table->blocks[first], table->tokens % size);
    } else if (copy) {
        const int32_t from = table->blocks[first];
        const int32_t to = take();
        sources_.push_back(from);  // with the table's reference
        copies->push_back({from, to});
        table->blocks[first] = to;
    }
    while (static_cast<int32_t>(table->blocks.size()) < blocks_of(end)) table->blocks.push_back(take());
    for (size_t i = first; i < table->blocks.size(); i++) {
        const int32_t written = std::min(end - static_cast<int32_t>(i) * size, size);
        Block& block = at(table->blocks[i]);
        block.written = std::max(block.written, written);
    }
    return true;
}

// What continues the block is cached at most, since whoever holds a continuation holds the block.
void BlockCache::truncate(int32_t block, int32_t filled) {
    evict_continuations(block);
    if (at(block).hashed) unhash(block);
    const bool linked = at(block).linked;
    if (linked) remove_sibling(block);
    at(block).filled = at(block).written = filled;
    if (linked) insert_sibling(block);
}

void BlockCache::end_copies() {
    for (const int32_t block : sources_) let_go(block);
    sources_.clear();
}

void BlockCache::cancel_copy(BlockTable* table, std::pmr::vector<BlockCopy>* copies) {
    for (size_t i = 0; i < copies->size(); i++) {
        const BlockCopy copy = (*copies)[i];
        const auto place = std::find(table->blocks.begin(), table->blocks.end(), copy.to);
        if (place == table->blocks.end()) continue;
        *place = copy.from;  // with the reference of sources_
        let_go(copy.to);
        sources_.erase(std::find(sources_.begin(), sources_.end(), copy.from));
        copies->erase(copies->begin() + static_cast<std::ptrdiff_t>(i));
        return;
    }
}

void BlockCache::commit(std::span<const int32_t> tokens, int32_t computed, BlockTable* table) {
    if (computed <= table->tokens) return;
    for (int32_t i = table->tokens / size; i * size < computed; i++) {
        const int32_t filled = std::min(computed - i * size, size);
        commit_block(tokens.data() + i * size, filled, static_cast<size_t>(i), table);
    }
    table->tokens = computed;
}

void BlockCache::commit_block(const int32_t* tokens, int32_t filled, size_t index, BlockTable* table) {
    const int32_t own = table->blocks[index];
    const int32_t parent = index == 0 ? none : table->blocks[index - 1];
    if (at(own).filled >= filled) return;
    const int32_t twin = filled == size ? find_full(parent, table->scope, tokens) : none;
    if (twin != none) {
        hold(twin);
        table->blocks[index] = twin;
        if (at(own).references == 1 && at(own).linked) unlink(own);  // the twin has all that it has
        let_go(own);
        return;
    }
    Block& block = at(own);
    const bool moves = block.linked && !block.alone;  // its place is where its tokens say
    if (moves) remove_sibling(own);
    std::copy(tokens + block.filled, tokens + filled, block.tokens + block.filled);
    block.filled = filled;
    block.written = std::max(block.written, filled);
    if (moves) insert_sibling(own);
    if (!block.linked) link(own, parent, table->scope);
    if (filled < size) return;
    int32_t& first = buckets_[bucket(parent, table->scope, block.tokens)];
    block.next_in_bucket = first;
    block.hashed = true;
    first = own;
}

void BlockCache::share(const BlockTable& from, BlockTable* to) {
    const size_t most = std::min(from.blocks.size(), to->blocks.size());
    const auto equal = static_cast<size_t>(
        std::mismatch(from.blocks.begin(), from.blocks.begin() + static_cast<std::ptrdiff_t>(most),
                      to->blocks.begin())
            .first -
        from.blocks.begin());
    while (to->blocks.size() > equal) {
        let_go(to->blocks.back());
        to->blocks.pop_back();
    }
    for (size_t i = equal; i < from.blocks.size(); i++) {
        hold(from.blocks[i]);
        to->blocks.push_back(from.blocks[i]);
    }
    to->tokens = from.tokens;
}

void BlockCache::release(BlockTable* table) {
    while (!table->blocks.empty()) {  // from the end, so that what continues a block goes before it
        let_go(table->blocks.back());
        table->blocks.pop_back();
    }
    table->tokens = 0;
}

void BlockCache::unmatch(BlockTable* table) {
    const CacheChanges before = changes_;
    release(table);
    changes_ = before;
}

int32_t BlockCache::lend_references(const BlockTable& table) {
    int32_t freed = 0;
    for (const int32_t block : table.blocks) freed += --at(block).references == 0 ? 1 : 0;
    return freed;
}

void BlockCache::return_references(const BlockTable& table) {
    for (const int32_t block : table.blocks) at(block).references++;
}

// What stands below it in the tree of its siblings has its parent, less priority, and is on the right side; what continues it
// names it. Counts them.
bool BlockCache::consistent_links(int32_t block, int32_t* below) const {
    const Block& entry = at(block);
    if (entry.alone && (entry.left != none || entry.right != none)) return false;
    for (const int32_t side : {entry.left, entry.right}) {
        if (side == none) continue;
        if (!at(side).linked || at(side).alone || at(side).parent != entry.parent ||
            priority(side) >= priority(block) || before(side, block) != (side == entry.left))
            return false;
        ++*below;
    }
    if (entry.child == none) return true;
    ++*below;
    return at(entry.child).linked && at(entry.child).parent == block;
}

// Its list has the free blocks that it counts; of one that is away, nobody knows a block.
bool BlockCache::consistent_slab(int32_t index, int32_t* free) const {
    const Slab& slab = slabs_[static_cast<size_t>(index)];
    int32_t count = 0;
    for (int32_t i = slab.first_free; i != none && count <= slab.free_count; i = at(i).older, count++)
        if (i >> slab_shift_ != index || at(i).references != 0 || at(i).linked) return false;
    if (count != slab.free_count || (count > 0 && index < slab_to_take_from_)) return false;
    *free += count;
    if (!slab.away) return true;
    for (int32_t i = index << slab_shift_; i < end_of_slab(index); i++)
        if (at(i).references != 0 || at(i).linked) return false;
    return count == 0;
}

bool BlockCache::consistent(int64_t held) const {
    int64_t references = 0;
    int32_t holding = 0, cached = 0, hashed = 0, linked = 0, placed = 0;
    for (int32_t i = 0; i < total(); i++) {
        const Block& block = at(i);
        if (block.references < 0 || block.filled > block.written || block.written > size) return false;
        if (block.hashed != (block.linked && block.filled == size)) return false;
        if (block.linked && block.parent != none) {
            const Block& parent = at(block.parent);
            if (!parent.hashed || parent.references < (block.references > 0 ? 1 : 0)) return false;
        }
        if (block.linked && !consistent_links(i, &placed)) return false;
        references += block.references;
        holding += block.references > 0 ? 1 : 0;
        hashed += block.hashed ? 1 : 0;
        linked += block.linked ? 1 : 0;
    }
    for (const int32_t root : roots_) placed += root == none ? 0 : 1;
    for (int32_t i = oldest_; i != none; i = at(i).newer, cached++)
        if (at(i).references != 0 || !at(i).linked || at(i).scope.is_private) return false;
    if (oldest_ != none && at(oldest_).child != none) return false;
    int32_t free = 0;
    for (int32_t slab = 0; slab < slabs(); slab++)
        if (!consistent_slab(slab, &free)) return false;
    int32_t in_buckets = 0;
    for (const int32_t first : buckets_)
        for (int32_t i = first; i != none; i = at(i).next_in_bucket) in_buckets++;
    return cached == cached_count_ && holding + cached + free_count_ == present() && free == free_count_ &&
           references == held && in_buckets == hashed && placed == linked;
}

}  // namespace treadle
