// What the benches share beside the host: the command line, models, lengths as in chat logs, percentiles, and the one
// line of JSON that a scenario prints. Everything random is a function of a seed, so that two runs do the same work.
#pragma once

#include <engine.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host.h"
#include "support/gguf_writer.h"

namespace treadle::bench {

// --name value pairs; a name without a value is a switch.
class Flags {
public:
    Flags(int argc, char** argv, int first);
    bool has(std::string_view name) const { return find(name) != nullptr; }
    double number(std::string_view name, double otherwise) const;
    int32_t integer(std::string_view name, int32_t otherwise) const {
        return static_cast<int32_t>(number(name, otherwise));
    }
    std::string text(std::string_view name, const std::string& otherwise) const;

private:
    const std::string* find(std::string_view name) const;
    std::vector<std::pair<std::string, std::string>> pairs_;
};

// A model file, or with "--tiny" a random model of one narrow layer: its passes cost next to nothing, and what the engine does
// around them is all that is left. "random:layers,hidden,heads,kv_heads,head_dim,feed_forward,vocabulary,context" is a random
// model of that shape in Q4_1.
class LoadedModel {
public:
    LoadedModel(const std::string& path, int32_t threads, int32_t cpu_code = ENGINE_CPU_AUTOMATIC);
    ~LoadedModel() { engine_model_free(model_); }
    LoadedModel(const LoadedModel&) = delete;
    LoadedModel& operator=(const LoadedModel&) = delete;
    engine_model* handle() const { return model_; }
    const engine_model_info& info() const { return info_; }
    int32_t vocabulary() const { return info_.vocabulary; }
    int32_t context() const { return info_.context_length; }

private:
    engine_model* model_ = nullptr;
    engine_model_info info_;
};

// Ordinary tokens of the vocabulary; other draws, other prompts.
std::vector<int32_t> random_prompt(test::Random& random, int32_t tokens, int32_t vocabulary);

struct Lengths {
    int32_t prompt;
    int32_t answer;
};

// Chat logs: prompts log-normal with that median (sigma 1), answers geometric with that mean; each at least 1 and cut at its
// most.
struct ChatLengths {
    double prompt_median = 300;
    double answer_mean = 200;
    int32_t prompt_max = 4096;
    int32_t answer_max = 1024;
    Lengths draw(test::Random& random) const;
};

// Nearest rank, so each figure is a value that was measured; 0 of nothing.
double percentile(std::vector<double> values, double share);
// Between the tokens of each sequence.
void add_gaps(const Answer::Sequence& sequence, std::vector<double>* gaps_s, double from_s = 0,
              double to_s = 1e300);

// FNV-1a over the tokens: equal tokens, equal hash.
constexpr uint64_t empty_hash = 0xcbf29ce484222325;
uint64_t hash_tokens(const std::vector<int32_t>& tokens, uint64_t seed = empty_hash);

// {"name": value, ...}
class Json {
public:
    Json& add(std::string_view name, double value);
    Json& add(std::string_view name, int32_t value) { return add(name, static_cast<double>(value)); }
    Json& add(std::string_view name, uint64_t value) { return add(name, static_cast<double>(value)); }
    Json& hash(std::string_view name, uint64_t hash);
    Json& raw(std::string_view name, std::string_view json);  // as it stands
    Json& percentiles(std::string_view name,
                      const std::vector<double>& seconds);  // name_p50_ms, _p99_ms, _max_ms
    std::string text() const { return "{" + body_ + "}"; }

private:
    std::string body_;
};

// The scenarios; each returns its figures. main.cpp lists their flags.
Json run_waste(const LoadedModel& model, const Flags& flags);
Json run_samples(const LoadedModel& model, const Flags& flags);
Json run_batching(const LoadedModel& model, const Flags& flags);
Json run_timeline(const LoadedModel& model, const Flags& flags);
Json run_long_prompt(const LoadedModel& model, const Flags& flags);
Json run_bulk(const LoadedModel& model, const Flags& flags);
Json run_budget(const LoadedModel& model, const Flags& flags);
Json run_throughput(const LoadedModel& model, const Flags& flags);
Json run_pressure(const LoadedModel& model, const Flags& flags);
Json run_sequential(const LoadedModel& model, const Flags& flags);

}  // namespace treadle::bench
