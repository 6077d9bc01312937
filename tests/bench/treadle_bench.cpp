// The engine's side of the benchmark: runs workloads through engine.h alone, as a host would, and prints one line of JSON for
// each. Called by bench.py, which sends the same commands in turn to this program and to peer_llama.py.
//
//     treadle_bench MODEL.gguf|--tiny [--threads N] [COMMAND...]      without commands: one a line from standard input
//
//     about                          the library, the code that runs, threads
//     start                          loads the model once more, makes an engine and computes a first token
//     decode SEQUENCES PROMPT NEW    that many requests at once, greedy, each of PROMPT tokens and NEW new ones
//
// Invariant: the tokens of a prompt are a function of (place in the prompt, request, vocabulary) that peer_llama.py shares, so
// both sides compute the same rows. Nothing but the engine's own calls lies between two looks at the clock.

#include <engine.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "support/gguf_writer.h"

namespace {

using treadle::test::Bytes;

constexpr int32_t block_tokens = 16;
constexpr int32_t batch_tokens_max = 512;  // of one pass, the peer's n_ubatch likewise
constexpr size_t opening_tokens = 8;

struct Options {
    std::string model;
    int32_t threads = 0;  // 0: the library's default
    std::vector<std::string> commands;
};

double now_s() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since).count();
}

[[noreturn]] void give_up(const std::string& why) {
    std::fprintf(stderr, "treadle_bench: %s\n", why.c_str());
    std::exit(1);
}

// Ends the program on a failure: a benchmark has nothing to save.
class Checked {
public:
    Checked() { engine_error_init(&error_, sizeof error_); }
    operator engine_error*() { return &error_; }  // NOLINT: that is what it is for
    void operator()(engine_status status) const {
        if (status == ENGINE_OK) return;
        give_up(std::string(engine_status_name(status)) + ": " +
                (error_.message[0] ? error_.message : engine_status_string(status)));
    }

private:
    engine_error error_;
};

Bytes tiny_file() {
    treadle::test::TinyLlamaOptions options;
    options.set_all(treadle::TensorType::Q4_1);
    return treadle::test::tiny_llama(7, options).bytes();
}

engine_model* load(const Options& options) {
    Checked check;
    engine_model_params params;
    check(engine_model_params_init(&params, sizeof params));
    params.threads = options.threads;
    engine_model* model = nullptr;
    if (options.model == "--tiny") {
        const Bytes file = tiny_file();
        check(engine_model_load_memory(file.data(), file.size(), &params, &model, check));
    } else {
        check(engine_model_load_file(options.model.c_str(), &params, &model, check));
    }
    return model;
}

// Room for exactly these requests.
engine* make_engine(engine_model* model, int32_t sequences, int32_t tokens) {
    Checked check;
    engine_params params;
    check(engine_params_init(&params, sizeof params));
    params.max_sequences = sequences;
    params.max_requests = sequences;
    params.max_batch_tokens = batch_tokens_max;
    params.context_length = tokens;
    params.kv_blocks = sequences * ((tokens + block_tokens - 1) / block_tokens);
    engine* e = nullptr;
    check(engine_create(model, &params, &e, check));
    return e;
}

// Shared with peer_llama.py; different from request to request, so that no prefix is common.
int32_t prompt_token(int32_t place, int32_t request, int32_t vocabulary) {
    return static_cast<int32_t>(3 + (place * int64_t{7919} + request * int64_t{104729}) % (vocabulary - 3));
}

void submit(engine* e, int32_t request, int32_t prompt, int32_t new_tokens, int32_t vocabulary) {
    Checked check;
    std::vector<int32_t> tokens(prompt);
    for (int32_t place = 0; place < prompt; place++) tokens[place] = prompt_token(place, request, vocabulary);
    engine_part part;
    check(engine_part_init(&part, sizeof part));
    part.kind = ENGINE_PART_TOKENS;
    part.tokens = tokens.data();
    part.token_count = prompt;
    engine_request_params params;
    check(engine_request_params_init(&params, sizeof params));
    params.parts = &part;
    params.part_count = 1;
    params.max_tokens = new_tokens;
    params.ignore_end = 1;
    params.user_data = static_cast<uint64_t>(request);
    engine_request id = 0;
    check(engine_submit(e, &params, &id, check));
}

struct Outcome {
    double whole_s = 0;                        // from the first submission to the last token
    double full_s = 0;                         // the part in which every request makes a token in every pass
    int64_t full_tokens = 0;                   // made in that part
    std::vector<std::vector<int32_t>> tokens;  // (requests, new tokens)
};

// Takes what there is to poll; returns how many events there were.
size_t poll(engine* e, Outcome& outcome, size_t& started, size_t& finished) {
    alignas(8) static char bytes[1 << 16];
    engine_event events[64];
    size_t count = 0, all = 0;
    do {
        const Checked check;
        check(engine_poll_tokens(e, events, sizeof events[0], 64, &count, bytes, sizeof bytes, nullptr,
                                 nullptr));
        for (size_t i = 0; i < count; i++) {
            std::vector<int32_t>& tokens = outcome.tokens[events[i].user_data];
            if (events[i].kind == ENGINE_EVENT_TOKEN) {
                started += tokens.empty();
                tokens.push_back(events[i].token);
            } else if (events[i].kind == ENGINE_EVENT_FINISHED) {
                check(events[i].status);
                finished++;
            }
        }
        all += count;
    } while (count > 0);
    return all;
}

Outcome decode(engine_model* model, int32_t sequences, int32_t prompt, int32_t new_tokens) {
    Checked check;
    engine_model_info info;
    check(engine_model_info_init(&info, sizeof info));
    check(engine_model_get_info(model, &info));
    engine* e = make_engine(model, sequences, prompt + new_tokens);
    Outcome outcome;
    outcome.tokens.resize(sequences);

    const double begin = now_s();
    for (int32_t i = 0; i < sequences; i++) submit(e, i, prompt, new_tokens, info.vocabulary);
    const size_t requests = outcome.tokens.size();
    size_t started = 0, finished = 0;
    double full_begin = 0;
    while (finished < requests) {
        engine_step_report report;
        check(engine_step_report_init(&report, sizeof report));
        check(engine_step(e, nullptr, &report));
        const bool was_full = started == requests, was_ended = finished > 0;
        if (poll(e, outcome, started, finished) == 0 && report.next_step_us < 0)
            give_up("the engine waits for nothing");
        outcome.whole_s = now_s() - begin;
        if (was_full && !was_ended) {
            outcome.full_s = outcome.whole_s - full_begin;
            outcome.full_tokens += sequences;
        } else if (started == requests && !was_ended) {
            full_begin = outcome.whole_s;
        }
    }
    engine_destroy(e);
    return outcome;
}

// FNV-1a over the tokens: equal tokens, equal hash.
uint64_t hash(const std::vector<int32_t>& tokens, size_t count, uint64_t seed = 0xcbf29ce484222325) {
    for (size_t i = 0; i < count && i < tokens.size(); i++)
        for (int shift = 0; shift < 32; shift += 8) {
            seed ^= static_cast<uint32_t>(tokens[i]) >> shift & 255;
            seed *= 0x100000001b3;
        }
    return seed;
}

void run_decode(engine_model* model, std::istringstream& words) {
    int32_t sequences = 0, prompt = 0, new_tokens = 0;
    constexpr int32_t limit = 1 << 20;
    if (!(words >> sequences >> prompt >> new_tokens) || sequences < 1 || sequences > 4096 || prompt < 1 ||
        prompt > limit || new_tokens < 1 || new_tokens > limit)
        give_up("usage: decode SEQUENCES PROMPT NEW, numbers from 1");
    const Outcome outcome = decode(model, sequences, prompt, new_tokens);
    uint64_t whole_hash = hash({}, 0);
    for (const std::vector<int32_t>& tokens : outcome.tokens)
        whole_hash = hash(tokens, tokens.size(), whole_hash);
    std::printf(
        "{\"whole_s\": %.9f, \"full_s\": %.9f, \"full_tokens\": %lld, \"hash\": \"%016llx\", \"opening\": "
        "\"%016llx\"}\n",
        outcome.whole_s, outcome.full_s, static_cast<long long>(outcome.full_tokens),
        static_cast<unsigned long long>(whole_hash),
        static_cast<unsigned long long>(hash(outcome.tokens[0], opening_tokens)));
}

void run_start(const Options& options) {
    const double begin = now_s();
    engine_model* model = load(options);
    const double loaded = now_s();
    const Outcome outcome = decode(model, 1, 1, 1);
    const double end = now_s();
    engine_model_free(model);
    std::printf("{\"load_s\": %.9f, \"start_s\": %.9f, \"hash\": \"%016llx\"}\n", loaded - begin, end - begin,
                static_cast<unsigned long long>(hash(outcome.tokens[0], opening_tokens)));
}

void run_about(engine_model* model) {
    Checked check;
    engine_model_info info;
    check(engine_model_info_init(&info, sizeof info));
    check(engine_model_get_info(model, &info));
    engine* e = make_engine(model, 1, block_tokens);
    engine_info engine_facts;
    check(engine_info_init(&engine_facts, sizeof engine_facts));
    check(engine_get_info(e, &engine_facts));
    engine_destroy(e);
    std::printf("{\"library\": \"Treadle %s\", \"code\": \"%s\", \"numerics_id\": \"%s\", \"threads\": %d}\n",
                engine_version(), info.cpu_code, info.numerics_id, engine_facts.threads);
}

// Loads at the first command that needs the model, so that `start` can be the first thing a process does.
void run(const std::string& command, const Options& options, engine_model*& model) {
    std::istringstream words(command);
    std::string verb;
    words >> verb;
    if (verb == "start") {
        run_start(options);
    } else if (verb == "decode" || verb == "about") {
        if (!model) model = load(options);
        if (verb == "about") run_about(model);
        if (verb == "decode") run_decode(model, words);
    } else {
        give_up("unknown command '" + command + "'");
    }
    std::fflush(stdout);
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i++) {
        const std::string word = argv[i];
        if (word == "--threads" && i + 1 < argc) {
            options.threads = std::atoi(argv[++i]);
        } else if (options.model.empty()) {
            options.model = word;
        } else {
            options.commands.push_back(word);
        }
    }
    if (options.model.empty()) give_up("usage: treadle_bench MODEL.gguf|--tiny [--threads N] [COMMAND...]");
    return options;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    engine_model* model = nullptr;
    for (const std::string& command : options.commands) run(command, options, model);
    std::string line;
    while (options.commands.empty() && std::getline(std::cin, line)) run(line, options, model);
    engine_model_free(model);
}
