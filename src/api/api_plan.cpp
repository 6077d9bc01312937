// The capacity planner.
#include "api/structs.h"
#include "engine/planner.h"

namespace treadle {

namespace {

static_assert(static_cast<int32_t>(KvType::f16) == ENGINE_KV_F16);
static_assert(static_cast<int32_t>(KvType::q8_0) == ENGINE_KV_Q8_0);
static_assert(static_cast<int32_t>(KvType::tbq4) == ENGINE_KV_TBQ4);
static_assert(static_cast<int32_t>(KvType::tbq4x) == ENGINE_KV_TBQ4X);

engine_plan_params default_plan_params() {
    const PlanInput defaults;
    engine_plan_params params = {};
    params.head_dim = defaults.head_dim;
    params.batch = defaults.batch;
    params.sequence_tokens = defaults.sequence_tokens;
    return params;
}

PlanInput input_of(const engine_plan_params& params) {
    PlanInput input;
    input.weight_bytes = params.weight_bytes;
    input.bandwidth = params.bandwidth;
    input.token_flops = params.token_flops;
    input.usable_flops = params.usable_flops;
    input.kv_bytes = params.kv_bytes;
    input.layers = params.layers;
    input.kv_heads = params.kv_heads;
    input.head_dim = params.head_dim;
    input.kv_token_bytes_f16 = params.kv_token_bytes_f16;
    input.key_type = static_cast<KvType>(params.key_type);  // plan_capacity refuses what is none
    input.value_type = static_cast<KvType>(params.value_type);
    input.batch = params.batch;
    input.context_tokens = params.context_tokens;
    input.sequence_tokens = params.sequence_tokens;
    return input;
}

}  // namespace

extern "C" {

ENGINE_API engine_status engine_plan_params_init(engine_plan_params* params, size_t size) {
    return api::init_struct(params, size, default_plan_params());
}

ENGINE_API engine_status engine_plan_init(engine_plan* plan, size_t size) {
    return api::init_struct(plan, size, engine_plan{});
}

ENGINE_API engine_status engine_plan_capacity(const engine_plan_params* in, engine_plan* out,
                                              engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(in);
        TREADLE_REQUIRE(out);
        TREADLE_TRY(api::check_size("engine_plan", out->struct_size, error));
        engine_plan_params params = default_plan_params();
        TREADLE_TRY(api::read_struct("engine_plan_params", in, &params, error));
        PlanOutput plan;
        TREADLE_TRY(plan_capacity(input_of(params), &plan, error));
        engine_plan value = {};
        value.kv_token_bytes = plan.kv_token_bytes;
        value.kv_block_bytes = plan.kv_block_bytes;
        value.kv_blocks = plan.kv_blocks;
        value.kv_tokens = plan.kv_tokens;
        value.sequences = plan.sequences;
        value.weights_us = plan.weights_us;
        value.compute_us = plan.compute_us;
        value.kv_read_us = plan.kv_read_us;
        value.pass_us = plan.pass_us;
        value.tokens_per_second = plan.tokens_per_second;
        value.tokens_per_second_max = plan.tokens_per_second_max;
        value.crossover_batch = plan.crossover_batch;
        value.crossover_batch_context = plan.crossover_batch_context;
        return api::write_struct("engine_plan", out, value, error);
    });
}

}  // extern "C"

}  // namespace treadle
