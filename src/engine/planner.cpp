// The arithmetic of planner.h, and the checks that keep it from overflowing.
#include "engine/planner.h"

#include "base/limits.h"

namespace treadle {

namespace {

constexpr double us_per_second = 1e6;
constexpr uint64_t kv_token_bytes_max = uint64_t{1}
                                        << 40;  // far above any model; times 16 tokens it does not wrap
constexpr int64_t batch_max = INT64_MAX;

using Number = unsigned long long;  // what a format takes for a uint64_t

Status positive(const char* field, uint64_t value, Error* error) {
    if (value > 0) return Status::OK;
    return fail(error, Status::INVALID_ARGUMENT, "%s is 0, must be at least 1", field);
}

Status in_range(const char* field, int32_t value, int32_t least, int64_t most, Error* error) {
    if (value < least)
        return fail(error, Status::INVALID_ARGUMENT, "%s is %d, must be at least %d", field, value, least);
    if (value > most)
        return fail(error, Status::LIMIT, "%s is %d, at most %lld is planned for", field, value,
                    static_cast<long long>(most));
    return Status::OK;
}

// Values that a token keeps as keys, and again as many as values: layers * kv_heads * head_dim.
Status values_per_side(const PlanInput& input, uint64_t* out, Error* error) {
    TREADLE_TRY(in_range("head_dim", input.head_dim, 1, limits::head_dim_max, error));
    if (input.kv_token_bytes_f16 == 0) {
        TREADLE_TRY(in_range("layers", input.layers, 1, limits::layers_max, error));
        TREADLE_TRY(in_range("kv_heads", input.kv_heads, 1, limits::heads_max, error));
        *out = static_cast<uint64_t>(input.layers) * static_cast<uint64_t>(input.kv_heads) *
               static_cast<uint64_t>(input.head_dim);
        return Status::OK;
    }
    if (input.layers != 0 || input.kv_heads != 0)
        return fail(error, Status::INVALID_ARGUMENT,
                    "kv_token_bytes_f16 is %llu and layers is %d, kv_heads %d: give the one or the others",
                    static_cast<Number>(input.kv_token_bytes_f16), input.layers, input.kv_heads);
    if (input.kv_token_bytes_f16 > kv_token_bytes_max)
        return fail(error, Status::LIMIT, "kv_token_bytes_f16 is %llu, at most %llu is planned for",
                    static_cast<Number>(input.kv_token_bytes_f16), static_cast<Number>(kv_token_bytes_max));
    const uint64_t head_bytes = 4 * static_cast<uint64_t>(input.head_dim);  // a key and a value in f16
    if (input.kv_token_bytes_f16 % head_bytes != 0)
        return fail(error, Status::INVALID_ARGUMENT,
                    "kv_token_bytes_f16 is %llu, no multiple of a head's %llu bytes (head_dim is %d)",
                    static_cast<Number>(input.kv_token_bytes_f16), static_cast<Number>(head_bytes),
                    input.head_dim);
    *out = input.kv_token_bytes_f16 / 4;
    return Status::OK;
}

// The lowest batch whose own costs, `row_us` each, take as long as the weights.
int64_t crossover(double weights_us, double row_us) {
    const double batch = weights_us / row_us;
    if (batch >= 9e18) return batch_max;
    const auto whole = static_cast<int64_t>(batch);
    return static_cast<double>(whole) < batch || whole == 0 ? whole + 1 : whole;
}

Status check_rates(const PlanInput& input, Error* error) {
    TREADLE_TRY(positive("weight_bytes", input.weight_bytes, error));
    TREADLE_TRY(positive("bandwidth", input.bandwidth, error));
    TREADLE_TRY(positive("token_flops", input.token_flops, error));
    TREADLE_TRY(positive("usable_flops", input.usable_flops, error));
    TREADLE_TRY(in_range("batch", input.batch, 1, INT32_MAX, error));
    TREADLE_TRY(in_range("context_tokens", input.context_tokens, 0, limits::context_max, error));
    return in_range("sequence_tokens", input.sequence_tokens, 1, limits::context_max, error);
}

void plan_cache(const PlanInput& input, uint64_t token_bytes, PlanOutput* plan) {
    constexpr auto block_tokens = static_cast<uint64_t>(limits::kv_block_tokens);
    const uint64_t sequence_blocks =
        (static_cast<uint64_t>(input.sequence_tokens) + block_tokens - 1) / block_tokens;
    plan->kv_token_bytes = token_bytes;
    plan->kv_block_bytes = token_bytes * block_tokens;
    plan->kv_blocks = input.kv_bytes / plan->kv_block_bytes;
    plan->kv_tokens = plan->kv_blocks * block_tokens;
    plan->sequences = plan->kv_blocks / sequence_blocks;
}

void plan_pass(const PlanInput& input, PlanOutput* plan) {
    const auto bandwidth = static_cast<double>(input.bandwidth);
    const auto batch = static_cast<double>(input.batch);
    const double row_compute_us =
        static_cast<double>(input.token_flops) / static_cast<double>(input.usable_flops) * us_per_second;
    const double row_read_us = static_cast<double>(input.context_tokens) *
                               static_cast<double>(plan->kv_token_bytes) / bandwidth * us_per_second;
    plan->weights_us = static_cast<double>(input.weight_bytes) / bandwidth * us_per_second;
    plan->compute_us = batch * row_compute_us;
    plan->kv_read_us = batch * row_read_us;
    const double linear_us = plan->weights_us > plan->compute_us ? plan->weights_us : plan->compute_us;
    plan->pass_us = linear_us + plan->kv_read_us;
    plan->tokens_per_second = batch / plan->pass_us * us_per_second;
    plan->crossover_batch = crossover(plan->weights_us, row_compute_us);
    plan->crossover_batch_context = crossover(plan->weights_us, row_compute_us + row_read_us);
    plan->tokens_per_second_max = us_per_second / (row_compute_us + row_read_us);
}

}  // namespace

Status plan_capacity(const PlanInput& input, PlanOutput* out, Error* error) {
    TREADLE_TRY(check_rates(input, error));
    uint64_t values = 0;
    TREADLE_TRY(values_per_side(input, &values, error));
    const KvFormat keys{input.key_type, input.head_dim};
    const KvFormat kept{input.value_type, input.head_dim};
    TREADLE_TRY(check_kv_format("key_type", keys, true, error));
    TREADLE_TRY(check_kv_format("value_type", kept, false, error));

    const uint64_t heads = values / static_cast<uint64_t>(input.head_dim);
    PlanOutput plan;
    plan_cache(input, heads * static_cast<uint64_t>(keys.bytes() + kept.bytes()), &plan);
    plan_pass(input, &plan);
    *out = plan;
    return Status::OK;
}

}  // namespace treadle
