// The tests' own backend: a decorator around another store and its backends that is late, pending, failing
// and poisoning. What holds with it holds for any backend that keeps the contract of ops/backend.h.
//
// - late: the first calls of advance after begin, and some later ones, do nothing and answer `more` or
//   `pending`
// - failing: begin or advance fails on demand (fail_next_*) or at a seeded rate; a failed advance has
//   abandoned its pass
// - poisoning: what results() gave before is overwritten with NaN by the next begin
//
// Invariant: a pass that ends without a failure has the bytes that the inner backend computed.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "ops/backend.h"

namespace treadle::tests {

// Shared by the store and its backends, so that a test can change it while an engine runs.
struct DoublePlan {
    uint32_t seed = 1;
    int32_t late_calls = 0;   // of advance, after each begin
    double pending_rate = 0;  // of later calls
    double begin_failure_rate = 0;
    double advance_failure_rate = 0;
    bool cut_every_tile = false;          // the deadline is taken as reached, whatever the caller says
    Status fail_next_begin = Status::OK;  // once, when not OK
    Status fail_next_advance = Status::OK;
    Status fail_next_build = Status::OK;

    int64_t begins = 0;  // what happened
    int64_t passes_done = 0;
    int64_t failures = 0;
    int64_t abandons = 0;
    int64_t pendings = 0;
};

// A store that forwards everything to `inner` and wraps its backends. Both `inner` and `plan` must outlive
// it.
class DoubleStore final : public WeightStore {
public:
    DoubleStore(WeightStore& inner, DoublePlan& plan) : inner_(inner), plan_(plan) {}
    [[nodiscard]] Status add(const WeightShape& tensor, WeightUse use, WeightId* out, Error* error) override {
        return inner_.add(tensor, use, out, error);
    }
    void allocate() override { inner_.allocate(); }
    void pack(WeightId id, int64_t first_row, int64_t rows, const void* bytes) override {
        inner_.pack(id, first_row, rows, bytes);
    }
    size_t bytes() const override { return inner_.bytes(); }
    const char* numerics_id() const override { return inner_.numerics_id(); }
    const char* tier() const override { return inner_.tier(); }
    [[nodiscard]] Status make_backend(const BackendParams& params, MemorySet& memory, Owned<Backend>* out,
                                      Error* error) override;

private:
    WeightStore& inner_;
    DoublePlan& plan_;
};

class DoubleBackend final : public Backend {
public:
    DoubleBackend(Owned<Backend> inner, DoublePlan& plan)
        : inner_(std::move(inner)), plan_(plan), random_(plan.seed) {}
    size_t kv_bytes_per_block(const Program& program) const override {
        return inner_->kv_bytes_per_block(program);
    }
    [[nodiscard]] Status kv_create(const Program& program, int32_t blocks, Error* error) override {
        return inner_->kv_create(program, blocks, error);
    }
    void* kv_allocate(int32_t slab) override { return inner_->kv_allocate(slab); }
    void kv_free(int32_t slab, void* memory) override { inner_->kv_free(slab, memory); }
    void* kv_exchange(int32_t slab, void* memory) override { return inner_->kv_exchange(slab, memory); }
    [[nodiscard]] Status build(const Program& program, Dims max, Error* error) override;
    [[nodiscard]] Status begin(const PassInput& input, Dims dims) override;
    AdvanceResult advance(int64_t deadline_ns, int32_t max_threads) override;
    void abandon() override;
    PassResults results() const override;

private:
    bool happens(double rate) { return std::uniform_real_distribution<double>(0, 1)(random_) < rate; }
    void poison_results();
    void keep_results();

    Owned<Backend> inner_;
    DoublePlan& plan_;
    std::mt19937 random_;
    int32_t vocabulary_ = 0;
    int32_t late_left_ = 0;
    bool under_way_ = false;
    bool has_results_ = false;
    std::vector<RowResult> rows_;  // what callers see: copies at stable addresses, of the greatest size
    std::vector<float> logits_;
    size_t row_count_ = 0;
};

}  // namespace treadle::tests
