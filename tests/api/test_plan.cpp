// The capacity planner: the two tables that it was made to reproduce, what long contexts change, and bad input.
//
// The arithmetic behind the tables' rounded numbers. Throughput: GB and TFLOP are decimal; a pass takes
// max(17e9 / 1008e9, batch * 54e9 / 82.5e12) seconds, tokens/s are batch / pass, rounded to the nearest. Cache: GiB and KiB
// are binary, "K tokens" are thousands, rounded to the nearest, of whole blocks of 16; "8K" and "32K" are 8,192 and 32,768,
// and sequences are rounded down. A token's 64 KiB in f16 are 32,768 values: 34,816 bytes in q8_0 (34 per 32), 16,896 in tbq4
// (66 per 128).
#include <cmath>
#include <initializer_list>
#include <limits>
#include <random>

#include "api_fixture.h"
#include "base/limits.h"

using namespace treadle::test;

namespace {

constexpr uint64_t gib = uint64_t{1} << 30;

engine_plan_params table_params() {
    engine_plan_params params;
    REQUIRE(engine_plan_params_init(&params, sizeof params) == ENGINE_OK);
    params.weight_bytes = 17'000'000'000;
    params.bandwidth = 1'008'000'000'000;
    params.token_flops = 54'000'000'000;
    params.usable_flops = 82'500'000'000'000;
    params.kv_bytes = 7 * gib;
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

template <class Change>
void check_refused(Change change, engine_status expected, const char* word) {
    engine_plan_params params = table_params();
    change(params);
    engine_plan plan;
    REQUIRE(engine_plan_init(&plan, sizeof plan) == ENGINE_OK);
    plan.kv_tokens = 77;
    Failure failure;
    CAPTURE(std::string(word));
    CHECK(engine_plan_capacity(&params, &plan, failure) == expected);
    CAPTURE(failure.message());
    CHECK(failure.names(word));
    CHECK(plan.kv_tokens == 77);
    CHECK(engine_plan_capacity(&params, &plan, nullptr) == expected);
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
        CHECK(std::llround(plan.tokens_per_second_max) == 1528);
        CHECK(plan.crossover_batch == 26);
        CHECK(plan.crossover_batch_context == 26);  // no context was given
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
        uint64_t token_bytes;
        int64_t thousand_tokens;
        uint64_t sequences_8k, sequences_32k;
    };
    for (const Row row : {Row{ENGINE_KV_F16, 65536, 115, 14, 3}, Row{ENGINE_KV_Q8_0, 34816, 216, 26, 6},
                          Row{ENGINE_KV_TBQ4, 16896, 445, 54, 13}}) {
        CAPTURE(row.type);
        engine_plan_params params = table_params();
        params.key_type = params.value_type = row.type;
        const engine_plan plan = planned(params);
        CHECK(plan.kv_token_bytes == row.token_bytes);
        CHECK(plan.kv_block_bytes == 16 * row.token_bytes);
        CHECK(std::llround(static_cast<double>(plan.kv_tokens) / 1000) == row.thousand_tokens);
        CHECK(plan.kv_tokens == 16 * plan.kv_blocks);
        CHECK(plan.kv_tokens * row.token_bytes <= params.kv_bytes);
        CHECK((plan.kv_tokens + 16) * row.token_bytes > params.kv_bytes);
        CHECK(plan.sequences == row.sequences_8k);
        params.sequence_tokens = 32768;
        CHECK(planned(params).sequences == row.sequences_32k);

        // The same cache by its shape: 32 layers of 4 heads of 128.
        params.kv_token_bytes_f16 = 0;
        params.layers = 32;
        params.kv_heads = 4;
        CHECK(planned(params).kv_token_bytes == row.token_bytes);
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

TEST_CASE("keys and values are counted each by its type, and sequences in whole blocks") {
    engine_plan_params params = table_params();
    params.key_type = ENGINE_KV_Q8_0;
    params.value_type = ENGINE_KV_TBQ4;
    CHECK(planned(params).kv_token_bytes == (34816 + 16896) / 2);
    params.head_dim = 64;
    CHECK(planned(params).kv_token_bytes == 34816 / 2 + 16384 / 64 * 34);
    params.head_dim = 256;
    CHECK(planned(params).kv_token_bytes == (34816 + 16896) / 2);

    params = table_params();
    params.kv_bytes = 10 * 16 * 65536 + 65535;  // ten blocks, and nearly a token
    params.sequence_tokens = 17;                // two blocks
    CHECK(planned(params).kv_blocks == 10);
    CHECK(planned(params).kv_tokens == 160);
    CHECK(planned(params).sequences == 5);
    params.kv_bytes = 0;
    CHECK(planned(params).kv_tokens == 0);
    CHECK(planned(params).sequences == 0);
}

TEST_CASE("the KV reads of long contexts move the crossover down") {
    engine_plan_params params = table_params();
    params.batch = 8;
    int64_t before = 27;
    double tokens_before = 1e9;
    for (const int32_t context : {0, 2048, 8192, 32768, 131072}) {
        CAPTURE(context);
        params.context_tokens = context;
        const engine_plan plan = planned(params);
        CHECK(plan.crossover_batch == 26);
        CHECK(plan.crossover_batch_context < before);
        CHECK(plan.tokens_per_second < tokens_before);
        CHECK(plan.kv_read_us == doctest::Approx(8.0 * context * 65536 / 1.008e12 * 1e6));
        CHECK(plan.pass_us == doctest::Approx(plan.weights_us + plan.kv_read_us));
        before = plan.crossover_batch_context;
        tokens_before = plan.tokens_per_second;
    }
    params.context_tokens = 8192;
    CHECK(planned(params).crossover_batch_context == 15);
    params.context_tokens = 32768;
    CHECK(planned(params).crossover_batch_context == 7);
    params.key_type = params.value_type = ENGINE_KV_TBQ4;  // a quarter of the reads: most of it comes back
    CHECK(planned(params).crossover_batch_context == 15);
}

TEST_CASE("a plan that can't be made is a status that names the field") {
    using In = engine_plan_params&;
    constexpr engine_status invalid = ENGINE_INVALID_ARGUMENT;
    check_refused([](In in) { in.weight_bytes = 0; }, invalid, "weight_bytes");
    check_refused([](In in) { in.bandwidth = 0; }, invalid, "bandwidth");
    check_refused([](In in) { in.token_flops = 0; }, invalid, "token_flops");
    check_refused([](In in) { in.usable_flops = 0; }, invalid, "usable_flops");
    check_refused([](In in) { in.batch = 0; }, invalid, "batch");
    check_refused([](In in) { in.batch = INT32_MIN; }, invalid, "batch");
    check_refused([](In in) { in.context_tokens = -1; }, invalid, "context_tokens");
    check_refused([](In in) { in.context_tokens = INT32_MAX; }, ENGINE_LIMIT, "context_tokens");
    check_refused([](In in) { in.sequence_tokens = 0; }, invalid, "sequence_tokens");
    check_refused([](In in) { in.sequence_tokens = INT32_MAX; }, ENGINE_LIMIT, "sequence_tokens");
    check_refused([](In in) { in.head_dim = 0; }, invalid, "head_dim");
    check_refused([](In in) { in.head_dim = 1 << 20; }, ENGINE_LIMIT, "head_dim");
    check_refused([](In in) { in.kv_token_bytes_f16 = 1000; }, invalid, "kv_token_bytes_f16");
    check_refused([](In in) { in.kv_token_bytes_f16 = UINT64_MAX; }, ENGINE_LIMIT, "kv_token_bytes_f16");
    check_refused([](In in) { in.layers = 3; }, invalid, "layers");
    check_refused([](In in) { in.kv_token_bytes_f16 = 0; }, invalid, "layers");
    check_refused([](In in) { in.kv_token_bytes_f16 = 0, in.layers = 1; }, invalid, "kv_heads");
    check_refused([](In in) { in.kv_token_bytes_f16 = 0, in.layers = 1 << 30; }, ENGINE_LIMIT, "layers");
    check_refused([](In in) { in.key_type = 4; }, invalid, "key_type");
    check_refused([](In in) { in.value_type = ENGINE_KV_TBQ4X; }, invalid, "value_type");
    check_refused([](In in) { in.value_type = -1; }, invalid, "value_type");
    check_refused([](In in) { in.head_dim = 16, in.value_type = ENGINE_KV_Q8_0; }, invalid, "head_dim");
    check_refused([](In in) { in.head_dim = 32, in.key_type = ENGINE_KV_TBQ4; }, invalid, "head_dim");
    check_refused([](In in) { in.struct_size = 0; }, ENGINE_STRUCT_SIZE, "engine_plan_params");
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

TEST_CASE("every accepted plan is finite, up to the extremes") {
    std::mt19937_64 random(4);
    const auto pick = [&random](std::initializer_list<uint64_t> values) {
        return values.begin()[random() % values.size()];
    };
    const uint64_t most = std::numeric_limits<uint64_t>::max();
    for (int i = 0; i < 20000; i++) {
        engine_plan_params params = table_params();
        params.weight_bytes = pick({1, 17'000'000'000, most});
        params.bandwidth = pick({1, 1'008'000'000'000, most});
        params.token_flops = pick({1, 54'000'000'000, most});
        params.usable_flops = pick({1, 82'500'000'000'000, most});
        params.kv_bytes = pick({0, 1, 7 * gib, most});
        params.kv_token_bytes_f16 = pick({512, uint64_t{64} << 10, uint64_t{1} << 40});
        params.key_type = static_cast<int32_t>(random() % 3);
        params.value_type = static_cast<int32_t>(random() % 3);
        params.batch = static_cast<int32_t>(pick({1, 64, INT32_MAX}));
        params.context_tokens = static_cast<int32_t>(pick({0, 8192, treadle::limits::context_max}));
        params.sequence_tokens = static_cast<int32_t>(pick({1, 8192, treadle::limits::context_max}));
        const engine_plan plan = planned(params);
        for (const double value : {plan.weights_us, plan.compute_us, plan.pass_us, plan.tokens_per_second,
                                   plan.tokens_per_second_max}) {
            CHECK(std::isfinite(value));
            CHECK(value > 0);
        }
        CHECK(std::isfinite(plan.kv_read_us));
        CHECK(plan.crossover_batch >= 1);
        CHECK(plan.crossover_batch_context >= 1);
        CHECK(plan.crossover_batch_context <= plan.crossover_batch);
        CHECK(plan.kv_tokens <= most / plan.kv_token_bytes);
        CHECK(plan.sequences <= plan.kv_blocks);
    }
}
