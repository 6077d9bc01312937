// The forest of blocks, its buckets and the order of eviction.
#include "kv/block_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/hash.h"

namespace treadle {
namespace {

constexpr size_t root_lists = 256;
constexpr int32_t siblings_looked_at =
    64;  // for a partial match: bounds a lookup below a block that thousands continue

uint64_t mixed(const CacheScope& scope) {
    return (scope.salt + (scope.is_private ? 1 : 0)) * 0x9E3779B97F4A7C15u ^ scope.salt >> 29;
}

}  // namespace

BlockCache::BlockCache(Memory* memory, int32_t blocks, int32_t cached_max, int32_t copies_max)
    : blocks_(memory, static_cast<size_t>(blocks)), free_list_(memory, static_cast<size_t>(blocks)),
      buckets_(memory, std::bit_ceil(static_cast<size_t>(blocks))), roots_(memory, root_lists),
      sources_(memory), free_count_(blocks), cached_max_(cached_max) {
    sources_.reserve(static_cast<size_t>(copies_max));
    std::fill(buckets_.begin(), buckets_.end(), none);
    std::fill(roots_.begin(), roots_.end(), none);
    for (int32_t i = 0; i < blocks; i++) {
        at(i) = {.references = 0,
                 .filled = 0,
                 .written = 0,
                 .linked = false,
                 .hashed = false,
                 .parent = none,
                 .child = none,
                 .older_sibling = none,
                 .newer_sibling = none,
                 .next_in_bucket = none,
                 .older = none,
                 .newer = none,
                 .scope = {},
                 .tokens = {}};
        free_list_[static_cast<size_t>(i)] = blocks - 1 - i;  // block 0 is on top
    }
}

// ---- Taking, holding, letting go

int32_t BlockCache::take() {
    if (free_count_ == 0) evict(oldest_);
    const int32_t block = free_list_[static_cast<size_t>(--free_count_)];
    at(block).references = 1;
    return block;
}

void BlockCache::give_back(int32_t block) {
    Block& freed = at(block);
    freed.references = freed.filled = freed.written = 0;
    free_list_[static_cast<size_t>(free_count_++)] = block;
}

void BlockCache::hold(int32_t block) {
    if (at(block).references++ == 0) remove_cached(block);
}

void BlockCache::let_go(int32_t block) {
    Block& held = at(block);
    if (--held.references > 0) return;
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

// ---- The forest

size_t BlockCache::bucket(int32_t parent, const CacheScope& scope, const int32_t* tokens) const {
    const uint64_t seed = parent == none ? mixed(scope) : static_cast<uint64_t>(parent) + 1;
    return hash64(tokens, size * sizeof(int32_t), seed) & (buckets_.size() - 1);
}

int32_t& BlockCache::first_child(int32_t parent, const CacheScope& scope) {
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

// The continuation of `parent` that shares the longest beginning with `tokens`; of equals one that ends just there, since
// it can be appended to without a copy.
int32_t BlockCache::find_partial(int32_t parent, const CacheScope& scope, std::span<const int32_t> tokens,
                                 int32_t* count) {
    int32_t best = none;
    int32_t best_count = 0;
    int32_t looked_at = 0;
    for (int32_t i = first_child(parent, scope); i != none && looked_at < siblings_looked_at;
         i = at(i).older_sibling, looked_at++) {
        const Block& block = at(i);
        if (!(block.scope == scope)) continue;
        const size_t most = std::min(tokens.size(), static_cast<size_t>(block.filled));
        const auto equal = static_cast<int32_t>(
            std::mismatch(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(most), block.tokens)
                .first -
            tokens.begin());
        if (equal > best_count || (equal == best_count && best != none && block.filled == equal)) {
            best = i;
            best_count = equal;
        }
    }
    *count = best_count;
    return best_count == 0 ? none : best;
}

void BlockCache::link(int32_t block, int32_t parent, const CacheScope& scope) {
    Block& linked = at(block);
    int32_t& newest = first_child(parent, scope);
    linked.linked = true;
    linked.parent = parent;
    linked.scope = scope;
    linked.child = none;
    linked.newer_sibling = none;
    linked.older_sibling = newest;
    if (newest != none) at(newest).newer_sibling = block;
    newest = block;
}

void BlockCache::unlink(int32_t block) {
    Block& linked = at(block);
    if (linked.hashed) unhash(block);
    (linked.newer_sibling == none ? first_child(linked.parent, linked.scope)
                                  : at(linked.newer_sibling).older_sibling) = linked.older_sibling;
    if (linked.older_sibling != none) at(linked.older_sibling).newer_sibling = linked.newer_sibling;
    linked.older_sibling = linked.newer_sibling = linked.parent = none;
    linked.linked = false;
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

bool BlockCache::prepare(BlockTable* table, int32_t end, std::pmr::vector<CopyPlan>* copies) {
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
    while (at(block).child != none) {
        int32_t leaf = at(block).child;
        while (at(leaf).child != none) leaf = at(leaf).child;
        evict(leaf);
    }
    if (at(block).hashed) unhash(block);
    at(block).filled = at(block).written = filled;
}

void BlockCache::end_copies() {
    for (const int32_t block : sources_) let_go(block);
    sources_.clear();
}

void BlockCache::cancel_copy(BlockTable* table, std::pmr::vector<CopyPlan>* copies) {
    for (size_t i = 0; i < copies->size(); i++) {
        const CopyPlan copy = (*copies)[i];
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
    if (!block.linked) link(own, parent, table->scope);
    std::copy(tokens + block.filled, tokens + filled, block.tokens + block.filled);
    block.filled = filled;
    block.written = std::max(block.written, filled);
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

int32_t BlockCache::lend_references(const BlockTable& table) {
    int32_t freed = 0;
    for (const int32_t block : table.blocks) freed += --at(block).references == 0 ? 1 : 0;
    return freed;
}

void BlockCache::return_references(const BlockTable& table) {
    for (const int32_t block : table.blocks) at(block).references++;
}

bool BlockCache::consistent(int64_t held) const {
    int64_t references = 0;
    int32_t holding = 0, cached = 0, hashed = 0, linked = 0;
    for (int32_t i = 0; i < total(); i++) {
        const Block& block = at(i);
        if (block.references < 0 || block.filled > block.written || block.written > size) return false;
        if (block.hashed != (block.linked && block.filled == size)) return false;
        if (block.linked && block.parent != none) {
            const Block& parent = at(block.parent);
            if (!parent.hashed || parent.references < (block.references > 0 ? 1 : 0)) return false;
        }
        references += block.references;
        holding += block.references > 0 ? 1 : 0;
        hashed += block.hashed ? 1 : 0;
        linked += block.linked ? 1 : 0;
    }
    for (int32_t i = oldest_; i != none; i = at(i).newer, cached++)
        if (at(i).references != 0 || !at(i).linked || at(i).scope.is_private) return false;
    if (oldest_ != none && at(oldest_).child != none) return false;
    for (int32_t i = 0; i < free_count_; i++) {
        const Block& block = at(free_list_[static_cast<size_t>(i)]);
        if (block.references != 0 || block.linked) return false;
    }
    int32_t in_buckets = 0;
    for (const int32_t first : buckets_)
        for (int32_t i = first; i != none; i = at(i).next_in_bucket) in_buckets++;
    return cached == cached_count_ && holding + cached + free_count_ == total() && references == held &&
           in_buckets == hashed && linked >= hashed;
}

}  // namespace treadle
