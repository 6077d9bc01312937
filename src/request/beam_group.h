// The hypotheses of a beam search, which is one request. Those that go on are its sequences, each with its tokens and blocks;
// this holds what else belongs to them, those that are over, and how far the best have been told. The scheduler sees to it that
// the sequences of a group are admitted and preempted together; the engine's sampling fills in candidates, its commit selects.
//
//     by_rank   2   0   3             sequences of the live hypotheses, best first; sequence 1 has none at the moment
//     live     [0] [1] [2] [3]        by sequence: sum, log-probabilities of its own tokens, candidates of its last row
//     kept     [ended] [ended]        the best `width` of those that are over
//     best      1   0                 at the end: places in kept, best first; sequence i then has the tokens of kept[best[i]]
//
// Invariants: at most `width` live and `width` kept. A live hypothesis is its tokens and their log-probabilities: what it has in
// the cache, and its candidates, may be lost and are computed again. Everything is allocated when the request is submitted.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "base/memory.h"
#include "sampling/beam.h"
#include "text/text_stream.h"

namespace treadle {

// What a sequence of a beam search does in the next pass; a sequence of any other request is always due.
enum class BeamRow : uint8_t {
    due,        // its row is still to be computed
    collected,  // it has its candidates, and waits for those of its siblings
    idle        // there is no hypothesis in its place
};

struct BeamGroup {
    // tokens_max: that the search can choose, one after another. `told`: hypotheses that the host wants, at most width.
    // text_bytes_max: that a token lets go; 0: what the hypotheses say ends none of them.
    BeamGroup(Memory* memory, int32_t width, int32_t told, float length_penalty, int32_t tokens_max,
              size_t text_bytes_max);

    struct Live {
        explicit Live(Memory* memory) : logprobs(memory) {}
        std::pmr::vector<float> logprobs;  // of the tokens that the search chose
        float sum = 0;                     // of these
        TextStream text;                   // what it says, where a stop string may end it
        int32_t candidates = 0;            // of its last row
    };
    struct Kept {
        explicit Kept(Memory* memory) : tokens(memory), logprobs(memory) {}
        std::pmr::vector<int32_t> tokens;  // that the search chose
        std::pmr::vector<float> logprobs;
        float score = 0;
        int32_t serial = 0;           // earlier ones are smaller
        BeamEnd end = BeamEnd::none;  // none: by its length, or that of the search
    };

    int32_t width() const { return static_cast<int32_t>(live.size()); }
    std::span<BeamCandidate> candidate_room(int32_t sequence);

    // Chooses among the candidates of all live hypotheses: children of `tokens` tokens and those that end, in order. A choice's
    // parent is a rank. Valid until the next call.
    std::span<const BeamChoice> select(int32_t tokens);

    // The hypothesis of a sequence is over, with `tokens`: by the choice `end`, or by its length if that is null. Of more than
    // `width` the best are kept, of equals the earlier.
    void keep(int32_t sequence, std::span<const int32_t> tokens, const BeamChoice* end);
    int32_t ends_wanted() const { return width() - kept_count_; }

    // The best `told` of those kept will stay the best, whatever becomes of the live ones, which have `tokens` tokens now.
    bool settled(int32_t tokens) const;

    void rank();  // fills `best` with as many as the host wants, or as there are

    float length_penalty;
    int32_t told;
    int32_t tokens_max;
    std::pmr::vector<Live> live;
    std::pmr::vector<int32_t> by_rank;
    std::pmr::vector<Kept> kept;  // (width), of which the first so many are filled as there were; see keep
    std::pmr::vector<int32_t> best;
    AlignedArray<char> text_room;  // for what a token lets go; only a step uses it

    // What the host has been told after the end: all before `sequence`, and of that one the tokens before `token`.
    struct Telling {
        int32_t sequence = 0;
        int32_t token = 0;
        bool under_way = false;
    } telling;

private:
    int32_t kept_count_ = 0;
    int32_t serials_ = 0;
    AlignedArray<BeamCandidate> candidates_;  // (width, beam_candidates_max)
    AlignedArray<BeamParent> parents_;        // (width)
    AlignedArray<BeamChoice> choices_;        // (beam_choices_max)
};

}  // namespace treadle
