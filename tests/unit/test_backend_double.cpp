// Bodies of the double, and the tests that it keeps what it promises.
#include "test_backend_double.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/platform.h"
#include "cpu/cpu_backend.h"
#include "test_backend_model.h"

namespace treadle::tests {

Status DoubleStore::make_backend(const BackendParams& params, MemorySet& memory, Owned<Backend>* out,
                                 Error* error) {
    Owned<Backend> inner;
    TREADLE_TRY(inner_.make_backend(params, memory, &inner, error));
    *out = make_owned<DoubleBackend>(&memory.other, std::move(inner), plan_);
    return Status::OK;
}

Status DoubleBackend::build(const Program& program, Dims max, Error* error) {
    const Status planned = std::exchange(plan_.fail_next_build, Status::OK);
    if (planned != Status::OK) return fail(error, planned, "the double was told to fail");
    vocabulary_ = program.vocabulary;
    rows_.resize(static_cast<size_t>(max.logit_rows));
    logits_.resize(static_cast<size_t>(max.logit_rows) * static_cast<size_t>(vocabulary_));
    return inner_->build(program, max, error);
}

Status DoubleBackend::begin(const PassInput& input, Dims dims) {
    REQUIRE(!under_way_);  // the one before must be done or abandoned
    ++plan_.begins;
    poison_results();
    Status failure = std::exchange(plan_.fail_next_begin, Status::OK);
    if (failure == Status::OK && happens(plan_.begin_failure_rate)) failure = Status::INTERNAL;
    if (failure == Status::OK) failure = inner_->begin(input, dims);
    if (failure != Status::OK) {
        ++plan_.failures;
        return failure;
    }
    under_way_ = true;
    late_left_ = plan_.late_calls;
    return Status::OK;
}

AdvanceResult DoubleBackend::advance(int64_t deadline_ns, int32_t max_threads) {
    if (!under_way_) return inner_->advance(deadline_ns, max_threads);
    Status failure = std::exchange(plan_.fail_next_advance, Status::OK);
    if (failure == Status::OK && happens(plan_.advance_failure_rate)) failure = Status::INTERNAL;
    if (failure != Status::OK) {
        ++plan_.failures;
        inner_->abandon();
        under_way_ = false;
        return {failure, PassState::done, 0};
    }
    if (late_left_ > 0) {
        --late_left_;
        return {Status::OK, PassState::more, 0};
    }
    if (happens(plan_.pending_rate)) {
        ++plan_.pendings;
        return {Status::OK, PassState::pending, 0};
    }
    const int64_t deadline = plan_.cut_every_tile ? std::numeric_limits<int64_t>::min() : deadline_ns;
    const AdvanceResult result = inner_->advance(deadline, max_threads);
    if (result.status != Status::OK || result.state == PassState::done) under_way_ = false;
    if (result.status == Status::OK && result.state == PassState::done) keep_results();
    return result;
}

void DoubleBackend::abandon() {
    if (under_way_) ++plan_.abandons;
    under_way_ = false;
    inner_->abandon();
}

PassResults DoubleBackend::results() const {
    if (under_way_ || !has_results_) return {};
    return {{rows_.data(), row_count_}, logits_.data()};
}

void DoubleBackend::keep_results() {
    const PassResults from = inner_->results();
    row_count_ = from.rows.size();
    REQUIRE(row_count_ <= rows_.size());
    std::copy(from.rows.begin(), from.rows.end(), rows_.begin());
    std::copy_n(from.logits, row_count_ * static_cast<size_t>(vocabulary_), logits_.begin());
    has_results_ = true;
    ++plan_.passes_done;
}

void DoubleBackend::poison_results() {
    std::fill(logits_.begin(), logits_.end(), std::numeric_limits<float>::quiet_NaN());
    if (!rows_.empty()) std::memset(static_cast<void*>(rows_.data()), 0xff, rows_.size() * sizeof rows_[0]);
    has_results_ = false;
}

}  // namespace treadle::tests

using namespace treadle;
using namespace treadle::tests;

TEST_CASE("the double is late, pending, failing and poisoning, and otherwise the backend it wraps") {
    TestHeap heap;
    MemorySet memory(heap.hooks());
    Owned<WeightStore> inner;
    Error error;
    REQUIRE(cpu::make_cpu_weight_store(cpu::CpuTier::automatic, memory, &inner, &error) == Status::OK);
    DoublePlan plan;
    DoubleStore store(*inner, plan);
    const Program program = tiny_program({}, store, &memory.other, 4);
    const auto make = [&](WeightStore& from) {
        Owned<Backend> backend;
        REQUIRE(from.make_backend({2, {}, system_clock()}, memory, &backend, &error) == Status::OK);
        REQUIRE(backend->kv_create(program, 4, &error) == Status::OK);
        return backend;
    };
    Owned<Backend> plain = make(*inner);
    Owned<Backend> twin = make(store);
    REQUIRE(plain->build(program, {8, 2}, &error) == Status::OK);
    plan.fail_next_build = Status::NOMEM;
    CHECK(twin->build(program, {8, 2}, &error) == Status::NOMEM);
    REQUIRE(twin->build(program, {8, 2}, &error) == Status::OK);

    TestSequence sequence;
    sequence.tokens = {1, 2, 3, 4, 5, 6, 7, 8};
    sequence.blocks = {2};
    TestPass pass(program, {{&sequence, 8, true}});
    REQUIRE(plain->begin(pass.input(), pass.dims()) == Status::OK);
    REQUIRE(plain->advance(INT64_MAX, 2).state == PassState::done);

    plan.fail_next_begin = Status::INTERNAL;
    CHECK(twin->begin(pass.input(), pass.dims()) == Status::INTERNAL);
    plan.late_calls = 5;
    plan.pending_rate = 0.5;
    plan.cut_every_tile = true;
    REQUIRE(twin->begin(pass.input(), pass.dims()) == Status::OK);
    plan.fail_next_advance = Status::NOMEM;
    CHECK(twin->advance(INT64_MAX, 2).status == Status::NOMEM);
    REQUIRE(twin->begin(pass.input(), pass.dims()) == Status::OK);
    int calls = 1;
    while (twin->advance(INT64_MAX, 2).state != PassState::done) ++calls;
    CHECK(calls > 10);
    CHECK(plan.pendings > 0);
    CHECK(plan.passes_done == 1);
    CHECK(plan.failures == 2);
    const PassResults expected = plain->results();
    const PassResults results = twin->results();
    REQUIRE(results.rows.size() == 1);
    CHECK(results.rows[0].max == expected.rows[0].max);
    CHECK(std::memcmp(results.logits, expected.logits, size_t(program.vocabulary) * 4) == 0);

    REQUIRE(twin->begin(pass.input(), pass.dims()) == Status::OK);
    CHECK(std::isnan(results.logits[0]));
    CHECK(twin->results().rows.empty());
    twin->abandon();
    CHECK(plan.abandons == 1);
}
