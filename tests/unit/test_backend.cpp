// The CPU backend against an interpreter that runs the program operation by operation with the scalar
// kernels: equal by bytes for every tier, number of threads, hook, and cut; what it refuses; and that
// passes allocate nothing.
#include <doctest/doctest.h>
#include <xmmintrin.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/float_mode.h"
#include "base/platform.h"
#include "cpu/cpu_backend.h"
#include "cpu/weight_store.h"
#include "kv_test_cache.h"
#include "test_backend_model.h"
#include "tiers.h"

using namespace treadle;
using namespace treadle::tests;
using cpu::CpuTier;

namespace {

constexpr int32_t pool_blocks = 64;

// What one row of logits came out as.
struct RowOutput {
    std::vector<float> logits;
    float max, sum, sum_scaled;
    std::vector<std::pair<float, int32_t>> best;
    bool operator==(const RowOutput& other) const {
        return logits.size() == other.logits.size() &&
               std::memcmp(logits.data(), other.logits.data(), logits.size() * 4) == 0 &&
               std::memcmp(&max, &other.max, 4) == 0 && std::memcmp(&sum, &other.sum, 4) == 0 &&
               std::memcmp(&sum_scaled, &other.sum_scaled, 4) == 0 && best == other.best;
    }
};

RowOutput output_of(const RowResult& row, const float* logits, int32_t vocabulary) {
    RowOutput out{std::vector<float>(logits, logits + vocabulary), row.max, row.sum, row.sum_scaled, {}};
    REQUIRE(row.usable == 1);
    for (int32_t i = 0; i < row.count; ++i) out.best.emplace_back(row.best[i].logit, row.best[i].token);
    return out;
}

std::vector<RowOutput> outputs_of(const Backend& backend, int32_t vocabulary) {
    std::vector<RowOutput> outputs;
    const PassResults results = backend.results();
    for (size_t i = 0; i < results.rows.size(); ++i) {
        outputs.push_back(
            output_of(results.rows[i], results.logits + i * static_cast<size_t>(vocabulary), vocabulary));
    }
    return outputs;
}

// The program read literally: one operation after the other, one row at a time, no fusing, no tiles.
class Interpreter {
public:
    Interpreter(const Program& program, const cpu::CpuWeightStore& store)
        : p_(program), store_(store), k_(cpu::scalar::kernels) {
        for (int32_t layer = 0; layer < p_.groups[0].layers; ++layer)
            layers_.emplace_back(p_.kv_heads, p_.head_dim, pool_blocks, p_.groups[0].key_type,
                                 p_.groups[0].value_type);
    }

    std::vector<RowOutput> run(const PassInput& input) {
        FloatMode mode;
        in_ = &input;
        const size_t rows = input.tokens.size();
        residual_.assign(rows * size_t(p_.hidden), 0);
        qkv_.assign(rows * size_t(qkv_columns()), 0);
        attended_.assign(rows * size_t(p_.heads * p_.head_dim), 0);
        delta_.assign(rows * size_t(p_.hidden), 0);
        gate_up_.assign(rows * size_t(p_.feed_forward) * 2, 0);
        act_.assign(rows, {});
        outputs_.clear();
        for (const Op& op : p_.ops) {
            std::visit([&](const auto& typed) { run_op(typed); }, op);
        }
        return outputs_;
    }

private:
    int32_t qkv_columns() const { return (p_.heads + 2 * p_.kv_heads) * p_.head_dim; }
    const cpu::PackedMatrix& matrix(WeightId id) const { return store_.find(id)->packed.matrix; }
    cpu::AttentionShape shape() const { return {p_.heads, p_.kv_heads, p_.head_dim}; }
    cpu::LayerCache cache(int32_t layer) { return layers_[size_t(layer)].layer(); }
    std::vector<float> linear(const cpu::PackedMatrix& weight, const float* bias,
                              const std::vector<float>& x) {
        const auto columns = int32_t(x.size());
        std::vector<int8_t> q(x.size());
        std::vector<float> scale(x.size() / 32 + 1), f32 = x, out(size_t(weight.rows));
        std::vector<int32_t> sum(x.size() / 16 + 1);
        if (!weight.reads_f32) k_.quantize(x.data(), columns, q.data(), scale.data(), sum.data());
        const cpu::Act act{q.data(), scale.data(), sum.data(), f32.data(), columns};
        k_.linear(weight, bias, act, nullptr, 1, 0, weight.panels(), out.data(), out.size());
        return out;
    }

    void run_op(const Embed& op) {
        for (size_t r = 0; r < act_.size(); ++r) {
            k_.embed(matrix(op.weight), in_->tokens[r], op.scale, &residual_[r * size_t(p_.hidden)]);
        }
    }
    void run_op(const AddNorm& op) {
        for (size_t r = 0; r < act_.size(); ++r) {
            act_[r].resize(size_t(p_.hidden));
            k_.add_norm(&residual_[r * size_t(p_.hidden)],
                        op.add_delta ? &delta_[r * size_t(p_.hidden)] : nullptr,
                        store_.find(op.gain)->packed.vector.data(), op.epsilon, p_.hidden, act_[r].data());
        }
    }
    void run_op(const Linear& op) {
        std::vector<float>& target = op.output == Value::qkv     ? qkv_
                                     : op.output == Value::delta ? delta_
                                                                 : gate_up_;
        for (size_t r = 0; r < act_.size(); ++r) {
            float* out = &target[r * (target.size() / act_.size())];
            for (int32_t i = 0; i < op.part_count; ++i) {
                const float* bias = op.parts[i].bias == no_weight
                                        ? nullptr
                                        : store_.find(op.parts[i].bias)->packed.vector.data();
                const std::vector<float> part = linear(matrix(op.parts[i].weight), bias, act_[r]);
                out = std::copy(part.begin(), part.end(), out);
            }
        }
    }
    void run_op(const RopeWrite& op) {
        size_t before = 0;
        for (int32_t i = 0; i < op.rope_table; ++i) before += size_t(p_.rope_pairs[size_t(i)]) * act_.size();
        for (size_t r = 0; r < act_.size(); ++r) {
            const float* cos_sin = in_->cos_sin.data() + (before + r * size_t(op.rotary_dims / 2)) * 2;
            float* queries = &qkv_[r * size_t(qkv_columns())];
            k_.rope(shape(), {op.pair_order, op.rotary_dims, op.query_scale}, cos_sin, queries);
            const int32_t slot = in_->groups[0].slots[r];
            const float* keys = queries + p_.heads * p_.head_dim;
            if (slot >= 0) k_.write_kv(cache(op.layer), keys, keys + p_.kv_heads * p_.head_dim, slot);
        }
    }
    void run_op(const Attend& op) {
        const size_t bytes = cpu::attention_scratch_bytes(shape(), pool_blocks * 16);
        const std::unique_ptr<void, decltype(&std::free)> scratch(
            std::aligned_alloc(64, (bytes + 63) / 64 * 64), std::free);
        for (const AttentionWork& work : in_->groups[0].work) {
            for (int32_t i = 0; i < work.rows; ++i) {
                const auto r = size_t(work.first_row + i);
                for (int32_t head = 0; head < p_.kv_heads; ++head) {
                    k_.attend(shape(), cache(op.layer), in_->groups[0].block_table.data() + work.first_block,
                              work.first_position + i, 1, head, &qkv_[r * size_t(qkv_columns())],
                              size_t(qkv_columns()), &attended_[r * size_t(p_.heads * p_.head_dim)],
                              size_t(p_.heads * p_.head_dim), scratch.get());
                }
            }
        }
    }
    void run_op(const Quantize&) {
        const auto columns = size_t(p_.heads * p_.head_dim);
        for (size_t r = 0; r < act_.size(); ++r) {
            act_[r].assign(attended_.begin() + long(r * columns),
                           attended_.begin() + long((r + 1) * columns));
        }
    }
    void run_op(const Gate& op) {
        for (size_t r = 0; r < act_.size(); ++r) {
            act_[r].resize(size_t(p_.feed_forward));
            k_.gate(op.kind, &gate_up_[r * size_t(p_.feed_forward) * 2], p_.feed_forward, act_[r].data());
        }
    }
    void run_op(const Logits& op) {
        for (const int32_t row : in_->logit_rows) {
            outputs_.push_back({linear(matrix(op.weight), nullptr, act_[size_t(row)]), 0, 0, 0, {}});
        }
    }
    void run_op(const Candidates&) {
        for (size_t i = 0; i < outputs_.size(); ++i) {
            RowResult row;
            k_.candidates(outputs_[i].logits.data(), p_.vocabulary, in_->inverse_temperatures[i], &row);
            outputs_[i] = output_of(row, outputs_[i].logits.data(), p_.vocabulary);
        }
    }

    const Program& p_;
    const cpu::CpuWeightStore& store_;
    const cpu::Kernels& k_;
    const PassInput* in_ = nullptr;
    std::vector<treadle::test::KvTestCache> layers_;
    std::vector<float> residual_, qkv_, attended_, delta_, gate_up_;
    std::vector<std::vector<float>> act_;
    std::vector<RowOutput> outputs_;
};

// A store, its program and a backend.
struct Fixture {
    explicit Fixture(CpuTier tier, int32_t threads = 1, ParallelForHook hook = {},
                     ClockHook clock = system_clock(), TinyShape shape = {}, Dims most = {64, 64})
        : memory(heap.hooks()) {
        Error error;
        REQUIRE(cpu::make_cpu_weight_store(tier, memory, &store, &error) == Status::OK);
        program = std::make_unique<Program>(tiny_program(shape, *store, &memory.other, 1));
        REQUIRE(store->make_backend({threads, hook, clock}, memory, &backend, &error) == Status::OK);
        REQUIRE(backend->kv_create(*program, pool_blocks, &error) == Status::OK);
        const Status built = backend->build(*program, most, &error);
        INFO(error.message);
        REQUIRE(built == Status::OK);
    }
    TestHeap heap;
    MemorySet memory;
    Owned<WeightStore> store;
    std::unique_ptr<Program> program;
    Owned<Backend> backend;
};

std::vector<TestSequence> make_sequences(int32_t count, int32_t length, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> blocks(pool_blocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random);
    std::vector<TestSequence> sequences(static_cast<size_t>(count));
    size_t next = 0;
    for (TestSequence& sequence : sequences) {
        for (int32_t i = 0; i < length; ++i) sequence.tokens.push_back(static_cast<int32_t>(random() % 333));
        for (int32_t i = 0; i < (length + 15) / 16; ++i) sequence.blocks.push_back(blocks[next++]);
    }
    return sequences;
}

// The workload of most tests: three sequences in chunks and single tokens, some without logits.
std::vector<TestPass> make_passes(const Program& program) {
    static thread_local std::vector<TestSequence> sequences;
    sequences = make_sequences(3, 60, 5);
    std::vector<TestPass> passes;
    passes.reserve(8);
    passes.emplace_back(program,
                        std::vector<PassRows>{{&sequences[0], 33, true}, {&sequences[1], 17, false}});
    passes.emplace_back(program, std::vector<PassRows>{{&sequences[0], 1, true}});
    passes.emplace_back(
        program,
        std::vector<PassRows>{{&sequences[1], 1, true}, {&sequences[2], 40, true}, {&sequences[0], 9, true}});
    passes.emplace_back(program, std::vector<PassRows>{{&sequences[2], 2, false}});
    passes.emplace_back(
        program,
        std::vector<PassRows>{{&sequences[2], 1, true}, {&sequences[1], 1, true}, {&sequences[0], 1, true}});
    return passes;
}

void run_in_order(void*, void (*body)(void*, int32_t), void* context, int32_t count) {
    for (int32_t i = 0; i < count; ++i) body(context, i);
}
void run_reversed_in_odd_mode(void*, void (*body)(void*, int32_t), void* context, int32_t count) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x1F80 | 0x8040 | 0x2000);  // flush to zero, denormals are zero, round down
    for (int32_t i = count; i-- > 0;) body(context, i);
    _mm_setcsr(before);
}
void run_on_threads(void*, void (*body)(void*, int32_t), void* context, int32_t count) {
    std::vector<std::thread> threads;
    for (int32_t i = 0; i < count; ++i) {
        threads.emplace_back([=] {
            _mm_setcsr(0x1F80 | 0x8040 | 0x2000);
            body(context, i);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

int64_t tick(void* user) { return ++*static_cast<int64_t*>(user); }

void finish(Backend& backend) {
    const AdvanceResult result = backend.advance(INT64_MAX, 99);
    REQUIRE(result.status == Status::OK);
    REQUIRE(result.state == PassState::done);
}

}  // namespace

TEST_CASE(
    "a pass equals the program run literally, on every tier, thread count and hook, wherever it is cut") {
    Fixture reference(CpuTier::scalar);
    Interpreter interpreter(*reference.program, static_cast<const cpu::CpuWeightStore&>(*reference.store));
    std::vector<std::vector<RowOutput>> expected;
    for (const TestPass& pass : make_passes(*reference.program))
        expected.push_back(interpreter.run(pass.input()));
    REQUIRE(expected[0].size() == 1);
    REQUIRE(expected[2].size() == 3);

    const ParallelForHook hooks[] = {
        {}, {nullptr, run_in_order}, {nullptr, run_reversed_in_odd_mode}, {nullptr, run_on_threads}};
    for (const CpuTier tier : test::runnable_tiers()) {
        for (const int32_t threads : {1, 2, 3}) {
            for (const ParallelForHook& hook : hooks) {
                for (const bool cut : {false, true}) {
                    if (cut && hook.run == run_on_threads) continue;  // slow, and cut by the others
                    int64_t now = 0;
                    Fixture f(tier, threads, hook, cut ? ClockHook{&now, tick} : system_clock());
                    size_t index = 0;
                    for (TestPass& pass : make_passes(*f.program)) {
                        REQUIRE(f.backend->begin(pass.input(), pass.dims()) == Status::OK);
                        pass.poison();
                        CHECK(f.backend->results().rows.empty());
                        int64_t calls = 0;
                        while (cut && f.backend->advance(0, threads).state == PassState::more) ++calls;
                        finish(*f.backend);
                        if (cut) CHECK(calls > 5);
                        CHECK(outputs_of(*f.backend, f.program->vocabulary) == expected[index]);
                        ++index;
                    }
                }
            }
        }
    }
}

TEST_CASE("a long context is shared by threads, and equals the program run literally") {
    const auto make = [](const Program& program, std::vector<TestSequence>& sequences) {
        std::vector<TestPass> passes;
        for (int32_t done = 0; done < 576; done += 64)
            passes.emplace_back(program, std::vector<PassRows>{{&sequences[0], 64, true}});
        passes.emplace_back(program, std::vector<PassRows>{{&sequences[0], 1, true}});
        passes.emplace_back(program,
                            std::vector<PassRows>{{&sequences[1], 3, true}, {&sequences[0], 1, true}});
        return passes;
    };
    Fixture reference(CpuTier::scalar);
    Interpreter interpreter(*reference.program, static_cast<const cpu::CpuWeightStore&>(*reference.store));
    std::vector<TestSequence> sequences = make_sequences(1, 600, 15);
    sequences.push_back({{1, 2, 3}, {}});
    for (int32_t block = 0; sequences[1].blocks.empty(); ++block) {
        const std::vector<int32_t>& taken = sequences[0].blocks;
        if (std::count(taken.begin(), taken.end(), block) == 0) sequences[1].blocks.push_back(block);
    }
    std::vector<TestSequence> fresh = sequences;
    std::vector<std::vector<RowOutput>> expected;
    for (const TestPass& pass : make(*reference.program, sequences))
        expected.push_back(interpreter.run(pass.input()));
    for (const int32_t threads : {1, 2, 3}) {
        for (const bool cut : {false, true}) {
            sequences = fresh;
            int64_t now = 0;
            Fixture f(CpuTier::scalar, threads, {}, cut ? ClockHook{&now, tick} : system_clock());
            size_t index = 0;
            for (TestPass& pass : make(*f.program, sequences)) {
                REQUIRE(f.backend->begin(pass.input(), pass.dims()) == Status::OK);
                while (cut && f.backend->advance(0, threads).state == PassState::more) continue;
                finish(*f.backend);
                CHECK(outputs_of(*f.backend, f.program->vocabulary) == expected[index]);
                ++index;
            }
        }
    }
}

TEST_CASE("the caller's rounding mode neither matters nor changes") {
    Fixture f(CpuTier::automatic, 2);
    std::vector<std::vector<RowOutput>> outputs[2];
    for (const unsigned mode : {0x1F80u, 0x1F80u | 0x8040 | 0x2000}) {
        for (TestPass& pass : make_passes(*f.program)) {
            REQUIRE(f.backend->begin(pass.input(), pass.dims()) == Status::OK);
            const unsigned before = _mm_getcsr();
            _mm_setcsr(mode);
            const AdvanceResult result = f.backend->advance(INT64_MAX, 2);
            const unsigned after = _mm_getcsr();
            _mm_setcsr(before);
            CHECK(after == mode);
            CHECK(result.state == PassState::done);
            outputs[mode != 0x1F80].push_back(outputs_of(*f.backend, f.program->vocabulary));
        }
    }
    CHECK(outputs[0] == outputs[1]);
}

TEST_CASE("a sequence alone, in chunks of any size, equals itself among others") {
    Fixture f(CpuTier::automatic, 2);
    std::vector<TestSequence> sequences = make_sequences(3, 50, 9);
    TestPass whole(*f.program,
                   {{&sequences[0], 20, false}, {&sequences[1], 40, true}, {&sequences[2], 4, true}});
    REQUIRE(f.backend->begin(whole.input(), whole.dims()) == Status::OK);
    finish(*f.backend);
    const RowOutput expected = outputs_of(*f.backend, f.program->vocabulary)[0];
    for (const int32_t chunk : {1, 3, 7, 8, 16, 40}) {
        TestSequence& sequence = sequences[1];
        sequence.computed = 0;
        while (sequence.computed < 40) {
            const int32_t count = std::min(chunk, 40 - sequence.computed);
            TestPass pass(*f.program, {{&sequence, count, sequence.computed + count == 40}});
            REQUIRE(f.backend->begin(pass.input(), pass.dims()) == Status::OK);
            finish(*f.backend);
        }
        CHECK(outputs_of(*f.backend, f.program->vocabulary)[0] == expected);
    }
}

TEST_CASE("blocks are copied before everything else, in order") {
    Fixture f(CpuTier::automatic, 3);
    std::vector<TestSequence> sequences = make_sequences(1, 40, 11);
    TestSequence& original = sequences[0];
    TestPass first(*f.program, {{&original, 30, false}});
    REQUIRE(f.backend->begin(first.input(), first.dims()) == Status::OK);
    finish(*f.backend);

    std::vector<int32_t> unused;
    for (int32_t block = 0; unused.size() < 3; ++block) {
        if (std::count(original.blocks.begin(), original.blocks.end(), block) == 0) unused.push_back(block);
    }
    TestSequence fork = original;  // its second block is copied by way of another
    fork.blocks[1] = unused[1];
    TestPass forked(*f.program, {{&fork, 1, true}, {&original, 1, true}},
                    {{original.blocks[1], unused[0]}, {unused[0], unused[1]}});
    REQUIRE(f.backend->begin(forked.input(), forked.dims()) == Status::OK);
    finish(*f.backend);
    const std::vector<RowOutput> outputs = outputs_of(*f.backend, f.program->vocabulary);
    CHECK(outputs[0].logits == outputs[1].logits);

    TestPass onward(*f.program, {{&fork, 1, true}});
    REQUIRE(f.backend->begin(onward.input(), onward.dims()) == Status::OK);
    finish(*f.backend);
    const RowOutput of_fork = outputs_of(*f.backend, f.program->vocabulary)[0];
    TestPass same(*f.program, {{&original, 1, true}});
    REQUIRE(f.backend->begin(same.input(), same.dims()) == Status::OK);
    finish(*f.backend);
    CHECK(outputs_of(*f.backend, f.program->vocabulary)[0] == of_fork);
}

TEST_CASE("a row with slot -1 is computed and writes nothing") {
    Fixture f(CpuTier::automatic);
    std::vector<TestSequence> sequences = make_sequences(1, 20, 12);
    TestPass whole(*f.program, {{&sequences[0], 20, true}});
    REQUIRE(f.backend->begin(whole.input(), whole.dims()) == Status::OK);
    finish(*f.backend);
    const std::vector<RowOutput> expected = outputs_of(*f.backend, f.program->vocabulary);
    sequences[0].computed = 19;
    TestPass last(*f.program, {{&sequences[0], 1, true}});
    last.slots[0] = -1;
    REQUIRE(f.backend->begin(last.input(), last.dims()) == Status::OK);
    finish(*f.backend);
    CHECK(outputs_of(*f.backend, f.program->vocabulary) == expected);
}

TEST_CASE("begin refuses what does not fit, and the backend goes on") {
    Fixture f(CpuTier::automatic, 1, {}, system_clock(), {}, {16, 2});
    std::vector<TestSequence> sequences = make_sequences(3, 40, 13);
    const auto refused = [&](auto change) {
        for (TestSequence& sequence : sequences) sequence.computed = 0;
        TestPass pass(*f.program, {{&sequences[0], 5, true}, {&sequences[1], 3, true}});
        PassInput input = pass.input();
        Dims dims = pass.dims();
        change(pass, input, dims);
        const Status status = f.backend->begin(input, dims);
        if (status != Status::OK) CHECK(f.backend->advance(0, 1).state == PassState::done);
        return status == Status::INVALID_ARGUMENT;
    };
    CHECK(refused([](TestPass&, PassInput&, Dims& dims) { dims.tokens = 0; }));
    CHECK(refused([](TestPass&, PassInput&, Dims& dims) { dims.tokens = 17; }));
    CHECK(refused([](TestPass&, PassInput&, Dims& dims) { dims.tokens = INT32_MIN; }));
    CHECK(refused([](TestPass&, PassInput&, Dims& dims) { dims.logit_rows = 3; }));
    CHECK(refused([](TestPass&, PassInput&, Dims& dims) { dims.logit_rows = -1; }));
    CHECK(refused([](TestPass&, PassInput& input, Dims&) { input.tokens = input.tokens.subspan(1); }));
    CHECK(refused([](TestPass&, PassInput& input, Dims&) { input.positions = {}; }));
    CHECK(refused([](TestPass&, PassInput& input, Dims&) { input.groups = {}; }));
    CHECK(refused([](TestPass&, PassInput& input, Dims&) { input.cos_sin = input.cos_sin.subspan(2); }));
    CHECK(refused([](TestPass&, PassInput& input, Dims&) { input.inverse_temperatures = {}; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.tokens[2] = 333; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.tokens[2] = -1; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.slots[0] = -2; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.slots[0] = pool_blocks * 16; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.block_table[0] = pool_blocks; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.block_table[0] = -1; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.logit_rows[1] = 8; }));
    CHECK(refused(
        [](TestPass& pass, PassInput&, Dims&) { std::swap(pass.logit_rows[0], pass.logit_rows[1]); }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.work[0].rows = 4; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.work[1].rows = INT32_MAX; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.work[1].rows = 2; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.work[1].first_position = -1; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.work[1].first_position = INT32_MAX; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.work[1].first_block = 6; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.work[1].first_block = -1; }));
    CHECK(refused([](TestPass& pass, PassInput&, Dims&) { pass.work[1].first_position = 48; }));
    std::vector<BlockCopy> copies = {{0, pool_blocks}};
    GroupInput group;
    CHECK(refused([&](TestPass&, PassInput& input, Dims&) {
        group = input.groups[0];
        group.copies = copies;
        input.groups = {&group, 1};
    }));
    CHECK(!refused([](TestPass&, PassInput&, Dims&) {}));
    TestPass another(*f.program, {{&sequences[2], 5, true}});
    CHECK(f.backend->begin(another.input(), another.dims()) == Status::INTERNAL);  // one is under way
    finish(*f.backend);
    CHECK(f.backend->begin(another.input(), another.dims()) == Status::OK);
    finish(*f.backend);
    CHECK(f.backend->results().rows.size() == 1);
}

TEST_CASE("build refuses programs that do not fit their weights") {
    TestHeap heap;
    MemorySet memory(heap.hooks());
    Owned<WeightStore> store;
    Error error;
    REQUIRE(cpu::make_cpu_weight_store(CpuTier::scalar, memory, &store, &error) == Status::OK);
    const auto built = [&](auto change) {
        Program program = tiny_program({}, *store, &memory.other, 2);
        Owned<Backend> backend;
        REQUIRE(store->make_backend({1, {}, system_clock()}, memory, &backend, &error) == Status::OK);
        Dims dims{8, 8};
        REQUIRE(backend->kv_create(program, 4, &error) == Status::OK);
        change(program, dims);
        error = {};
        const Status status = backend->build(program, dims, &error);
        if (status != Status::OK) {
            CHECK(error.message[0] != 0);
            CHECK(backend->begin({}, {}) == Status::INTERNAL);
            CHECK(backend->advance(0, 1).status == Status::INTERNAL);
            CHECK(backend->results().rows.empty());
        }
        return status;
    };
    CHECK(built([](Program&, Dims&) {}) == Status::OK);
    CHECK(built([](Program& p, Dims&) { std::get<Embed>(p.ops[0]).weight = 100000; }) == Status::CORRUPT);
    CHECK(built([](Program& p, Dims&) { std::get<Embed>(p.ops[0]).weight = -1; }) == Status::CORRUPT);
    CHECK(built([](Program& p, Dims&) {
              std::get<AddNorm>(p.ops[1]).gain = std::get<Embed>(p.ops[0]).weight;
          }) == Status::CORRUPT);
    CHECK(built([](Program& p, Dims&) { std::get<Linear>(p.ops[2]).part_count = 2; }) == Status::CORRUPT);
    CHECK(built([](Program& p, Dims&) { std::get<Linear>(p.ops[2]).part_count = 4; }) == Status::INTERNAL);
    CHECK(built([](Program& p, Dims&) { std::get<Linear>(p.ops[2]).output = Value::logits; }) ==
          Status::CORRUPT);
    CHECK(built([](Program& p, Dims&) {
              std::get<Linear>(p.ops[2]).parts[0].bias = std::get<AddNorm>(p.ops[1]).gain;
          }) == Status::CORRUPT);
    CHECK(built([](Program& p, Dims&) { std::get<RopeWrite>(p.ops[3]).rope_table = 2; }) == Status::INTERNAL);
    CHECK(built([](Program& p, Dims&) { std::get<RopeWrite>(p.ops[3]).layer = 2; }) == Status::INTERNAL);
    CHECK(built([](Program& p, Dims&) { std::get<Attend>(p.ops[4]).group = 1; }) == Status::INTERNAL);
    CHECK(built([](Program& p, Dims&) { p.ops.erase(p.ops.begin() + 1); }) == Status::INTERNAL);
    CHECK(built([](Program& p, Dims&) { p.vocabulary = 334; }) == Status::CORRUPT);
    CHECK(built([](Program& p, Dims&) { p.hidden = 0; }) == Status::LIMIT);
    CHECK(built([](Program& p, Dims&) { p.head_dim = 24; }) == Status::CORRUPT);
    CHECK(built([](Program& p, Dims&) { p.groups[0].layers = 3; }) == Status::INTERNAL);
    CHECK(built([](Program&, Dims& d) { d.tokens = 0; }) == Status::LIMIT);
    CHECK(built([](Program&, Dims& d) { d.logit_rows = 9; }) == Status::LIMIT);

    Owned<Backend> backend;
    CHECK(store->make_backend({0, {}, system_clock()}, memory, &backend, &error) == Status::INVALID_ARGUMENT);
    CHECK(store->make_backend({1, {}, {}}, memory, &backend, &error) == Status::INVALID_ARGUMENT);
    REQUIRE(store->make_backend({1, {}, system_clock()}, memory, &backend, &error) == Status::OK);
    Program program = tiny_program({}, *store, &memory.other, 2);
    CHECK(backend->kv_create(program, 0, &error) == Status::LIMIT);
    CHECK(backend->kv_create(program, INT32_MAX, &error) == Status::LIMIT);
    CHECK(backend->build(program, {8, 8}, &error) == Status::INTERNAL);  // no cache yet
    CHECK(backend->kv_bytes_per_block(program) == 2u * 2 * 32 * 16 * 2 * 2);
}

TEST_CASE("a pass allocates nothing, and everything is given back") {
    TestHeap heap;
    {
        MemorySet memory(heap.hooks());
        Owned<WeightStore> store;
        Error error;
        REQUIRE(cpu::make_cpu_weight_store(CpuTier::automatic, memory, &store, &error) == Status::OK);
        Program program = tiny_program({}, *store, &memory.other, 3);
        CHECK(store->bytes() == memory.weights.bytes_in_use());
        Owned<Backend> backend;
        REQUIRE(store->make_backend({2, {}, system_clock()}, memory, &backend, &error) == Status::OK);
        REQUIRE(backend->kv_create(program, pool_blocks, &error) == Status::OK);
        CHECK(memory.kv.bytes_in_use() == backend->kv_bytes_per_block(program) * pool_blocks);
        REQUIRE(backend->build(program, {64, 3}, &error) == Status::OK);
        heap.refuse = true;
        for (TestPass& pass : make_passes(program)) {
            REQUIRE(backend->begin(pass.input(), pass.dims()) == Status::OK);
            finish(*backend);
        }
        heap.refuse = false;
    }
    CHECK(heap.live == 0);
}

TEST_CASE("a backend is abandoned and destroyed with a pass under way") {
    for (int round = 0; round < 20; ++round) {
        Fixture f(CpuTier::automatic, 3);
        std::vector<TestPass> passes = make_passes(*f.program);
        REQUIRE(f.backend->begin(passes[0].input(), passes[0].dims()) == Status::OK);
        const int64_t deadline = system_clock().now() + round * 10'000;
        const bool done = f.backend->advance(deadline, 3).state == PassState::done;
        if (round % 2 == 0) {
            f.backend->abandon();
            CHECK(f.backend->results().rows.empty() == !done);
            REQUIRE(f.backend->begin(passes[0].input(), passes[0].dims()) == Status::OK);
            finish(*f.backend);
            CHECK(f.backend->results().rows.size() == 1);
            f.backend->abandon();  // nothing is under way: the results stay
            CHECK(f.backend->results().rows.size() == 1);
        }
    }
}

TEST_CASE("a pass abandoned after any of its tiles leaves nothing to the next") {
    const Fixture reference(CpuTier::scalar);
    const std::vector<TestPass> passes = make_passes(*reference.program);
    const TestPass& pass = passes[0];
    REQUIRE(reference.backend->begin(pass.input(), pass.dims()) == Status::OK);
    finish(*reference.backend);
    const std::vector<RowOutput> expected = outputs_of(*reference.backend, reference.program->vocabulary);

    int64_t now = 0;
    const Fixture f(CpuTier::scalar, 3, {nullptr, run_in_order}, {&now, tick});
    int32_t tiles = 0;
    for (bool done = false; !done; ++tiles) {
        REQUIRE(f.backend->begin(pass.input(), pass.dims()) == Status::OK);
        for (int32_t i = 0; i < tiles && !done; ++i) done = f.backend->advance(0, 1).state == PassState::done;
        if (!done) f.backend->abandon();
        REQUIRE((done || f.backend->begin(pass.input(), pass.dims()) == Status::OK));
        finish(*f.backend);
        CHECK(outputs_of(*f.backend, f.program->vocabulary) == expected);
    }
    CHECK(tiles > 50);
}

TEST_CASE("the store picks a tier and refuses bad tensors") {
    TestHeap heap;
    MemorySet memory(heap.hooks());
    Owned<WeightStore> store;
    Error error;
    REQUIRE(cpu::make_cpu_weight_store(CpuTier::scalar, memory, &store, &error) == Status::OK);
    CHECK(std::string(store->tier()) == "scalar");
    CHECK(std::string(store->numerics_id()) == "cpu-1");
    for (const CpuTier tier : {CpuTier::sse41, CpuTier::avx2, CpuTier::avx2_vnni, CpuTier::avx512}) {
        const Status status = cpu::make_cpu_weight_store(tier, memory, &store, &error);
        CHECK(status == (cpu::cpu_has(tier) ? Status::OK : Status::INVALID_ARGUMENT));
        if (status == Status::OK) CHECK(std::string(store->tier()) == cpu::kernels_of(tier).tier);
    }
    REQUIRE(cpu::make_cpu_weight_store(CpuTier::automatic, memory, &store, &error) == Status::OK);
    CHECK(std::string(store->tier()) == cpu::kernels_of(cpu::best_tier()).tier);
    CHECK(cpu::make_cpu_weight_store(CpuTier(7), memory, &store, &error) == Status::INVALID_ARGUMENT);

    WeightId id = 55;
    RandomTensor tensor("odd", 0, 4, 32, 1);
    tensor.type = 999;
    CHECK(store->add(tensor, WeightUse::matrix, &id, &error) == Status::UNSUPPORTED_TYPE);
    CHECK(id == 55);
    store->allocate();
    CHECK(store->bytes() == 0);
}
