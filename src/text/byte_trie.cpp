// Building level by level: an entry of the sorted list belongs to the node whose string is its first `depth` bytes, so the
// entries of a node are a contiguous range, and its children are the runs of equal bytes in it.
#include "text/byte_trie.h"

#include <algorithm>

namespace treadle {

void ByteTrie::build(std::span<TrieEntry> entries) {
    struct Range {
        uint32_t first;
        uint32_t last;
    };
    std::sort(entries.begin(), entries.end(), [](const TrieEntry& a, const TrieEntry& b) {
        const int order = a.text.compare(b.text);
        return order != 0 ? order < 0 : a.value < b.value;
    });
    nodes_.clear();
    nodes_.emplace_back();
    std::pmr::vector<Range> level({Range{0, static_cast<uint32_t>(entries.size())}}, nodes_.get_allocator());
    std::pmr::vector<Range> next_level(nodes_.get_allocator());
    uint32_t level_start = 0;
    for (size_t depth = 0; !level.empty(); ++depth) {
        const uint32_t next_start = size();
        next_level.clear();
        for (uint32_t i = 0; i < level.size(); ++i) {
            Range range = level[i];
            const uint32_t parent = level_start + i;
            for (; range.first < range.last && entries[range.first].text.size() == depth; ++range.first) {
                if (nodes_[parent].value < 0) nodes_[parent].value = entries[range.first].value;
            }
            nodes_[parent].first_child = size();
            while (range.first < range.last) {
                const char byte = entries[range.first].text[depth];
                uint32_t run_end = range.first + 1;
                while (run_end < range.last && entries[run_end].text[depth] == byte) ++run_end;
                nodes_.push_back({0, 0, static_cast<uint8_t>(byte), -1});
                ++nodes_[parent].child_count;
                next_level.push_back({range.first, run_end});
                range.first = run_end;
            }
        }
        level_start = next_start;
        level.swap(next_level);
    }
}

uint32_t ByteTrie::child(uint32_t parent, uint8_t byte) const {
    const Node& from = nodes_[parent];
    uint32_t low = from.first_child;
    uint32_t high = low + from.child_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (nodes_[middle].byte < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low < from.first_child + from.child_count && nodes_[low].byte == byte ? low : none;
}

int32_t ByteTrie::find(std::string_view text) const {
    uint32_t at = 0;
    for (const char c : text) {
        at = nodes_.empty() ? none : child(at, static_cast<uint8_t>(c));
        if (at == none) return -1;
    }
    return nodes_.empty() ? -1 : nodes_[at].value;
}

}  // namespace treadle
