// Beam search in the engine. A row of it brings candidates instead of a token; when the rows of all its hypotheses exist, commit
// selects, and the sequences become the children: their tables share what their parents have computed. All that the host is told
// comes at the end, as fast as polls make room for it.
//
// Invariant: as long as it runs, a sequence of the group is a hypothesis or idle; after its end, sequence i is the ith best.
#include <algorithm>
#include <array>
#include <limits>

#include "base/limits.h"
#include "engine/engine.h"

namespace treadle {
namespace {

std::span<const int32_t> own_tokens(const Sequence& sequence) {
    return std::span<const int32_t>(sequence.tokens).subspan(static_cast<size_t>(sequence.given_tokens));
}

void set_own_tokens(Sequence* sequence, std::span<const int32_t> tokens) {
    sequence->tokens.resize(static_cast<size_t>(sequence->given_tokens));
    sequence->tokens.insert(sequence->tokens.end(), tokens.begin(), tokens.end());
}

}  // namespace

// Refuses what could never fit; otherwise its limit is what it may need in the worst case.
Status Engine::limit_of_beams(int32_t width, int32_t prompt_tokens, bool as_many_as_fit, int32_t* limit,
                              Error* error) const {
    if (width > params_.max_sequences)
        return fail(error, Status::INVALID_ARGUMENT,
                    "beam_width is %d, max_sequences is %d: all hypotheses are in the passes together", width,
                    params_.max_sequences);
    const int32_t tokens = as_many_as_fit ? prompt_tokens + 1 : *limit;
    const int32_t shared = prompt_tokens / limits::kv_block_tokens;
    const int64_t needed = beam_blocks(width, prompt_tokens, tokens);
    if (needed > cache_.total())
        return fail(
            error, Status::POOL_TOO_SMALL,
            "beam_width is %d: so many hypotheses of %d tokens need up to %lld blocks (%d of the prompt, "
            "and %lld each), kv_blocks is %d",
            width, tokens, static_cast<long long>(needed), shared,
            static_cast<long long>((needed - shared) / width), cache_.total());
    if (as_many_as_fit) {
        const int32_t each = (cache_.total() - shared) / width - 1;
        *limit = std::min(*limit, (shared + each) * limits::kv_block_tokens + 1);
    }
    return Status::OK;
}

void Engine::make_beams(Request* request) const {
    const RequestParams& params = request->params;
    const Sequence& first = *request->sequences.front();
    request->beams = make_owned<BeamGroup>(&memory_.other, &memory_.other, params.beam_width, params.samples,
                                           params.length_penalty, first.limit - first.given_tokens,
                                           params.stops.empty() ? 0 : text_scratch_.size());
    request->beams->live.front().text = first.text;
    for (size_t i = 1; i < request->sequences.size(); i++) request->sequences[i]->beam_row = BeamRow::idle;
}

// While the tokens of a pass are chosen; no lock is held.
Status Engine::collect_candidates(const Sequence& sequence, const RowResult& row) {
    if (row.usable == 0) return Status::NOT_A_NUMBER;
    BeamGroup& beams = *sequence.request->beams;
    beams.live[static_cast<size_t>(sequence.index)].candidates = beam_candidates(
        row, beams.width(), [&](int32_t token) { return end_of_beam(sequence, token); },
        beams.candidate_room(sequence.index));
    return Status::OK;
}

// How a token would end the hypothesis of a sequence.
BeamEnd Engine::end_of_beam(const Sequence& sequence, int32_t token) const {
    if (ends(sequence, token)) return BeamEnd::by_token;
    BeamGroup& beams = *sequence.request->beams;
    TextStream text = beams.live[static_cast<size_t>(sequence.index)].text;
    return says_stop(beams, sequence.request->params.stops, token, &text) ? BeamEnd::by_text : BeamEnd::none;
}

bool Engine::says_stop(BeamGroup& beams, const StopSet& stops, int32_t token, TextStream* text) const {
    if (stops.empty() || model_.vocabulary->is_control(token)) return false;
    return text->push(stops, model_.vocabulary->token_bytes(token), beams.text_room.data()).stopped;
}

// A row is done; the last of its length makes for a selection.
void Engine::commit_beam(Sequence* sequence, StepReport* report) {
    Request* request = sequence->request;
    sequence->beam_row = BeamRow::collected;
    const bool all = std::none_of(request->sequences.begin(), request->sequences.end(),
                                  [](const Owned<Sequence>& one) { return one->beam_row == BeamRow::due; });
    if (!all) return;

    BeamGroup& beams = *request->beams;
    const int32_t tokens = static_cast<int32_t>(own_tokens(*sequence).size()) + 1;
    const std::span<const BeamChoice> choices = beams.select(tokens);
    for (const BeamChoice& choice : choices) {
        const int32_t parent = beams.by_rank[static_cast<size_t>(choice.parent)];
        if (choice.ends())
            beams.keep(parent, own_tokens(*request->sequences[static_cast<size_t>(parent)]), &choice);
    }
    const bool full = sequence->length() + 1 == sequence->limit;
    const bool enough = beams.ends_wanted() == 0;
    if (!enough) place_children(request, choices);
    if (!enough && !full && !beams.by_rank.empty() && !beams.settled(tokens)) return;
    if (!enough && full)
        for (const int32_t child : beams.by_rank)
            beams.keep(child, own_tokens(*request->sequences[static_cast<size_t>(child)]), nullptr);
    tell_best(request, report);
}

// The first child of each parent stays in its sequence, the others go where there is no parent; then all get their tokens.
void Engine::place_children(Request* request, std::span<const BeamChoice> choices) {
    BeamGroup& beams = *request->beams;
    struct Child {
        const BeamChoice* choice;
        int32_t parent;
        int32_t place;
    };
    std::array<Child, limits::beam_width_max> children;
    std::array<bool, limits::beam_width_max> taken{};
    size_t count = 0;
    for (const BeamChoice& choice : choices) {
        if (choice.ends()) continue;
        const int32_t parent = beams.by_rank[static_cast<size_t>(choice.parent)];
        bool& stays = taken[static_cast<size_t>(parent)];
        children[count++] = {&choice, parent, stays ? -1 : parent};
        stays = true;
    }
    const std::span<Child> placed{children.data(), count};
    size_t next = 0;
    for (Child& child : placed) {
        if (child.place >= 0) continue;
        while (taken[next]) next++;
        taken[next] = true;
        child.place = static_cast<int32_t>(next);
        copy_beam(*request->sequences[static_cast<size_t>(child.parent)], request->sequences[next].get());
    }
    for (size_t i = 0; i < request->sequences.size(); i++)
        if (!taken[i]) clear_beam(request->sequences[i].get());
    beams.by_rank.clear();
    for (const Child& child : placed) {
        const auto place = static_cast<size_t>(child.place);
        request->sequences[place]->tokens.push_back(child.choice->token);
        request->sequences[place]->beam_row = BeamRow::due;
        beams.live[place].logprobs.push_back(child.choice->logprob);
        beams.live[place].sum = child.choice->sum;
        says_stop(beams, request->params.stops, child.choice->token, &beams.live[place].text);
        beams.by_rank.push_back(child.place);
    }
}

void Engine::copy_beam(const Sequence& from, Sequence* to) {
    BeamGroup& beams = *to->request->beams;
    const auto& logprobs = beams.live[static_cast<size_t>(from.index)].logprobs;
    beams.live[static_cast<size_t>(to->index)].logprobs.assign(logprobs.begin(), logprobs.end());
    beams.live[static_cast<size_t>(to->index)].text = beams.live[static_cast<size_t>(from.index)].text;
    set_own_tokens(to, own_tokens(from));
    cache_.share(from.cache, &to->cache);
    to->computed_most = from.computed_most;
    to->state = from.state;
}

void Engine::clear_beam(Sequence* sequence) {
    sequence->request->beams->live[static_cast<size_t>(sequence->index)].logprobs.clear();
    set_own_tokens(sequence, {});
    cache_.release(&sequence->cache);
    sequence->beam_row = BeamRow::idle;
}

// ---- The end

// The best hypotheses become the first sequences, none of which is in a pass.
void Engine::tell_best(Request* request, StepReport* report) {
    BeamGroup& beams = *request->beams;
    beams.rank();
    for (size_t i = 0; i < beams.best.size(); i++) {
        const BeamGroup::Kept& kept = beams.kept[static_cast<size_t>(beams.best[i])];
        Sequence* sequence = request->sequences[i].get();
        set_own_tokens(sequence, kept.tokens);
        report->tokens_produced += static_cast<int32_t>(kept.tokens.size());
        recorder_.produced_at_once(static_cast<int32_t>(kept.tokens.size()));
    }
    end_beams(request, FinishReason::length);
}

// All sequences end at once: those that are told for reasons of their own, others for this one.
void Engine::end_beams(Request* request, FinishReason reason) {
    BeamGroup& beams = *request->beams;
    deadlines_.remove(request);
    for (const Owned<Sequence>& sequence : request->sequences) {
        const auto i = static_cast<size_t>(sequence->index);
        const BeamEnd end =
            i < beams.best.size() ? beams.kept[static_cast<size_t>(beams.best[i])].end : BeamEnd::none;
        sequence->finish_reason = end == BeamEnd::by_token  ? FinishReason::end
                                  : end == BeamEnd::by_text ? FinishReason::stop_string
                                                            : reason;
        sequence->failure =
            sequence->finish_reason == FinishReason::error ? request->failure.status : Status::OK;
    }
    beams.telling.under_way = !request->released;
    tell_beams(request);
    for (const Owned<Sequence>& sequence : request->sequences) {
        sequence->state = SequenceState::finished;
        promised_blocks_ -= sequence->blocks_most();
        request->live--;
        recorder_.finished(*sequence, request->live == 0);
        if (!sequence->in_pass) leave(sequence.get());
    }
}

// Goes on telling as far as there is room for the events.
void Engine::tell_beams(Request* request) {
    BeamGroup& beams = *request->beams;
    BeamGroup::Telling& told = beams.telling;
    while (told.under_way) {
        Sequence* sequence = request->sequences[static_cast<size_t>(told.sequence)].get();
        if (!sequence->room.has_room()) return;
        if (told.token < told_length(*sequence) - sequence->given_tokens) {
            tell_beam_token(sequence, told.token++);
            continue;
        }
        push_held_text(sequence);
        EventNode* event = push_event(sequence, EventKind::finished, {});
        event->position = told_length(*sequence);
        const auto rank = static_cast<size_t>(told.sequence++);
        event->logprob = rank < beams.best.size() ? beams.kept[static_cast<size_t>(beams.best[rank])].score
                                                  : -std::numeric_limits<float>::infinity();
        event->last = told.sequence == request->params.samples;
        told.token = 0;
        told.under_way = !event->last;
    }
}

void Engine::tell_beam_token(Sequence* sequence, int32_t index) {
    const BeamGroup& beams = *sequence->request->beams;
    const BeamGroup::Kept& kept =
        beams.kept[static_cast<size_t>(beams.best[static_cast<size_t>(sequence->index)])];
    const int32_t token = kept.tokens[static_cast<size_t>(index)];
    const bool end = kept.end == BeamEnd::by_token && static_cast<size_t>(index) + 1 == kept.tokens.size();
    StopResult text;
    if (!end && !model_.vocabulary->is_control(token))
        text = sequence->text.push(sequence->request->params.stops, model_.vocabulary->token_bytes(token),
                                   text_scratch_.data());
    EventNode* event = push_event(sequence, EventKind::token, {text_scratch_.data(), text.bytes});
    event->position = sequence->given_tokens + index;
    event->token = token;
    event->logprob = kept.logprobs[static_cast<size_t>(index)];
}

}  // namespace treadle
