// What must hold of the time that passes take where the host has a target for it: by what the engine has learned of its passes,
// and by what it could have learned.
#include <algorithm>

#include "simulator.h"

namespace treadle::test {
namespace {

using number_t = unsigned long long;

// The smallest piece of a prompt that a pass gets however little time there is.
constexpr int32_t tile_tokens = 8;

// Passes after which the cost of each is known, where they take what they must.
constexpr int64_t passes_to_learn = 300;
constexpr double error_most = 0.1;

double predict_ns(const EngineStats& stats, const PassShape& shape) {
    const auto& cost = stats.cost_ns;
    return cost[0] + cost[1] * shape.rows + cost[2] * static_cast<double>(shape.tokens - shape.rows) +
           cost[3] * static_cast<double>(shape.token_context);
}

}  // namespace

// A pass in which somebody waits for the next token takes no longer than the target gives it, but for a tile of a prompt; or
// than its decodes take, if these alone take longer. By the costs that the engine knew when it planned the pass.
void World::check_time() {
    const EngineParams& params = driver_->params();
    if (params.itl_target_us == 0 || step_budget_us_ != 0 || report_.passes != 1 ||
        control_.begins != step_begins_ + 1)
        return;
    const bool decodes = std::any_of(lives_.begin(), lives_.end(), [](const auto& each) {
        const Live& live = each.second;
        return live.asked.is_plain() && live.state_before == SequenceState::generating && live.got_token;
    });
    if (!decodes) return;
    PassShape tile;  // its last token perhaps with logits
    tile.add(params.context_length - tile_tokens, tile_tokens + 1, true);
    EngineStats per_piece = stats_before_;
    per_piece.cost_ns[0] = 0;
    const double target_ns = static_cast<double>(params.itl_target_us) * 1000 * stats_.host_share;
    const double decodes_ns = predict_ns(stats_before_, control_.newest_decodes);
    const double pass_ns = predict_ns(stats_before_, control_.newest);
    coverage_->timed++;
    coverage_->timed_cut += control_.newest.tokens > control_.newest_decodes.tokens ? 1 : 0;
    if (pass_ns > std::max(target_ns, decodes_ns) + predict_ns(per_piece, tile) + 1000)
        fail(
            "a pass of %lld tokens in %d rows should take %.0f ns, its decodes %.0f, a tile %.0f; the target "
            "gives %.0f",
            static_cast<long long>(control_.newest.tokens), control_.newest.rows, pass_ns, decodes_ns,
            predict_ns(per_piece, tile), target_ns);
}

// Where each pass takes what it must, the engine knows it after a while.
void World::check_cost_model() {
    const bool exact = control_.jitter == 0 && control_.jump_rate == 0 && driver_->clock().read_cost_ns == 0;
    if (!exact || passes_ < passes_to_learn) return;
    const double error = driver_->all_stats().cost_error;
    if (error > error_most)
        fail("after %lld passes the cost of one is wrong by %.3f", static_cast<long long>(passes_), error);
}

}  // namespace treadle::test
