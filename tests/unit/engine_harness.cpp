// Bodies of the harness: a backend that listens, a sink that drops events, a loop that steps.
#include "engine_harness.h"

#include <algorithm>
#include <stdexcept>

#include "base/float_mode.h"
#include "runner/kept_dims.h"

namespace treadle::test {
namespace {

// Passes everything through and notes the hash of each row of logits.
class ListeningBackend final : public Backend {
public:
    ListeningBackend(Owned<Backend> inner, int32_t vocabulary, Outcome* out, bool keep)
        : inner_(std::move(inner)), vocabulary_(static_cast<size_t>(vocabulary)), out_(out), keep_(keep) {}

    size_t kv_bytes_per_block(const Program& program) const override {
        return inner_->kv_bytes_per_block(program);
    }
    Status kv_create(const Program& program, int32_t blocks, Error* error) override {
        return inner_->kv_create(program, blocks, error);
    }
    void* kv_allocate(int32_t slab) override { return inner_->kv_allocate(slab); }
    void kv_free(int32_t slab, void* memory) override { inner_->kv_free(slab, memory); }
    void* kv_exchange(int32_t slab, void* memory) override { return inner_->kv_exchange(slab, memory); }
    Status build(const Program& program, Dims max, Error* error) override {
        return inner_->build(program, max, error);
    }
    Status begin(const PassInput& input, Dims dims) override {
        positions_.clear();
        for (const int32_t row : input.logit_rows)
            positions_.push_back(input.positions[static_cast<size_t>(row)]);
        return inner_->begin(input, dims);
    }
    AdvanceResult advance(int64_t deadline_ns, int32_t max_threads) override {
        const AdvanceResult result = inner_->advance(deadline_ns, max_threads);
        if (result.status == Status::OK && result.state == PassState::done) note();
        return result;
    }
    void abandon() override { inner_->abandon(); }
    PassResults results() const override { return inner_->results(); }

private:
    void note() {
        const float* logits = inner_->results().logits;
        for (size_t i = 0; i < positions_.size(); i++) {
            const float* row = logits + i * vocabulary_;
            out_->rows.emplace_back(positions_[i], hash_bytes(row, vocabulary_ * sizeof(float)));
            if (keep_) out_->logits.insert(out_->logits.end(), row, row + vocabulary_);
        }
    }

    Owned<Backend> inner_;
    size_t vocabulary_;
    Outcome* out_;
    bool keep_;
    std::vector<int32_t> positions_;
};

void require(Status status, const Error& error) {
    if (status != Status::OK)
        throw std::runtime_error(std::string(status_name(status)) + ": " + error.message);
}

Owned<Backend> backend_for(const LoadedModel& model, MemorySet& memory, const Setting& setting,
                           const ClockHook& clock) {
    Owned<Backend> backend;
    Error error;
    require(model.model().weight_store().make_backend({setting.threads, setting.parallel_for, clock}, memory,
                                                      &backend, &error),
            error);
    return backend;
}

Owned<Engine> engine_over(const LoadedModel& model, MemorySet& memory, const EngineParams& params,
                          Owned<Backend> backend) {
    Owned<Engine> engine;
    Error error;
    const EngineModel parts = {&model.program(), &model.model().rope_table(), &model.vocabulary(),
                               model.model().facts().fingerprint, model.model().weight_store().numerics_id()};
    require(make_engine(memory, parts, model.model().hyper_parameters().context, params, std::move(backend),
                        &engine, &error),
            error);
    return engine;
}

}  // namespace

Owned<Engine> make_engine_over(const LoadedModel& model, MemorySet& memory, EngineParams params,
                               WeightStore* store) {
    params.clock = system_clock();
    Owned<Backend> backend;
    Error error;
    WeightStore& weights = store == nullptr ? model.model().weight_store() : *store;
    require(weights.make_backend({params.threads, {}, params.clock}, memory, &backend, &error), error);
    return engine_over(model, memory, params, std::move(backend));
}

LoadedModel::LoadedModel(FileReader& file, cpu::CpuTier tier) {
    Error error;
    Owned<WeightStore> store;
    require(cpu::make_cpu_weight_store(tier, memory_, &store, &error), error);
    require(load_model(file, {}, {}, std::move(store), memory_, &model_, &error), error);
    model_->emit(&program_);
}

void LoadedModel::keep_kv_as(KvType keys, KvType values) {
    model_->emit(&program_);
    if (keys == KvType::tbq4x) {
        Error error;
        Owned<Backend> backend;
        require(model_->weight_store().make_backend({1, {}, system_clock()}, memory_, &backend, &error),
                error);
        require(choose_kept_dims(program_, model_->rope_table(), *backend, {}, &program_.kept_dims, &error),
                error);
    }
    for (KvGroup& group : program_.groups) {
        group.key_type = keys;
        group.value_type = values;
    }
}

std::unique_ptr<LoadedModel> load_bytes(const Bytes& file, cpu::CpuTier tier) {
    TestAllocator allocator;
    Memory memory(allocator.hooks(), MemoryKind::other);
    const Owned<FileReader> reader = open_memory(file.data(), file.size(), &memory);
    return std::make_unique<LoadedModel>(*reader, tier);
}

std::unique_ptr<LoadedModel> load_path(const char* path, cpu::CpuTier tier) {
    TestAllocator allocator;
    Memory memory(allocator.hooks(), MemoryKind::other);
    Owned<FileReader> reader;
    Error error;
    require(open_file(path, &memory, &reader, &error), error);
    return std::make_unique<LoadedModel>(*reader, tier);
}

Outcome run_jobs(const LoadedModel& model, const std::vector<Job>& jobs, const Setting& setting) {
    TestAllocator allocator;
    MemorySet memory(allocator.hooks());
    Outcome out;
    TickingClock clock;
    Error error;
    const ClockHook hook = setting.cut_each_tile ? clock.hook() : system_clock();
    Owned<Backend> backend =
        make_owned<ListeningBackend>(&memory.other, backend_for(model, memory, setting, hook),
                                     model.program().vocabulary, &out, setting.keep_logits);
    EngineParams params;
    params.max_sequences = setting.max_sequences;
    params.max_batch_tokens = setting.max_batch_tokens;
    params.kv_blocks = setting.kv_blocks;
    params.threads = setting.threads;
    params.clock = hook;
    const Owned<Engine> engine = engine_over(model, memory, params, std::move(backend));

    std::vector<uint64_t> ids(jobs.size());
    const auto submit = [&](size_t order) {
        const size_t index = setting.backwards ? jobs.size() - 1 - order : order;
        const Job& job = jobs[index];
        RequestParams asked(&memory.other);
        asked.sampling = job.sampling;
        asked.first_sample = job.first_sample;
        asked.ignore_end = true;
        asked.keep = true;
        std::pmr::vector<int32_t> prompt(job.prompt.begin(), job.prompt.end(), &memory.other);
        require(engine->submit(std::move(asked), std::move(prompt), job.max_tokens, &ids[index], &error),
                error);
    };

    size_t submitted = 0;
    DropEvents sink;
    StepReport report;
    do {
        while (submitted < jobs.size() &&
               (setting.submit_every == 0 ||
                out.steps >= static_cast<int64_t>(submitted) * setting.submit_every))
            submit(submitted++);
        require(engine->step({setting.cut_each_tile ? 1 : 0, 0}, &report), {});
        engine->poll(sink, SIZE_MAX);
        out.steps++;
    } while (report.next_step_us == 0 || report.waiting_poll > 0 || submitted < jobs.size());

    for (const uint64_t id : ids) {
        RequestInfo info;
        require(engine->request_info(id, &info), {});
        std::vector<int32_t> tokens(static_cast<size_t>(info.prompt_tokens + info.generated_tokens));
        size_t count = 0;
        require(engine->sequence_tokens(id, 0, tokens, &count, &error), {});
        out.tokens.push_back(std::move(tokens));
        out.statuses.push_back(info.failure.status);
    }
    std::sort(out.rows.begin(), out.rows.end());
    return out;
}

std::vector<float> logits_of(const LoadedModel& model, const std::vector<int32_t>& tokens, int32_t chunk) {
    TestAllocator allocator;
    MemorySet memory(allocator.hooks());
    const FloatMode float_mode;
    Error error;
    Owned<Backend> backend = backend_for(model, memory, {}, system_clock());
    const auto count = static_cast<int32_t>(tokens.size());
    const int32_t blocks = (count + limits::kv_block_tokens - 1) / limits::kv_block_tokens;
    require(backend->kv_create(model.program(), blocks, &error), error);
    require(backend->build(model.program(), {chunk, chunk}, &error), error);

    std::vector<int32_t> table(static_cast<size_t>(blocks));
    for (int32_t i = 0; i < blocks; i++)
        table[static_cast<size_t>(i)] = (i * 7 + 3) % blocks;  // any order does
    if (blocks % 7 == 0)
        for (int32_t i = 0; i < blocks; i++) table[static_cast<size_t>(i)] = blocks - 1 - i;
    const RopeTable& rope = model.model().rope_table();
    const auto pairs = static_cast<size_t>(rope.pairs());
    std::vector<float> out;
    for (int32_t first = 0; first < count; first += chunk) {
        const int32_t rows = std::min(chunk, count - first);
        std::vector<int32_t> positions, slots, logit_rows;
        std::vector<float> cos_sin(static_cast<size_t>(rows) * pairs * 2);
        const std::vector<float> temperatures(static_cast<size_t>(rows), 1.0f);
        for (int32_t i = 0; i < rows; i++) {
            positions.push_back(first + i);
            slots.push_back(table[static_cast<size_t>((first + i) / 16)] * 16 + (first + i) % 16);
            logit_rows.push_back(i);
            rope.fill(first + i, cos_sin.data() + static_cast<size_t>(i) * pairs * 2);
        }
        const AttentionWork work = {0, rows, first, 0};
        const GroupInput group = {slots, table, {&work, 1}, {}};
        const std::vector<int32_t> ids(tokens.begin() + first, tokens.begin() + first + rows);
        const PassInput input = {ids, positions, {&group, 1}, logit_rows, temperatures, cos_sin};
        require(backend->begin(input, {rows, rows}), {});
        const AdvanceResult result = backend->advance(INT64_MAX, 1);
        require(result.status, {});
        const float* logits = backend->results().logits;
        out.insert(out.end(), logits,
                   logits + static_cast<size_t>(rows) * static_cast<size_t>(model.program().vocabulary));
    }
    return out;
}

}  // namespace treadle::test
