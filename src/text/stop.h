// Stop strings. A StopSet is built at submit and shared by the sequences of a request; a StopMatcher is one
// sequence's place in it. Bytes that could begin a stop string are held back; a match removes the stop string
// and all after it.
//
// The rule: the stop string that is complete first wins, and of those complete at the same byte the longest.
// So the result depends on the text alone and never on how it was cut.
//
// Invariants: a matcher is one number. The state of the automaton is a prefix of a stop string, and that
// prefix is exactly the held text, so nothing is buffered and feeding allocates nothing. Whole characters in,
// whole characters out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "text/byte_trie.h"

namespace treadle {

class StopSet {
public:
    explicit StopSet(std::pmr::memory_resource* memory);

    // LIMIT for more than limits::stop_strings_max strings or longer ones than limits::stop_string_bytes_max,
    // INVALID_ARGUMENT for an empty one, INVALID_UTF8: each names the index. On failure the set is as before.
    [[nodiscard]] Status build(std::span<const std::string_view> stops, Error* error);

    bool empty() const { return nodes_.size() <= 1; }
    size_t longest_bytes() const { return longest_bytes_; }

    // The strings as they were given.
    size_t size() const { return ends_.size(); }
    std::string_view operator[](size_t index) const {
        const size_t start = index == 0 ? 0 : ends_[index - 1];
        return {texts_.data() + start, ends_[index] - start};
    }

private:
    friend class StopMatcher;

    // One state of the automaton, beside the trie's node of the same index. Its string is texts_[text .. text
    // + depth).
    struct State {
        uint32_t fall_back = 0;  // longest proper suffix that is also a prefix of a stop string
        uint32_t text = 0;
        uint16_t depth = 0;
        uint16_t match_bytes = 0;  // longest stop string that ends here; 0: none
    };

    ByteTrie nodes_;
    std::pmr::vector<State> states_;
    std::pmr::vector<char> texts_;     // the stop strings one after another
    std::pmr::vector<uint32_t> ends_;  // where each ends there
    size_t longest_bytes_ = 0;
};

struct StopResult {
    size_t bytes = 0;      // written to `out`
    bool stopped = false;  // a stop string was completed; the rest of the input was dropped
};

class StopMatcher {
public:
    // Writes the text that may be delivered now to `out`, which has room for held_bytes(set) + input.size().
    // After a stop it must not be fed again.
    StopResult feed(const StopSet& set, std::string_view input, char* out);
    // The text ended without a stop: writes what was held, at most set.longest_bytes() - 1 bytes.
    size_t finish(const StopSet& set, char* out);
    size_t held_bytes(const StopSet& set) const;

private:
    uint32_t state_ = 0;
};

}  // namespace treadle
