// The engine's side of the benchmark: runs workloads through engine.h alone, as a host would, and prints one line of JSON for
// each. Called by the sections of bench.py, which send the same commands in turn to this program and to peer_llama.py.
//
//     treadle_bench MODEL.gguf|--tiny|random:SHAPE [--threads N] [--code NAME] [--keys TYPE] [--values TYPE] [--phases] [--cold]
//                   [COMMAND...]
//
// TYPE is f16, q8_0, tbq4 or tbq4x: what the engine of kept contexts has in its cache. With --phases `generate` gives its trace,
// with --cold it empties the processor's caches between steps, as the layers would that a small model lacks.
//
//     about                          the library, the code that runs, threads, the model's figures
//     start                          loads the model once more, makes an engine and computes a first token
//     decode SEQUENCES PROMPT NEW    that many requests at once, greedy, each of PROMPT tokens and NEW new ones
//     keep SEQUENCES PROMPT NEW      makes an engine with room for so many contexts, in place of an earlier one; tells the bytes
//                                    of a token in its cache
//     fill                           computes the prompt of its next context
//     generate SEQUENCES PROMPT      so many sequences go on with NEW tokens, again from so many tokens of its contexts' prompts
//     drop                           ends it
//     sweeps WORK_US                 of the host's own work in a frame that take so long
//     frames COUNT FRAME_US SWEEPS BUDGET_US PROMPT    a game's frames, with one sequence that generates in its budget (0: none)
//     plan BATCH CONTEXT BANDWIDTH FLOPS               what the capacity planner expects of such a machine
//
// Without commands it reads them from standard input, one a line. The model is loaded at the first command that needs it, so that
// `start` can be the first thing a process does.
#include <cstdio>
#include <iostream>
#include <sstream>

#include "frames/frame_loop.h"
#include "speed.h"

using namespace treadle::bench;

namespace {

constexpr double number_max = 1e15;

struct Choice {
    const char* name;
    int32_t value;
};
constexpr Choice codes[] = {{"automatic", ENGINE_CPU_AUTOMATIC}, {"scalar", ENGINE_CPU_SCALAR},
                            {"sse41", ENGINE_CPU_SSE41},         {"avx2", ENGINE_CPU_AVX2},
                            {"avx2_vnni", ENGINE_CPU_AVX2_VNNI}, {"avx512", ENGINE_CPU_AVX512}};
constexpr Choice kv_types[] = {
    {"f16", ENGINE_KV_F16}, {"q8_0", ENGINE_KV_Q8_0}, {"tbq4", ENGINE_KV_TBQ4}, {"tbq4x", ENGINE_KV_TBQ4X}};

template <size_t count>
int32_t chosen(const Choice (&choices)[count], const std::string& name) {
    for (const Choice& choice : choices)
        if (name == choice.name) return choice.value;
    give_up("unknown: " + name);
}

#if defined(__clang__)
constexpr const char* compiler = "clang " __clang_version__;
#else
constexpr const char* compiler = "g++ " __VERSION__;
#endif

// The process: what was asked for, and what lives from one command to the next.
class Program {
public:
    Program(int argc, char** argv);
    void run(const std::string& command);
    const std::vector<std::string>& commands() const { return commands_; }

private:
    using Numbers = std::vector<double>;
    struct Verb {
        const char* name;
        size_t numbers;
        Json (Program::*run)(const Numbers&);
    };
    static const Verb verbs[];

    const LoadedModel& model() {
        if (!model_) model_ = std::make_unique<LoadedModel>(path_, threads_, code_);
        return *model_;
    }
    KeptContexts& kept() {
        if (!kept_) give_up("'keep' comes first");
        return *kept_;
    }
    static int32_t whole(double number) { return static_cast<int32_t>(number); }

    Json about(const Numbers&);
    Json start(const Numbers&);
    Json decode(const Numbers& n) { return run_decode(model(), whole(n[0]), whole(n[1]), whole(n[2])); }
    Json keep(const Numbers& n) {
        kept_.reset();
        kept_ = std::make_unique<KeptContexts>(model(), whole(n[0]), whole(n[1]), whole(n[2]), kept_options_);
        return Json().add("token_bytes", kept_->token_bytes());
    }
    Json fill(const Numbers&) { return kept().fill(); }
    Json generate(const Numbers& n) { return kept().generate(whole(n[0]), whole(n[1])); }
    Json drop(const Numbers&) {
        kept_.reset();
        return {};
    }
    Json sweeps(const Numbers& n) { return Json().add("sweeps", sweeps_of(1e-6 * n[0])); }
    Json frames(const Numbers& n) {
        return run_frame_task(model(), {whole(n[0]), whole(n[1]), whole(n[2]), whole(n[3]), whole(n[4])});
    }
    Json plan(const Numbers&);

    std::string path_;
    int32_t threads_ = 0;  // 0: the library's default
    int32_t code_ = ENGINE_CPU_AUTOMATIC;
    KeptOptions kept_options_;
    std::vector<std::string> commands_;
    std::unique_ptr<LoadedModel> model_;
    std::unique_ptr<KeptContexts> kept_;
};

const Program::Verb Program::verbs[] = {
    {"about", 0, &Program::about}, {"start", 0, &Program::start},   {"decode", 3, &Program::decode},
    {"keep", 3, &Program::keep},   {"fill", 0, &Program::fill},     {"generate", 2, &Program::generate},
    {"drop", 0, &Program::drop},   {"sweeps", 1, &Program::sweeps}, {"frames", 5, &Program::frames},
    {"plan", 4, &Program::plan},
};

Program::Program(int argc, char** argv) {
    for (int i = 1; i < argc; i++) {
        const std::string word = argv[i];
        const bool has_value = i + 1 < argc;
        if (word == "--threads" && has_value) {
            threads_ = std::atoi(argv[++i]);
        } else if (word == "--code" && has_value) {
            code_ = chosen(codes, argv[++i]);
        } else if (word == "--keys" && has_value) {
            kept_options_.key_type = chosen(kv_types, argv[++i]);
        } else if (word == "--values" && has_value) {
            kept_options_.value_type = chosen(kv_types, argv[++i]);
        } else if (word == "--phases") {
            kept_options_.phases = true;
        } else if (word == "--cold") {
            kept_options_.cold = true;
        } else if (path_.empty()) {
            path_ = word;
        } else {
            commands_.push_back(word);
        }
    }
    if (path_.empty())
        give_up(
            "usage: treadle_bench MODEL.gguf|--tiny|random:SHAPE [--threads N] [--code NAME] [COMMAND...]");
}

void Program::run(const std::string& command) {
    std::istringstream words(command);
    std::string name;
    words >> name;
    Numbers numbers;
    for (double number = 0; words >> number;) {
        if (number < 0 || number > number_max) give_up("a number is out of range: " + command);
        numbers.push_back(number);
    }
    for (const Verb& verb : verbs) {
        if (name != verb.name) continue;
        if (numbers.size() != verb.numbers || !words.eof()) give_up("not understood: '" + command + "'");
        std::printf("%s\n", (this->*verb.run)(numbers).text().c_str());
        std::fflush(stdout);
        return;
    }
    give_up("unknown command '" + command + "'");
}

Json Program::about(const Numbers&) {
    const int32_t threads = Host(model().handle(), room_for(1, block_tokens)).about().threads;
    const engine_model_info& info = model().info();
    const auto quoted = [](const std::string& text) { return "\"" + text + "\""; };
    Json json;
    json.raw("library", quoted(std::string("Treadle ") + engine_version()))
        .raw("code", quoted(info.cpu_code));
    json.raw("numerics_id", quoted(info.numerics_id)).raw("compiler", quoted(compiler));
    json.add("threads", threads).add("context", info.context_length).add("parameters", info.parameters);
    json.add("tensor_bytes", info.tensor_bytes).add("weight_bytes", info.weight_bytes);
    return json;
}

Json Program::start(const Numbers&) {
    const double begin_s = now_s();
    const LoadedModel fresh(path_, threads_, code_);
    const double loaded_s = now_s();
    Json json = run_decode(fresh, 1, 1, 1);
    return json.add("load_s", loaded_s - begin_s).add("start_s", now_s() - begin_s);
}

Json Program::plan(const Numbers& numbers) {
    Checked check;
    const engine_model_info& info = model().info();
    engine_plan_params params;
    check(engine_plan_params_init(&params, sizeof params));
    params.layers = info.layers;
    params.kv_heads = info.kv_heads;
    params.head_dim = info.head_dim;
    params.weight_bytes = info.weight_bytes;
    params.token_flops = 2 * info.parameters;
    params.batch = whole(numbers[0]);
    params.context_tokens = whole(numbers[1]);
    params.bandwidth = static_cast<uint64_t>(numbers[2]);
    params.usable_flops = static_cast<uint64_t>(numbers[3]);
    engine_plan plan;
    check(engine_plan_init(&plan, sizeof plan));
    check(engine_plan_capacity(&params, &plan, check));
    Json json;
    json.add("pass_us", plan.pass_us).add("tokens_per_second", plan.tokens_per_second);
    json.add("crossover", static_cast<double>(plan.crossover_batch));
    return json.add("crossover_context", static_cast<double>(plan.crossover_batch_context));
}

}  // namespace

int main(int argc, char** argv) {
    Program program(argc, argv);
    for (const std::string& command : program.commands()) program.run(command);
    std::string line;
    while (program.commands().empty() && std::getline(std::cin, line)) program.run(line);
}
