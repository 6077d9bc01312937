// What a beam search keeps, and in which order.
#include "request/beam_group.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "base/limits.h"

namespace treadle {
namespace {

bool better(const BeamGroup::Kept& left, const BeamGroup::Kept& right) {
    return left.score != right.score ? left.score > right.score : left.serial < right.serial;
}

}  // namespace

BeamGroup::BeamGroup(Memory* memory, int32_t width, int32_t told_to_host, float penalty, int32_t most_tokens,
                     size_t text_bytes_max)
    : length_penalty(penalty), told(told_to_host), tokens_max(most_tokens), live(memory), by_rank(memory),
      kept(memory), best(memory), text_room(memory, text_bytes_max),
      candidates_(memory, static_cast<size_t>(width) * beam_candidates_max(width)),
      parents_(memory, static_cast<size_t>(width)), choices_(memory, beam_choices_max(width)) {
    const auto most = static_cast<size_t>(width);
    live.reserve(most);
    kept.reserve(most);
    for (size_t i = 0; i < most; i++) {
        live.emplace_back(memory).logprobs.reserve(static_cast<size_t>(tokens_max));
        kept.emplace_back(memory).logprobs.reserve(static_cast<size_t>(tokens_max));
        kept.back().tokens.reserve(static_cast<size_t>(tokens_max));
    }
    by_rank.reserve(most);
    by_rank.push_back(0);  // the prompt
    best.reserve(most);
}

std::span<BeamCandidate> BeamGroup::candidate_room(int32_t sequence) {
    const size_t most = beam_candidates_max(width());
    return {candidates_.data() + static_cast<size_t>(sequence) * most, most};
}

std::span<const BeamChoice> BeamGroup::select(int32_t tokens) {
    size_t count = 0;
    for (const int32_t sequence : by_rank) {
        const Live& parent = live[static_cast<size_t>(sequence)];
        parents_[count++] = {parent.sum,
                             candidate_room(sequence).first(static_cast<size_t>(parent.candidates))};
    }
    return select_beams({parents_.data(), count}, width(), ends_wanted(), tokens, length_penalty,
                        {choices_.data(), choices_.size()});
}

void BeamGroup::keep(int32_t sequence, std::span<const int32_t> tokens, const BeamChoice* end) {
    const Live& from = live[static_cast<size_t>(sequence)];
    const float score = end != nullptr
                            ? end->score
                            : beam_score(from.sum, static_cast<int32_t>(tokens.size()), length_penalty);
    const int32_t serial = serials_++;
    Kept* place;
    if (kept_count_ < width()) {
        place = &kept[static_cast<size_t>(kept_count_++)];
    } else {
        place = &*std::max_element(kept.begin(), kept.end(), better);  // the worst
        if (score <= place->score) return;
    }
    place->tokens.assign(tokens.begin(), tokens.end());
    place->logprobs.assign(from.logprobs.begin(), from.logprobs.end());
    if (end != nullptr) {
        place->tokens.push_back(end->token);
        place->logprobs.push_back(end->logprob);
    }
    place->score = score;
    place->serial = serial;
    place->end = end != nullptr ? end->end : BeamEnd::none;
}

bool BeamGroup::settled(int32_t tokens) const {
    if (kept_count_ < told) return false;
    std::array<float, limits::beam_width_max> scores;
    for (int32_t i = 0; i < kept_count_; i++)
        scores[static_cast<size_t>(i)] = kept[static_cast<size_t>(i)].score;
    std::nth_element(scores.begin(), scores.begin() + (told - 1), scores.begin() + kept_count_,
                     std::greater<>());
    const float worst = scores[static_cast<size_t>(told - 1)];
    return std::all_of(by_rank.begin(), by_rank.end(), [&](int32_t sequence) {
        const float sum = live[static_cast<size_t>(sequence)].sum;
        return best_score_ahead(sum, tokens, tokens_max, length_penalty) <= worst;
    });
}

void BeamGroup::rank() {
    best.resize(static_cast<size_t>(kept_count_));
    std::iota(best.begin(), best.end(), 0);
    std::sort(best.begin(), best.end(), [this](int32_t left, int32_t right) {
        return better(kept[static_cast<size_t>(left)], kept[static_cast<size_t>(right)]);
    });
    if (kept_count_ > told) best.resize(static_cast<size_t>(told));
}

}  // namespace treadle
