// An Aho–Corasick automaton over the trie of stop strings.
#include "text/stop.h"

#include <cstring>

#include "base/limits.h"
#include "text/utf8.h"

namespace treadle {

StopSet::StopSet(std::pmr::memory_resource* memory)
    : nodes_(memory), states_(memory), texts_(memory), ends_(memory) {}

Status StopSet::build(std::span<const std::string_view> stops, Error* error) {
    if (stops.size() > static_cast<size_t>(limits::stop_strings_max)) {
        return fail(error, Status::LIMIT, "stop strings: %zu of them, the most is %d", stops.size(),
                    limits::stop_strings_max);
    }
    size_t total_bytes = 0;
    for (size_t i = 0; i < stops.size(); ++i) {
        if (stops[i].empty()) return fail(error, Status::INVALID_ARGUMENT, "stop string %zu is empty", i);
        if (stops[i].size() > limits::stop_string_bytes_max) {
            return fail(error, Status::LIMIT, "stop string %zu has %zu bytes, the most is %u", i,
                        stops[i].size(), limits::stop_string_bytes_max);
        }
        if (const size_t offset = find_invalid_utf8(stops[i]); offset != utf8_valid) {
            return fail(error, Status::INVALID_UTF8,
                        "stop string %zu: byte %zu begins no valid UTF-8 character", i, offset);
        }
        total_bytes += stops[i].size();
    }

    std::pmr::memory_resource* memory = texts_.get_allocator().resource();
    std::pmr::vector<TrieEntry> entries(memory);
    std::pmr::vector<char> texts(memory);
    texts.reserve(total_bytes);
    std::pmr::vector<uint32_t> ends(memory);
    ends.reserve(stops.size());
    size_t longest = 0;
    for (const std::string_view stop : stops) {
        entries.push_back({stop, static_cast<int32_t>(texts.size())});  // the value is where its text lies
        texts.insert(texts.end(), stop.begin(), stop.end());
        ends.push_back(static_cast<uint32_t>(texts.size()));
        if (stop.size() > longest) longest = stop.size();
    }
    ByteTrie nodes(memory);
    nodes.build(entries);

    // A node's string is a prefix of each stop string below it. Values go up from the leaves, so walk the
    // nodes backwards.
    std::pmr::vector<State> states(nodes.size(), memory);
    for (uint32_t i = nodes.size(); i-- > 0;) {
        const ByteTrie::Node& node = nodes.node(i);
        states[i].text =
            static_cast<uint32_t>(node.child_count > 0 ? states[node.first_child].text : node.value);
    }
    if (stops.empty()) states[0].text = 0;
    // Levels come in order, so the fall-back of a node is known before its children need it.
    for (uint32_t i = 0; i < nodes.size(); ++i) {
        const ByteTrie::Node& node = nodes.node(i);
        State& state = states[i];
        state.match_bytes = node.value >= 0 && i > 0 ? state.depth : states[state.fall_back].match_bytes;
        for (uint32_t c = node.first_child; c < node.first_child + node.child_count; ++c) {
            states[c].depth = static_cast<uint16_t>(state.depth + 1);
            if (i == 0) continue;  // the children of the root fall back to it
            uint32_t from = state.fall_back;
            uint32_t target = nodes.child(from, nodes.node(c).byte);
            while (target == ByteTrie::none && from != 0) {
                from = states[from].fall_back;
                target = nodes.child(from, nodes.node(c).byte);
            }
            states[c].fall_back = target == ByteTrie::none ? 0 : target;
        }
    }
    nodes_ = std::move(nodes);
    states_ = std::move(states);
    texts_ = std::move(texts);
    ends_ = std::move(ends);
    longest_bytes_ = longest;
    return Status::OK;
}

size_t StopMatcher::held_bytes(const StopSet& set) const {
    return set.empty() ? 0 : set.states_[state_].depth;
}

StopResult StopMatcher::feed(const StopSet& set, std::string_view input, char* out) {
    StopResult result;
    if (set.empty()) {
        if (!input.empty()) std::memcpy(out, input.data(), input.size());
        result.bytes = input.size();
        return result;
    }
    for (const char c : input) {
        const auto byte = static_cast<uint8_t>(c);
        const StopSet::State before = set.states_[state_];
        uint32_t next = set.nodes_.child(state_, byte);
        while (next == ByteTrie::none && state_ != 0) {
            state_ = set.states_[state_].fall_back;
            next = set.nodes_.child(state_, byte);
        }
        state_ = next == ByteTrie::none ? 0 : next;

        // Held text and the byte are one string; its last `keep` bytes stay, the rest is let go.
        const StopSet::State& now = set.states_[state_];
        const size_t keep = now.match_bytes > 0 ? now.match_bytes : now.depth;
        size_t release = before.depth + size_t{1} - keep;
        const size_t release_held = release < before.depth ? release : before.depth;
        if (release_held > 0) std::memcpy(out + result.bytes, set.texts_.data() + before.text, release_held);
        result.bytes += release_held;
        release -= release_held;
        if (release > 0) out[result.bytes++] = c;
        if (now.match_bytes > 0) {
            result.stopped = true;
            state_ = 0;
            return result;
        }
    }
    return result;
}

size_t StopMatcher::finish(const StopSet& set, char* out) {
    const size_t held = held_bytes(set);
    if (held > 0) std::memcpy(out, set.texts_.data() + set.states_[state_].text, held);
    state_ = 0;
    return held;
}

}  // namespace treadle
