// Saving a sequence and restoring it: between what the engine holds and the state that session.h writes and reads. From any
// thread, also while a step runs: only what may change is looked at under the lock, the tokens are copied beside it.
//
//     the answer's text   ├── delivered ──┼── told, but not polled ──┼── held back ──┼── still to be generated
//     of the restored     │   never again │   its first events       │   as it was   │   as it would have been
//
// Invariant: what the host had polled when it saved, and what it polls of the restored request, are together the bytes that it
// polls of one that nobody disturbed.
#include "engine/session.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "engine/engine.h"
#include "engine/text_replay.h"

namespace treadle {
namespace {

using Number = unsigned long long;  // what a format takes for a uint64_t

static_assert(static_cast<int32_t>(FinishReason::deadline) == session_finish_reason_max);
static_assert(static_cast<int32_t>(FinishReason::error) == session_finish_reason_error);

// How a session's sequence had ended, or has to: an answer whose first tokens were saved may be full with them.
FinishReason end_of(const SessionState& state) {
    const auto generated = static_cast<int64_t>(state.tokens.size()) - state.prompt_tokens;
    if (state.finish_reason != 0) return static_cast<FinishReason>(state.finish_reason);
    return state.max_tokens >= 0 && generated >= state.max_tokens ? FinishReason::length : FinishReason::none;
}

Status read_stops(const SessionState& state, Memory* memory, RequestParams* out, Error* error) {
    out->stop_tokens = state.stop_tokens;
    std::pmr::vector<std::string_view> strings(memory);
    strings.reserve(state.stop_strings.size());
    for (const std::pmr::string& text : state.stop_strings) strings.push_back(text);
    return out->stops.build(strings, error);
}

// Bytes of the longest beginning of `text`, of at most `most` bytes, that ends with a whole character.
size_t whole_characters(std::string_view text, size_t most) {
    if (text.size() <= most) return text.size();
    size_t bytes = most;
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) bytes--;
    return bytes;
}

}  // namespace

// ---- Saving

Status Engine::save_session(uint64_t id, int32_t index, std::optional<int32_t> position, SessionState* out,
                            Error* error) {
    free_the_buried();
    Borrowed borrowed;
    TREADLE_TRY(borrow(id, index, position, &borrowed, error));
    if (borrowed.request->params.pin)
        return fail(error, Status::INVALID_ARGUMENT, "the request is a pin, which has no answer to save");
    if (borrowed.is_searching)
        return fail(error, Status::INVALID_ARGUMENT, "the request is a beam search that is not over yet");
    const Sequence& sequence = *borrowed.sequence;
    const RequestParams& params = borrowed.request->params;

    out->model_fingerprint = model_.fingerprint;
    std::memset(out->numerics_id, 0, sizeof out->numerics_id);
    std::memcpy(out->numerics_id, model_.numerics_id,
                std::min(std::strlen(model_.numerics_id), sizeof out->numerics_id - 1));
    out->tokens.assign(sequence.tokens.begin(), sequence.tokens.begin() + borrowed.position);
    out->prompt_tokens = std::min(sequence.prompt_tokens, borrowed.position);
    out->sample_index = sequence.sample_index;
    out->forks = borrowed.forks;
    out->sampling = params.sampling;
    out->max_tokens = sequence.wanted_limit == INT32_MAX ? -1 : sequence.wanted_limit - out->prompt_tokens;
    out->ignore_end = params.ignore_end;
    out->stop_tokens = params.stop_tokens;
    out->stop_strings.clear();
    for (size_t i = 0; i < params.stops.size(); i++) out->stop_strings.emplace_back(params.stops[i]);

    // An answer that failed is no finished one: with another engine it may go on.
    const bool as_it_is = !position && borrowed.finish_reason != FinishReason::error;
    out->finish_reason = as_it_is ? static_cast<int32_t>(borrowed.finish_reason) : 0;
    out->delivered_bytes = as_it_is
                               ? borrowed.delivered_bytes
                               : std::min(borrowed.delivered_bytes, told_by(sequence, borrowed.position));
    return Status::OK;
}

// Bytes of text that the tokens before `position` had let go when the last of them came.
uint64_t Engine::told_by(const Sequence& sequence, int32_t position) const {
    if (position <= sequence.prompt_tokens) return 0;
    const std::span<const int32_t> tokens(sequence.tokens.data(), static_cast<size_t>(position));
    std::pmr::vector<char> scratch(text_scratch_.size(), &memory_.scratch);
    TextStream stream;
    uint64_t told = 0;
    replay_text(*model_.vocabulary, sequence.request->params, tokens,
                static_cast<size_t>(sequence.prompt_tokens), true, scratch, &stream,
                [&](std::string_view text) { told += text.size(); });
    return told;
}

// ---- Restoring

Status Engine::restore_session(const SessionState& state, const RestoreParams& asked, uint64_t* id,
                               Error* error) {
    free_the_buried();
    TREADLE_TRY(
        check_session(state, model_.fingerprint, model_.numerics_id, model_.vocabulary->size(), error));
    const auto length = static_cast<int32_t>(state.tokens.size());
    const int32_t wanted_limit = limit_wanted(state.prompt_tokens, state.max_tokens);
    const FinishReason over = end_of(state);
    int32_t limit = length;
    if (over == FinishReason::none) TREADLE_TRY(limit_of(length, wanted_limit, &limit, error));

    RequestParams params(&memory_.other);
    params.sampling = state.sampling;
    if (asked.logprobs >= 0) params.sampling.logprobs = asked.logprobs;
    TREADLE_TRY(check_sampling(params.sampling, error));
    TREADLE_TRY(read_stops(state, &memory_.other, &params, error));
    params.generated_tail = length - state.prompt_tokens;
    params.ignore_end = state.ignore_end;
    params.keep = asked.keep;
    params.priority = asked.priority;
    params.deadline_us = asked.deadline_us;
    params.scope = scope_of(asked.scope);
    params.user_data = asked.user_data;
    std::pmr::vector<int32_t> tokens(state.tokens, &memory_.other);
    Owned<Request> request = make_request(std::move(params), std::move(tokens), limit, wanted_limit);
    request->over = over;
    request->forks = state.forks;
    Sequence* sequence = request->sequences.front().get();
    sequence->sample_index = state.sample_index;
    if (over != FinishReason::none) sequence->computed_most = length;  // nothing of it will be computed
    TREADLE_TRY(tell_again(sequence, over, state.delivered_bytes, error));
    return enter(std::move(request), id, error);
}

// Brings the text to where it was. What was let go after the first delivered_bytes waits to be told: in pieces no longer than a
// token's text, so that a host's buffer that takes any token takes them too.
Status Engine::tell_again(Sequence* sequence, FinishReason over, uint64_t delivered_bytes,
                          Error* error) const {
    const StopSet& stops = sequence->request->params.stops;
    EventRoom& room = sequence->room;
    std::pmr::vector<char> scratch(text_scratch_.size(), &memory_.scratch);
    std::pmr::vector<char> waiting(&memory_.scratch);
    // The best of a beam search are told as fast as they are polled, so one that is over may have told any part of its text. One
    // that goes on has told no more than there is room for beside the text of its end.
    const size_t room_bytes =
        over != FinishReason::none ? SIZE_MAX : room.text_bytes_max() - room.token_text_bytes_max();
    bool fits = true;
    const auto tell = [&](std::string_view text) {
        const uint64_t before = sequence->told_bytes;
        sequence->told_bytes += text.size();
        if (before < delivered_bytes)
            text.remove_prefix(
                static_cast<size_t>(std::min<uint64_t>(delivered_bytes - before, text.size())));
        fits = fits && text.size() <= room_bytes - waiting.size();
        if (fits) waiting.insert(waiting.end(), text.begin(), text.end());
    };
    replay_text(*model_.vocabulary, sequence->request->params, sequence->tokens,
                static_cast<size_t>(sequence->prompt_tokens), over == FinishReason::none, scratch,
                &sequence->text, tell);
    if (over != FinishReason::none)
        tell({scratch.data(), sequence->text.finish(stops, scratch.data()).bytes});

    const auto told_bytes = static_cast<Number>(sequence->told_bytes);
    const bool in_a_character = !waiting.empty() && (static_cast<unsigned char>(waiting[0]) & 0xc0) == 0x80;
    if (delivered_bytes > sequence->told_bytes || in_a_character || !fits)
        return fail(error, Status::CORRUPT, "the session's delivered_bytes is %llu, %s %llu",
                    static_cast<Number>(delivered_bytes),
                    in_a_character ? "in the middle of a character of its text of"
                    : fits         ? "more than its text of"
                                   : "more than an engine keeps before its text's",
                    told_bytes);
    room.make_room_for(waiting.size(), &memory_.other);
    std::string_view rest(waiting.data(), waiting.size());
    while (!rest.empty()) {
        const size_t bytes = whole_characters(rest, room.token_text_bytes_max());
        EventNode* event = room.push(EventKind::text, rest.substr(0, bytes));
        event->sequence = sequence;
        event->position = sequence->length();
        rest.remove_prefix(bytes);
    }
    return Status::OK;
}

}  // namespace treadle
