// The capacity planner: the two tables that it was made to reproduce, what long contexts change, and bad input.
//
// The arithmetic behind the tables' rounded numbers. Throughput: GB and TFLOP are decimal; a pass takes
// max(17e9 / 1008e9, batch * 54e9 / 82.5e12) seconds, tokens/s are batch / pass, rounded to the nearest. Cache: GiB and KiB
// are binary, "K tokens" are thousands, rounded to the nearest, of whole blocks of 16; "8K" and "32K" are 8,192 and 32,768,
// and sequences are rounded down. A token's 64 KiB in f16 are 32,768 values: 34,816 bytes in q8_0 (34 per 32), 16,896 in tbq4
// (66 per 128).
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>

#include "base/limits.h"
#include "engine/planner.h"

using namespace treadle;

namespace {

constexpr uint64_t gib = uint64_t{1} << 30;

PlanInput table_input() {
    PlanInput input;
    input.weight_bytes = 17'000'000'000;
    input.bandwidth = 1'008'000'000'000;
    input.token_flops = 54'000'000'000;
    input.usable_flops = 82'500'000'000'000;
    input.kv_bytes = 7 * gib;
    input.kv_token_bytes_f16 = 64 << 10;
    return input;
}

PlanOutput plan(const PlanInput& input) {
    PlanOutput out;
    Error error;
    const Status status = plan_capacity(input, &out, &error);
    CAPTURE(std::string(error.message));
    REQUIRE(status == Status::OK);
    return out;
}

void check_refused(const PlanInput& input, Status expected, const char* field) {
    PlanOutput out;
    out.kv_tokens = 77;
    Error error;
    CAPTURE(std::string(field));
    CHECK(plan_capacity(input, &out, &error) == expected);
    CAPTURE(std::string(error.message));
    CHECK(std::strstr(error.message, field) != nullptr);
    CHECK(out.kv_tokens == 77);
    CHECK(plan_capacity(input, &out, nullptr) == expected);
}

}  // namespace

TEST_CASE("the plan reproduces the table of throughputs") {
    struct Row {
        int32_t batch;
        double pass_ms;
        int64_t tokens_per_second;
    };
    for (const Row row : {Row{1, 16.9, 59}, Row{8, 16.9, 474}, Row{16, 16.9, 949}, Row{26, 17.0, 1528},
                          Row{32, 21.0, 1528}, Row{64, 41.9, 1528}}) {
        CAPTURE(row.batch);
        PlanInput input = table_input();
        input.batch = row.batch;
        const PlanOutput out = plan(input);
        CHECK(std::fabs(out.pass_us / 1000 - row.pass_ms) < 0.06);
        CHECK(std::llround(out.tokens_per_second) == row.tokens_per_second);
        CHECK(out.crossover_batch == 26);
        CHECK(out.crossover_batch_context == 26);  // no context was given
        CHECK(std::llround(out.tokens_per_second_max) == 1528);
        CHECK(out.kv_read_us == 0);
    }
}

TEST_CASE("the plan reproduces the table of the cache") {
    struct Row {
        KvType type;
        uint64_t token_bytes;
        int64_t thousand_tokens;
        uint64_t sequences_8k, sequences_32k;
    };
    for (const Row row : {Row{KvType::f16, 65536, 115, 14, 3}, Row{KvType::q8_0, 34816, 216, 26, 6},
                          Row{KvType::tbq4, 16896, 445, 54, 13}}) {
        CAPTURE(row.token_bytes);
        PlanInput input = table_input();
        input.key_type = input.value_type = row.type;
        PlanOutput out = plan(input);
        CHECK(out.kv_token_bytes == row.token_bytes);
        CHECK(out.kv_block_bytes == 16 * row.token_bytes);
        CHECK(std::llround(static_cast<double>(out.kv_tokens) / 1000) == row.thousand_tokens);
        CHECK(out.kv_tokens * row.token_bytes <= input.kv_bytes);
        CHECK((out.kv_tokens + 16) * row.token_bytes > input.kv_bytes);
        CHECK(out.sequences == row.sequences_8k);
        input.sequence_tokens = 32768;
        out = plan(input);
        CHECK(out.sequences == row.sequences_32k);

        // The same cache by its shape: 32 layers of 4 heads of 128.
        input.kv_token_bytes_f16 = 0;
        input.layers = 32;
        input.kv_heads = 4;
        CHECK(plan(input).kv_token_bytes == row.token_bytes);
    }
}

TEST_CASE("keys and values are counted each by its type, and sequences in whole blocks") {
    PlanInput input = table_input();
    input.key_type = KvType::q8_0;
    input.value_type = KvType::tbq4;
    CHECK(plan(input).kv_token_bytes == (34816 + 16896) / 2);
    input.head_dim = 64;
    CHECK(plan(input).kv_token_bytes == 34816 / 2 + 16384 / 64 * 34);
    input.head_dim = 256;
    CHECK(plan(input).kv_token_bytes == (34816 + 16896) / 2);

    input = table_input();
    input.kv_bytes = 10 * 16 * 65536 + 65535;  // ten blocks, and nearly a token
    input.sequence_tokens = 17;                // two blocks
    CHECK(plan(input).kv_blocks == 10);
    CHECK(plan(input).kv_tokens == 160);
    CHECK(plan(input).sequences == 5);
    input.kv_bytes = 0;
    CHECK(plan(input).kv_tokens == 0);
    CHECK(plan(input).sequences == 0);
}

TEST_CASE("the KV reads of long contexts move the crossover down") {
    PlanInput input = table_input();
    input.batch = 8;
    int64_t before = 27;
    double tokens_before = 1e9;
    for (const int32_t context : {0, 2048, 8192, 32768, 131072}) {
        CAPTURE(context);
        input.context_tokens = context;
        const PlanOutput out = plan(input);
        CHECK(out.crossover_batch == 26);
        CHECK(out.crossover_batch_context < before);
        CHECK(out.tokens_per_second < tokens_before);
        CHECK(out.kv_read_us == doctest::Approx(8.0 * context * 65536 / 1.008e12 * 1e6));
        CHECK(out.pass_us == doctest::Approx(out.weights_us + out.kv_read_us));
        before = out.crossover_batch_context;
        tokens_before = out.tokens_per_second;
    }
    input.context_tokens = 8192;
    CHECK(plan(input).crossover_batch_context == 15);
    input.context_tokens = 32768;
    CHECK(plan(input).crossover_batch_context == 7);
    input.key_type = input.value_type = KvType::tbq4;  // a quarter of the reads: most of it comes back
    CHECK(plan(input).crossover_batch_context == 15);
}

TEST_CASE("a plan from bad input is a status with the field") {
    const auto with = [](auto change) {
        PlanInput input = table_input();
        change(&input);
        return input;
    };
    using In = PlanInput*;
    constexpr Status invalid = Status::INVALID_ARGUMENT;
    check_refused(with([](In in) { in->weight_bytes = 0; }), invalid, "weight_bytes");
    check_refused(with([](In in) { in->bandwidth = 0; }), invalid, "bandwidth");
    check_refused(with([](In in) { in->token_flops = 0; }), invalid, "token_flops");
    check_refused(with([](In in) { in->usable_flops = 0; }), invalid, "usable_flops");
    check_refused(with([](In in) { in->batch = 0; }), invalid, "batch");
    check_refused(with([](In in) { in->batch = INT32_MIN; }), invalid, "batch");
    check_refused(with([](In in) { in->context_tokens = -1; }), invalid, "context_tokens");
    check_refused(with([](In in) { in->context_tokens = INT32_MAX; }), Status::LIMIT, "context_tokens");
    check_refused(with([](In in) { in->sequence_tokens = 0; }), invalid, "sequence_tokens");
    check_refused(with([](In in) { in->sequence_tokens = INT32_MAX; }), Status::LIMIT, "sequence_tokens");
    check_refused(with([](In in) { in->head_dim = 0; }), invalid, "head_dim");
    check_refused(with([](In in) { in->head_dim = 1 << 20; }), Status::LIMIT, "head_dim");
    check_refused(with([](In in) { in->kv_token_bytes_f16 = 1000; }), invalid, "kv_token_bytes_f16");
    check_refused(with([](In in) { in->kv_token_bytes_f16 = UINT64_MAX; }), Status::LIMIT,
                  "kv_token_bytes_f16");
    check_refused(with([](In in) { in->layers = 3; }), invalid, "layers");
    check_refused(with([](In in) { in->kv_token_bytes_f16 = 0; }), invalid, "layers");
    check_refused(with([](In in) { in->kv_token_bytes_f16 = 0, in->layers = 1; }), invalid, "kv_heads");
    check_refused(with([](In in) { in->kv_token_bytes_f16 = 0, in->layers = 1 << 30; }), Status::LIMIT,
                  "layers");
    check_refused(with([](In in) { in->key_type = static_cast<KvType>(3); }), invalid, "key_type");
    check_refused(with([](In in) { in->value_type = static_cast<KvType>(-1); }), invalid, "value_type");
    check_refused(with([](In in) { in->head_dim = 16, in->value_type = KvType::q8_0; }), invalid, "head_dim");
    check_refused(with([](In in) { in->head_dim = 32, in->key_type = KvType::tbq4; }), invalid, "head_dim");
}

TEST_CASE("every accepted plan is finite, up to the extremes") {
    std::mt19937_64 random(4);
    const auto pick = [&random](std::initializer_list<uint64_t> values) {
        return values.begin()[random() % values.size()];
    };
    const uint64_t most = std::numeric_limits<uint64_t>::max();
    for (int i = 0; i < 20000; i++) {
        PlanInput input;
        input.weight_bytes = pick({1, 17'000'000'000, most});
        input.bandwidth = pick({1, 1'008'000'000'000, most});
        input.token_flops = pick({1, 54'000'000'000, most});
        input.usable_flops = pick({1, 82'500'000'000'000, most});
        input.kv_bytes = pick({0, 1, 7 * gib, most});
        input.kv_token_bytes_f16 = pick({512, uint64_t{64} << 10, uint64_t{1} << 40});
        input.key_type = static_cast<KvType>(random() % 3);
        input.value_type = static_cast<KvType>(random() % 3);
        input.batch = static_cast<int32_t>(pick({1, 64, INT32_MAX}));
        input.context_tokens = static_cast<int32_t>(pick({0, 8192, limits::context_max}));
        input.sequence_tokens = static_cast<int32_t>(pick({1, 8192, limits::context_max}));
        const PlanOutput out = plan(input);
        for (const double value : {out.weights_us, out.compute_us, out.pass_us, out.tokens_per_second,
                                   out.tokens_per_second_max}) {
            CHECK(std::isfinite(value));
            CHECK(value > 0);
        }
        CHECK(std::isfinite(out.kv_read_us));
        CHECK(out.crossover_batch >= 1);
        CHECK(out.crossover_batch_context >= 1);
        CHECK(out.crossover_batch_context <= out.crossover_batch);
        CHECK(out.kv_tokens <= most / out.kv_token_bytes);
        CHECK(out.sequences <= out.kv_blocks);
    }
}
