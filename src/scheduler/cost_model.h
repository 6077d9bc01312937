// How long a pass takes, learned from the passes that ran. The engine adds each pass with the time it took; the scheduler asks
// how many tokens of a prompt it may add so that the pass still ends in time.
//
//     time = per_pass + per_row * rows + per_token * (tokens - rows) + per_token_context * sum over tokens of their context
//
// Rows are the sequences with logits, each of which has one token at least: so per_row is all of a decode, and per_token what
// each further token of a prompt costs, about which decodes say nothing. All four are at least 0.
//
// The fit is recursive least squares in information form (the sums of the normal equations, forgotten over 256 passes), in
// residuals relative to the time, with a prior, and solved exactly with the bounds:
//   - The prior is a belief about each coefficient (first that a pass costs as much as 8 tokens, a token something at least, and
//     4,096 positions of context as much as the token) that moves to what the data say once they determine that coefficient. So a
//     direction that the workload doesn't excite stays where it is, and never blows up.
//   - A pass of a kind that is known (small leverage) and far off counts little: another program disturbed it. Eight in a row on
//     the same side mean that the machine's speed changed: all that was learned is rescaled by their median.
//   - A pass of an unknown kind, such as the first chunk after a thousand decodes, counts in full.
//
// Invariants: deterministic, IEEE + - * / only; no allocation; all state is finite whatever is added.
#pragma once

#include <array>
#include <cstdint>

namespace treadle {

// What a pass computes, as far as its time depends on it.
struct PassShape {
    int32_t rows = 0;    // sequences with logits
    int64_t tokens = 0;  // of all sequences
    int64_t token_context =
        0;  // sum over the tokens of the positions that each attends to, its own among them

    // `count` tokens of one sequence from position `first` on.
    void add(int32_t first, int32_t count, bool logits);
};

class CostModel {
public:
    static constexpr int coefficient_count = 4;

    // A pass of this shape took `ns`. Impossible shapes and times (none, or beyond an hour: a clock jumped) are dropped.
    void add(const PassShape& shape, int64_t ns);

    // The expected time, and one that about 97.5% of the passes stay below: the expected times the margin. 0 before any pass.
    int64_t predict_ns(const PassShape& shape) const;
    int64_t predict_high_ns(const PassShape& shape) const;

    // The most tokens, up to `most`, of a chunk that starts at position `context`, so that base and chunk together stay within
    // the budget by predict_high_ns; 0 if not even the base does, `most` before any pass. Whoever asks rounds to tiles, and
    // must give a waiting prompt a tile now and then where the answer is 0: only a pass can show that a belief was too high.
    int32_t largest_chunk(const PassShape& base, int32_t context, int32_t most, int64_t budget_ns) const;

    bool ready() const { return passes_ >= passes_ready; }
    int64_t passes() const { return passes_; }
    int64_t dropped() const { return dropped_; }

    // Running mean of |measured - predicted| / max(measured, predicted), predicted before the pass was added. 0 before any.
    double error() const { return error_; }
    // What predict_high_ns multiplies with, at least 1.
    double margin() const { return margin_; }
    // Nanoseconds: per pass, row, token and token * context.
    const std::array<double, coefficient_count>& coefficients() const { return coefficients_; }

private:
    using Vector = std::array<double, coefficient_count>;
    using Matrix = std::array<Vector, coefficient_count>;
    static constexpr int64_t passes_ready = 8;
    static constexpr int ratios_kept = 256;
    static constexpr int streak_length = 8;

    bool speed_changed(double residual, double ratio);
    void rescale(double ratio);
    void observe_ratio(double ratio);
    void accumulate(const Vector& scaled, double target, double weight);
    void solve();
    void move_beliefs(const Vector& features);
    Vector belief_weights() const;

    Vector coefficients_{};
    Vector beliefs_{};        // what coefficients are where the data do not say
    double belief_unit_ = 0;  // nanoseconds of one token, while a belief is still the first one
    std::array<int32_t, coefficient_count> determined_{};  // passes after which the data determined it

    Matrix information_{};  // sums over passes of weight * scaled * scaled^T, where scaled = features / time
    Vector evidence_{};     // and of weight * scaled * (measured / time)
    Matrix inverse_{};      // of information plus the beliefs' weights

    int64_t passes_ = 0;
    int64_t dropped_ = 0;
    double error_ = 0;
    double spread_ = 0;  // mean |residual| of passes of a known kind, cut off where they are disturbed

    std::array<double, streak_length>
        streak_{};  // measured / predicted of the last passes, all far off on one side
    int streak_count_ = 0;

    std::array<float, ratios_kept> ratios_{};  // a ring of measured / predicted of known kinds of passes
    int ratio_count_ = 0;
    int ratio_next_ = 0;
    double margin_ = 1;
};

}  // namespace treadle
