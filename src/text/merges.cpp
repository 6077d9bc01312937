// Open addressing for the table, a binary heap for the word.
#include "text/merges.h"

#include <algorithm>

namespace treadle {

void MergeTable::reserve(size_t merges) {
    size_t slots = 2;
    while (slots < 2 * merges) slots *= 2;
    slots_.assign(slots, Slot{});
}

size_t MergeTable::start_of(int32_t left, int32_t right) const {
    uint64_t mixed = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;  // splitmix64's mixing
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return static_cast<size_t>(mixed ^ mixed >> 31) & (slots_.size() - 1);
}

MergeTable::Insertion MergeTable::insert(int32_t left, int32_t right, uint32_t rank, int32_t result) {
    size_t at = start_of(left, right);
    for (size_t probe = 0; probe < probes_max && probe < slots_.size(); ++probe) {
        Slot& slot = slots_[at];
        if (slot.left == left && slot.right == right) return Insertion::repeated;
        if (slot.left < 0) {
            slot = {left, right, {rank, result}};
            return Insertion::done;
        }
        at = (at + 1) & (slots_.size() - 1);
    }
    return Insertion::crowded;
}

MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const {
    if (slots_.empty() || left < 0 || right < 0) return {};
    size_t at = start_of(left, right);
    for (size_t probe = 0; probe < probes_max && probe < slots_.size() && slots_[at].left >= 0; ++probe) {
        if (slots_[at].left == left && slots_[at].right == right) return slots_[at].merge;
        at = (at + 1) & (slots_.size() - 1);
    }
    return {};
}

struct WordMerger::Later {
    bool operator()(const Candidate& a, const Candidate& b) const {
        return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
    }
};

bool WordMerger::add_candidate(const MergeTable& table, uint32_t left) {
    const uint32_t right = symbols_[left].next;
    if (right == end) return false;
    const int32_t left_token = symbols_[left].token;
    const int32_t right_token = symbols_[right].token;
    const MergeTable::Merge merge = table.find(left_token, right_token);
    if (merge.result < 0) return false;
    heap_.push_back({merge.rank, left, left_token, right_token, merge.result});
    return true;
}

void WordMerger::merge(const MergeTable& table, std::pmr::vector<int32_t>& out) {
    const auto count = static_cast<uint32_t>(symbols_.size());
    for (uint32_t i = 0; i < count; ++i) {
        symbols_[i].previous = i == 0 ? end : i - 1;
        symbols_[i].next = i + 1 == count ? end : i + 1;
    }
    heap_.clear();
    for (uint32_t i = 0; i < count; ++i) add_candidate(table, i);
    std::make_heap(heap_.begin(), heap_.end(), Later{});
    while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), Later{});
        const Candidate best = heap_.back();
        heap_.pop_back();
        Symbol& left = symbols_[best.left];
        if (left.token != best.left_token || left.next == end) continue;
        Symbol& right = symbols_[left.next];
        if (right.token != best.right_token) continue;
        left.token = best.result;
        right.token = -2;
        left.next = right.next;
        if (left.next != end) symbols_[left.next].previous = best.left;
        if (left.previous != end && add_candidate(table, left.previous))
            std::push_heap(heap_.begin(), heap_.end(), Later{});
        if (add_candidate(table, best.left)) std::push_heap(heap_.begin(), heap_.end(), Later{});
    }
    for (const Symbol& symbol : symbols_) {
        if (symbol.token >= 0) out.push_back(symbol.token);
    }
}

}  // namespace treadle
