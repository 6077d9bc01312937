// Byte-pair merges: the table (left id, right id) → (rank, result), and the merging of one word. Internal to the tokenizer.
//
// A word is a list of symbols, linked by index; a heap holds the pairs that could merge, lowest rank first,
// leftmost among equals.
// Entries whose symbols have changed since are dropped when they surface, so a word of n bytes takes O(n log n).
//
// Invariant: the result is that of merging the lowest-ranked, leftmost pair again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

namespace treadle {

class MergeTable {
public:
    struct Merge {
        uint32_t rank = UINT32_MAX;  // UINT32_MAX: no such merge
        int32_t result = -1;
    };

    explicit MergeTable(std::pmr::memory_resource* memory) : slots_(memory) {}

    void reserve(size_t merges);  // empties the table
    // False if the pair is there already (its first rank stays) or no free place was found near its own.
    enum class Insertion : uint8_t { done, repeated, crowded };
    Insertion insert(int32_t left, int32_t right, uint32_t rank, int32_t result);
    Merge find(int32_t left, int32_t right) const;

private:
    static constexpr size_t probes_max =
        256;  // of a half-empty table; only a file made to collide needs more
    struct Slot {
        int32_t left = -1;
        int32_t right = -1;
        Merge merge;
    };
    size_t start_of(int32_t left, int32_t right) const;

    std::pmr::vector<Slot> slots_;  // open addressing; a power of two, at least twice the merges
};

// Room for merging, used again for each word.
class WordMerger {
public:
    explicit WordMerger(std::pmr::memory_resource* scratch) : symbols_(scratch), heap_(scratch) {}

    void clear() { symbols_.clear(); }
    void add(int32_t token) {
        symbols_.push_back({token, 0, 0});
    }  // -1: a byte without a token; it merges with nothing
    // Merges the symbols added since clear() and appends the tokens that are left.
    void merge(const MergeTable& table, std::pmr::vector<int32_t>& out);

private:
    static constexpr uint32_t end = UINT32_MAX;
    struct Symbol {
        int32_t token;  // gone: -2
        uint32_t previous;
        uint32_t next;
    };
    struct Candidate {
        uint32_t rank;
        uint32_t left;  // index of the left symbol
        int32_t left_token;
        int32_t right_token;
        int32_t result;
    };
    struct Later;
    bool add_candidate(const MergeTable& table, uint32_t left);  // to the end of heap_, if the pair merges

    std::pmr::vector<Symbol> symbols_;
    std::pmr::vector<Candidate> heap_;
};

}  // namespace treadle
