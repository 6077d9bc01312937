// The capacity planner through the C interface: the two tables that it must reproduce, and bad input. How the tables' numbers are
// rounded is told in tests/unit/test_planner.cpp.
#include <cmath>

#include "api_fixture.h"

using namespace treadle::test;

namespace {

engine_plan_params table_params() {
    engine_plan_params params;
    REQUIRE(engine_plan_params_init(&params, sizeof params) == ENGINE_OK);
    params.weight_bytes = 17'000'000'000;
    params.bandwidth = 1'008'000'000'000;
    params.token_flops = 54'000'000'000;
    params.usable_flops = 82'500'000'000'000;
    params.kv_bytes = uint64_t{7} << 30;
    params.kv_token_bytes_f16 = 64 << 10;
    return params;
}

engine_plan planned(const engine_plan_params& params) {
    engine_plan plan;
    Failure failure;
    REQUIRE(engine_plan_init(&plan, sizeof plan) == ENGINE_OK);
    const engine_status status = engine_plan_capacity(&params, &plan, failure);
    REQUIRE_MESSAGE(status == ENGINE_OK, failure.message());
    return plan;
}

}  // namespace

TEST_CASE("engine_plan_capacity gives the table of throughputs") {
    struct Row {
        int32_t batch;
        double pass_ms;
        int64_t tokens_per_second;
    };
    for (const Row row : {Row{1, 16.9, 59}, Row{8, 16.9, 474}, Row{16, 16.9, 949}, Row{26, 17.0, 1528},
                          Row{32, 21.0, 1528}, Row{64, 41.9, 1528}}) {
        CAPTURE(row.batch);
        engine_plan_params params = table_params();
        params.batch = row.batch;
        engine_plan plan = planned(params);
        CHECK(std::fabs(plan.pass_us / 1000 - row.pass_ms) < 0.06);
        CHECK(std::llround(plan.tokens_per_second) == row.tokens_per_second);
        CHECK(plan.crossover_batch == 26);
        CHECK(plan.kv_read_us == 0);
        CHECK(plan.pass_us == std::max(plan.weights_us, plan.compute_us));
        // What the table leaves out: contexts of 8,192 tokens have to be read too.
        params.context_tokens = 8192;
        plan = planned(params);
        CHECK(plan.crossover_batch == 26);
        CHECK(plan.crossover_batch_context == 15);
        CHECK(plan.kv_read_us > 500 * row.batch);
        CHECK(std::llround(plan.tokens_per_second) < row.tokens_per_second);
        CHECK(plan.tokens_per_second <= plan.tokens_per_second_max);
    }
}

TEST_CASE("engine_plan_capacity gives the table of the cache") {
    struct Row {
        int32_t type;
        int64_t thousand_tokens;
        uint64_t sequences_8k, sequences_32k;
    };
    for (const Row row : {Row{ENGINE_KV_F16, 115, 14, 3}, Row{ENGINE_KV_Q8_0, 216, 26, 6},
                          Row{ENGINE_KV_TBQ4, 445, 54, 13}}) {
        CAPTURE(row.type);
        engine_plan_params params = table_params();
        params.key_type = params.value_type = row.type;
        engine_plan plan = planned(params);
        CHECK(std::llround(static_cast<double>(plan.kv_tokens) / 1000) == row.thousand_tokens);
        CHECK(plan.kv_tokens == 16 * plan.kv_blocks);
        CHECK(plan.kv_block_bytes == 16 * plan.kv_token_bytes);
        CHECK(plan.sequences == row.sequences_8k);
        params.sequence_tokens = 32768;
        CHECK(planned(params).sequences == row.sequences_32k);
    }
}

TEST_CASE("the shape of a model plans the blocks that its engine has") {
    Host host;
    engine_model_info model;
    REQUIRE(engine_model_info_init(&model, sizeof model) == ENGINE_OK);
    REQUIRE(engine_model_get_info(host.model, &model) == ENGINE_OK);
    engine_info info;
    REQUIRE(engine_info_init(&info, sizeof info) == ENGINE_OK);
    REQUIRE(engine_get_info(host.e, &info) == ENGINE_OK);
    engine_plan_params params = table_params();
    params.kv_token_bytes_f16 = 0;
    params.layers = model.layers;
    params.kv_heads = model.kv_heads;
    params.head_dim = model.head_dim;
    CHECK(planned(params).kv_block_bytes == info.kv_block_bytes);
}

TEST_CASE("a plan that can't be made is a status that names the field") {
    const auto refused = [](auto change, engine_status expected, const char* word) {
        engine_plan_params params = table_params();
        change(params);
        engine_plan plan;
        REQUIRE(engine_plan_init(&plan, sizeof plan) == ENGINE_OK);
        plan.kv_tokens = 77;
        Failure failure;
        CAPTURE(std::string(word));
        CHECK(engine_plan_capacity(&params, &plan, failure) == expected);
        CHECK(failure.names(word));
        CHECK(plan.kv_tokens == 77);
    };
    using Params = engine_plan_params;
    refused([](Params& p) { p.bandwidth = 0; }, ENGINE_INVALID_ARGUMENT, "bandwidth");
    refused([](Params& p) { p.weight_bytes = 0; }, ENGINE_INVALID_ARGUMENT, "weight_bytes");
    refused([](Params& p) { p.batch = 0; }, ENGINE_INVALID_ARGUMENT, "batch");
    refused([](Params& p) { p.key_type = 3; }, ENGINE_INVALID_ARGUMENT, "key_type");
    refused([](Params& p) { p.value_type = -1; }, ENGINE_INVALID_ARGUMENT, "value_type");
    refused([](Params& p) { p.layers = 2; }, ENGINE_INVALID_ARGUMENT, "layers");
    refused([](Params& p) { p.head_dim = 1 << 30; }, ENGINE_LIMIT, "head_dim");
    refused([](Params& p) { p.struct_size = 0; }, ENGINE_STRUCT_SIZE, "engine_plan_params");
    engine_plan plan = {};
    const engine_plan_params params = table_params();
    CHECK(engine_plan_capacity(&params, &plan, nullptr) == ENGINE_STRUCT_SIZE);
    CHECK(engine_plan_capacity(nullptr, &plan, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_plan_capacity(&params, nullptr, nullptr) == ENGINE_INVALID_ARGUMENT);
    // A host that knows less of the struct gets what it knows.
    plan.struct_size = offsetof(engine_plan, sequences);
    plan.sequences = 55;
    CHECK(engine_plan_capacity(&params, &plan, nullptr) == ENGINE_OK);
    CHECK(plan.kv_tokens > 0);
    CHECK(plan.sequences == 55);
}
