// A model that computes nothing and is exact about everything around it: tests of scheduler, cache and engine run on it, and so
// do the simulator and the measurements of overhead. Its next token is a function of the hash of all tokens before, and that
// hash is kept where a real model keeps keys and values: in the slots of the paged cache.
//
//     block table  [ 7 | 2 | … ]          slot of position p: table[p / 16] * 16 + p % 16
//     slot         { hash of tokens 0 .. p, p, token at p }        hash(p) = mix(hash(p - 1), token at p)
//
// A pass reads the hash of the prefix through the block table and recomputes the chain up to it, so that a slot that is
// unwritten, stale, foreign or wrongly copied is found, and counted as a violation with the place where it is.
//
// Invariant: what a row of logits holds depends on nothing but the tokens up to it; SoloSequence gives the same tokens in closed
// form, without an engine, a cache or a backend.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "gguf_writer.h"
#include "model/rope_tables.h"
#include "ops/backend.h"
#include "request/request.h"
#include "sampling/sampler.h"
#include "scheduler/cost_model.h"
#include "text/text_stream.h"
#include "text/vocabulary.h"

namespace treadle::test {

// Time that only moves when somebody moves it; with read_cost_ns each look at it costs that much.
struct VirtualClock {
    int64_t now_ns = 0;
    int64_t read_cost_ns = 0;
    ClockHook hook() {
        return {this, [](void* user) {
                    auto* self = static_cast<VirtualClock*>(user);
                    return self->now_ns += self->read_cost_ns;
                }};
    }
};

struct FakeModelOptions {
    uint64_t seed = 1;
    int32_t vocabulary = 97;   // at least 16
    int32_t context = 1024;    // tokens
    uint32_t end_period = 40;  // one position in so many, by its hash, all but ends the answer; 0: none does
    uint32_t nan_period = 0;  // one position in so many, by its hash, has a NaN among its logits; 0: none has
};

// What an engine needs of a model: a program without operations, a rope table of one pair, a vocabulary. Id 0 ends a turn, id 1
// is another control token, ids 2 and 3 are the two halves of one character, all others are short texts.
class FakeModel {
public:
    static constexpr int32_t end_token = 0;

    FakeModel(MemorySet& memory, const FakeModelOptions& options);

    const Program& program() const { return program_; }
    const RopeTable& rope() const { return rope_; }
    const Vocabulary& vocabulary() const { return *vocabulary_; }
    int32_t vocabulary_size() const { return options_.vocabulary; }
    int32_t context() const { return options_.context; }

    uint64_t empty_prefix() const { return options_.seed; }
    static uint64_t extend(uint64_t prefix, int32_t token);  // the hash of one more token
    void logits(uint64_t prefix, float* out) const;          // out: (vocabulary)
    // What a backend reports of the row (numerics contract, rule 7).
    void result(const float* logits, float inverse_temperature, RowResult* out) const;

private:
    FakeModelOptions options_;
    Program program_;
    RopeTable rope_;
    Owned<Vocabulary> vocabulary_;
};

// Keeps what went wrong; shared by everything that a backend does, and asked by the test.
struct FakeControl {
    // How passes run. Costs are virtual; a pass costs pass_ns + logit_row_ns * rows + token_ns * tokens + context_ns * (tokens
    // before each token, summed), and is cut into tiles of about tile_ns.
    enum class Checking : uint8_t {
        all,   // every slot of every prefix
        some,  // the end of a prefix and a few slots picked by its hash
        none,  // no cache and no logits: every row has the same results, made in build. For measurements of overhead
    };
    Checking checking = Checking::all;
    VirtualClock* clock = nullptr;  // null: a pass takes no time, and is never cut
    int64_t pass_ns = 50'000;
    int64_t logit_row_ns = 10'000;
    int64_t token_ns = 20'000;
    int64_t context_ns = 20;
    int64_t tile_ns = 100'000;
    uint64_t seed = 1;                    // of what follows
    double jitter = 0;                    // a tile takes 1 - jitter to 1 + jitter of its time
    double jump_rate = 0;                 // of tiles after which the clock jumps by up to jump_ns
    int64_t jump_ns = 0;                  //
    double pending_rate = 0;              // of calls of advance that do nothing
    bool no_kv_memory = false;            // for slabs of the cache that was made
    Status fail_next_build = Status::OK;  // once, when not OK
    Status fail_next_begin = Status::OK;
    Status fail_next_advance = Status::OK;

    // What happened.
    int64_t begins = 0;
    int64_t passes_done = 0;
    int64_t abandons = 0;
    int64_t tiles = 0;
    int64_t pendings = 0;
    int64_t jumps = 0;
    int64_t copies = 0;
    int64_t rows_without_write = 0;
    int64_t worst_tile_ns = 0;  // without jumps
    PassShape newest;           // the pass that was begun last
    PassShape newest_decodes;   // those of its rows that might decode: of one token, with logits
    int64_t slabs_allocated = 0;
    int64_t slabs_freed = 0;
    int64_t violations = 0;
    std::string first_violation;
};

class FakeBackend final : public Backend {
public:
    // Both outlive it.
    FakeBackend(const FakeModel& model, FakeControl& control);

    size_t kv_bytes_per_block(const Program&) const override {
        return sizeof(Slot) * limits::kv_block_tokens;
    }
    [[nodiscard]] Status kv_create(const Program& program, int32_t blocks, Error* error) override;
    void* kv_allocate(int32_t slab) override;
    void kv_free(int32_t slab, void* memory) override;
    void* kv_exchange(int32_t slab, void* memory) override;
    [[nodiscard]] Status build(const Program& program, Dims max, Error* error) override;
    [[nodiscard]] Status begin(const PassInput& input, Dims dims) override;
    AdvanceResult advance(int64_t deadline_ns, int32_t max_threads) override;
    void abandon() override;
    PassResults results() const override;

    // Overwrites a block that nobody may read any more.
    void poison(int32_t block);

private:
    struct Slot {
        uint64_t hash = 0;
        int32_t position = unwritten;
        int32_t token = 0;
        bool operator==(const Slot&) const = default;
    };
    static constexpr int32_t unwritten = -1;
    static constexpr int32_t poisoned = -2;

    // Who touched a slot in which pass: the pass's number, times 2^16, plus the work item's.
    struct Touch {
        uint64_t wrote = 0;
        uint64_t read = 0;
    };

    bool is_away(int32_t block) const;
    void violate(const char* what, int64_t position, int64_t block);
    void check_input(const PassInput& input, Dims dims);
    void note_shape();
    void check_work(const AttentionWork& work, int32_t next_row);
    void check_copies();
    int64_t cost_ns() const;
    int64_t spend_tile();
    void run_rows(int32_t end);
    void run_copies();
    int32_t slot_at(const AttentionWork& work, int32_t position) const;
    bool check_slot(const AttentionWork& work, int32_t position, uint64_t* prefix);
    uint64_t read_prefix(const AttentionWork& work);
    void run_row(const AttentionWork& work, int32_t row);
    void write(const Slot& content, int32_t slot, int32_t position);

    const FakeModel& model_;
    FakeControl& control_;
    Random random_;
    int32_t blocks_ = 0;
    Dims max_;
    std::vector<Slot> cache_;     // (blocks, 16)
    std::vector<Touch> touched_;  // (blocks, 16)
    std::vector<char> away_;      // (slabs) 1: it has no memory

    // The pass under way.
    bool under_way_ = false;
    bool done_ = false;
    Dims dims_;
    std::vector<int32_t> tokens_;
    std::vector<int32_t> positions_;
    std::vector<int32_t> slots_;
    std::vector<int32_t> block_table_;
    std::vector<AttentionWork> work_;
    std::vector<BlockCopy> copies_;
    std::vector<int32_t> logit_rows_;
    std::vector<float> inverse_temperatures_;
    int64_t tile_count_ = 0;
    int64_t tiles_run_ = 0;
    int64_t tile_cost_ns_ = 0;
    int32_t rows_run_ = 0;
    size_t works_begun_ = 0;
    size_t logits_made_ = 0;
    uint64_t prefix_ = 0;  // of the row that ran last

    std::vector<RowResult> results_;
    std::vector<float> logits_;  // (logit_rows, vocabulary)
};

// What a request asks of its answer, as far as its tokens depend on it.
struct SoloParams {
    SamplingParams sampling;
    uint64_t sample_index = 0;
    int32_t generated_tail =
        0;              // the last tokens of the prompt that count as generated: a fork goes on from there
    int32_t limit = 0;  // tokens at which the sequence is full, prompt included
    bool ignore_end = false;
    std::vector<int32_t> stop_tokens;
    std::vector<std::string> stop_strings;
};

// The run of one request alone, token by token: what any engine must deliver a beginning of.
class SoloSequence {
public:
    // `tokens` is the prompt, and after it a generated tail, if there is one.
    SoloSequence(const FakeModel& model, SoloParams params, std::span<const int32_t> tokens, Memory* memory);

    // Makes the next token and its text; call it while over() is false.
    void advance();
    void append(int32_t token);  // the same with a token that somebody else chose

    bool over() const { return reason_ != FinishReason::none; }
    FinishReason reason() const { return reason_; }  // error: there is no next token, its row holds a NaN
    const std::vector<int32_t>& tokens() const { return tokens_; }  // prompt first
    TokenLogprob newest() const { return newest_; }
    const std::string& text() const { return text_; }            // what the newest token let go
    const RowResult& row() const { return row_; }                // that it was chosen from
    const std::string& tail_text() const { return tail_text_; }  // what the generated tail had let go
    std::string held_text();  // what an end would let go now; ends the text

private:
    bool is_end(int32_t token) const;
    bool push_text(int32_t token);

    const FakeModel* model_;
    SoloParams params_;
    StopSet stops_;
    TextStream stream_;
    std::vector<int32_t> tokens_;
    uint64_t prefix_;
    TokenLogprob newest_{-1, 0};
    RowResult row_{};
    std::string text_;
    std::string tail_text_;
    FinishReason reason_ = FinishReason::none;
    std::vector<float> logits_;
    std::vector<Candidate> scratch_;
};

// The whole answer at once: the generated tokens.
std::vector<int32_t> expected_tokens(const FakeModel& model, std::span<const int32_t> prompt,
                                     const SamplingParams& sampling, uint64_t sample_index,
                                     int32_t max_tokens, bool ignore_end = false);

}  // namespace treadle::test
