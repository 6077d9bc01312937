// What treadle_bench is made of: prompts that both sides share, requests that decode together, contexts that are kept, frames.
//
// Invariant: the tokens of a prompt are a function of (place in the prompt, request, vocabulary) that peer_llama.py shares, so
// both sides compute the same rows. Nothing but the engine's own calls lies between two looks at the clock.
#pragma once

#include <memory>

#include "serving/workload.h"

namespace treadle::bench {

constexpr int32_t batch_tokens_max = 512;  // of one pass, the peer's n_ubatch likewise

// Different from request to request, so that no prefix is common.
std::vector<int32_t> shared_prompt(int32_t tokens, int32_t request, int32_t vocabulary);

// An engine's settings with room for exactly these requests.
engine_params room_for(int32_t sequences, int32_t tokens);

// Requests 0 .. sequences - 1 at once on a fresh engine.
Json run_decode(const LoadedModel& model, int32_t sequences, int32_t prompt, int32_t new_tokens);

// How an engine of kept contexts is made beyond the room for them.
struct KeptOptions {
    int32_t key_type = ENGINE_KV_F16, value_type = ENGINE_KV_F16;
    bool phases = false;  // generate() gives the engine's trace
    bool cold =
        false;  // generate() empties the processor's caches before each step, outside the time it takes
};

// Contexts that stay in the cache of one engine, so that generation after long prompts is measured again and again without
// computing them again. fill() computes the next prompt; generate() goes on from the first so many tokens of those that were
// filled, more than one sequence of each where there are more sequences than that, and measures the passes that make a token for
// all of them.
class KeptContexts {
public:
    KeptContexts(const LoadedModel& model, int32_t sequences, int32_t prompt, int32_t new_tokens,
                 const KeptOptions& options);
    double token_bytes() const;  // of the cache, per position
    Json fill();
    Json generate(int32_t sequences, int32_t prompt);

private:
    engine_params params() const;
    void empty_caches();

    const LoadedModel& model_;
    int32_t sequences_, prompt_, new_tokens_;
    KeptOptions options_;
    int32_t filled_ = 0;
    std::vector<char> cold_;
    Host host_;
};

// One sequence that generates beside a game's frames: each frame the host does its work, then steps with this budget; with a
// budget of 0 there is no engine.
struct FrameTask {
    int32_t frames;
    int32_t frame_us;
    int32_t sweeps;
    int32_t budget_us;
    int32_t prompt;
};
Json run_frame_task(const LoadedModel& model, const FrameTask& task);

}  // namespace treadle::bench
