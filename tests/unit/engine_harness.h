// Runs workloads on a real engine over a model file in memory, and keeps what the one promise is about: each
// request's tokens, and the bytes of every row of logits. The tests of the engine compare two such runs by equality.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/platform.h"
#include "cpu/cpu_backend.h"
#include "engine/engine.h"
#include "gguf_writer.h"
#include "model/model.h"
#include "test_memory.h"

namespace treadle::test {

inline uint64_t hash_bytes(const void* bytes, size_t size,
                           uint64_t hash = 0xcbf29ce484222325u) {  // FNV-1a over 8-byte words
    const auto* at = static_cast<const unsigned char*>(bytes);
    for (; size >= 8; size -= 8, at += 8) {
        uint64_t word;
        __builtin_memcpy(&word, at, 8);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 32;
    }
    for (; size > 0; size--, at++) hash = (hash ^ *at) * 0x100000001b3u;
    return hash;
}

// A model and the memory that it lives in.
class LoadedModel {
public:
    LoadedModel(FileReader& file, cpu::CpuTier tier);
    const Model& model() const { return *model_; }
    const Program& program() const { return program_; }
    Vocabulary const& vocabulary() const { return model_->vocabulary(); }
    void keep_kv_as(KvType keys, KvType values);  // in the caches of engines made from now on

private:
    TestAllocator allocator_;
    MemorySet memory_{allocator_.hooks()};
    Owned<Model> model_;
    Program program_{&memory_.other};
};

std::unique_ptr<LoadedModel> load_bytes(const Bytes& file, cpu::CpuTier tier = cpu::CpuTier::automatic);
std::unique_ptr<LoadedModel> load_path(const char* path, cpu::CpuTier tier = cpu::CpuTier::automatic);

class DropEvents final : public EventSink {
public:
    bool take(const EventNode&, std::span<const TokenLogprob>) override { return true; }
};

// An engine over the model and a backend of its own, on the system's clock. `store`: whose backend, if not the model's.
Owned<Engine> make_engine_over(const LoadedModel& model, MemorySet& memory, EngineParams params,
                               WeightStore* store = nullptr);

// A clock that moves by a microsecond each time it is read, so that a budget of one microsecond cuts a pass after each tile.
struct TickingClock {
    int64_t now_us = 0;
    ClockHook hook() {
        return {this, [](void* user) { return ++static_cast<TickingClock*>(user)->now_us * 1000; }};
    }
};

struct Job {
    std::vector<int32_t> prompt;
    int32_t max_tokens = 8;
    SamplingParams sampling;
    uint32_t first_sample = 0;
};

struct Setting {
    int32_t max_sequences = 1;
    int32_t max_batch_tokens = 512;
    int32_t kv_blocks = 256;
    int32_t threads = 1;
    ParallelForHook parallel_for;
    bool cut_each_tile = false;
    int32_t submit_every = 0;  // steps between two submissions; 0: all at once
    bool backwards = false;    // submission order
    bool keep_logits = false;  // whole rows, for golden tests
};

// One logits row: the position it follows and the hash of its bytes.
using RowHash = std::pair<int32_t, uint64_t>;

struct Outcome {
    std::vector<std::vector<int32_t>> tokens;  // per job, prompt first
    std::vector<RowHash> rows;                 // of all passes, sorted
    std::vector<float> logits;                 // with keep_logits: rows in the order of the passes
    std::vector<Status> statuses;
    int64_t steps = 0;
};

Outcome run_jobs(const LoadedModel& model, const std::vector<Job>& jobs, const Setting& setting);

// Logits after every position of `tokens`: prompts of growing length would be slow, so each token is one row of a chunk.
// Returns (tokens, vocabulary). chunk: tokens per pass.
std::vector<float> logits_of(const LoadedModel& model, const std::vector<int32_t>& tokens, int32_t chunk);

}  // namespace treadle::test
