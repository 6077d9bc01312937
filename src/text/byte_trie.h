// A set of byte strings with a value each, walked byte by byte: special tokens, whole words and stop strings are found with it.
// Built once from a list; then only read.
//
// Nodes lie level by level, so the children of a node are adjacent and sorted by byte:
//
//     root | a b | (children of a) x y (children of b) z | …          node = {first child, count, byte, value}
//
// Invariant: built and walked without recursion; node 0 is the root, and a node's depth is the length of its string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>
#include <vector>

namespace treadle {

struct TrieEntry {
    std::string_view text;
    int32_t value = -1;
};

class ByteTrie {
public:
    static constexpr uint32_t none = UINT32_MAX;

    struct Node {
        uint32_t first_child = 0;
        uint16_t child_count = 0;
        uint8_t byte = 0;
        int32_t value = -1;  // of the string that ends here; -1: none does
    };

    explicit ByteTrie(std::pmr::memory_resource* memory) : nodes_(memory) {}

    // Replaces the contents. Entries are sorted in place; their texts are not empty. Of equal texts the lowest value stays.
    void build(std::span<TrieEntry> entries);

    uint32_t child(uint32_t node, uint8_t byte) const;  // none where there is no such child
    const Node& node(uint32_t index) const { return nodes_[index]; }
    uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }
    int32_t find(std::string_view text) const;  // its value, or -1

private:
    std::pmr::vector<Node> nodes_;
};

}  // namespace treadle
