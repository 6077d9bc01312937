// Flags, models, lengths, percentiles, JSON.
#include "workload.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace treadle::bench {

Flags::Flags(int argc, char** argv, int first) {
    for (int i = first; i < argc; i++) {
        const std::string word = argv[i];
        if (word.rfind("--", 0) != 0) give_up("'" + word + "' is no flag");
        const bool has_value = i + 1 < argc && std::string(argv[i + 1]).rfind("--", 0) != 0;
        pairs_.emplace_back(word.substr(2), has_value ? argv[++i] : "");
    }
}

const std::string* Flags::find(std::string_view name) const {
    for (const auto& [known, value] : pairs_)
        if (known == name) return &value;
    return nullptr;
}

double Flags::number(std::string_view name, double otherwise) const {
    const std::string* value = find(name);
    if (value == nullptr) return otherwise;
    char* end = nullptr;
    const double number = std::strtod(value->c_str(), &end);
    if (value->empty() || *end != '\0') give_up("--" + std::string(name) + " needs a number");
    return number;
}

std::string Flags::text(std::string_view name, const std::string& otherwise) const {
    const std::string* value = find(name);
    return value == nullptr ? otherwise : *value;
}

namespace {

bool is_random(const std::string& path, test::TinyLlamaOptions* shape) {
    if (path == "--tiny") {
        shape->layers = 1;
        shape->context = 8192;
        return true;
    }
    if (path.rfind("random:", 0) != 0) return false;
    int end = 0;
    if (std::sscanf(path.c_str(), "random:%u,%u,%u,%u,%u,%u,%u,%u%n", &shape->layers, &shape->hidden,
                    &shape->heads, &shape->kv_heads, &shape->head_dim, &shape->feed_forward,
                    &shape->vocabulary, &shape->context, &end) != 8 ||
        static_cast<size_t>(end) != path.size())
        give_up("not a shape: " + path);
    return true;
}

}  // namespace

LoadedModel::LoadedModel(const std::string& path, int32_t threads, int32_t cpu_code) {
    Checked check;
    engine_model_params params;
    check(engine_model_params_init(&params, sizeof params));
    params.threads = threads;
    params.cpu_code = cpu_code;
    test::TinyLlamaOptions shape;
    if (is_random(path, &shape)) {
        shape.set_all(TensorType::Q4_1);
        const test::Bytes file = test::tiny_llama(7, shape).bytes();
        check(engine_model_load_memory(file.data(), file.size(), &params, &model_, check));
    } else {
        check(engine_model_load_file(path.c_str(), &params, &model_, check));
    }
    check(engine_model_info_init(&info_, sizeof info_));
    check(engine_model_get_info(model_, &info_));
}

std::vector<int32_t> random_prompt(test::Random& random, int32_t tokens, int32_t vocabulary) {
    std::vector<int32_t> prompt(static_cast<size_t>(tokens));
    for (int32_t& token : prompt)
        token = 3 + static_cast<int32_t>(random.below(static_cast<uint32_t>(vocabulary - 3)));
    return prompt;
}

Lengths ChatLengths::draw(test::Random& random) const {
    const double prompt = prompt_median * std::exp(random.normal());
    const double answer = std::ceil(std::log(1 - random.uniform()) / std::log(1 - 1 / answer_mean));
    return {std::clamp(static_cast<int32_t>(prompt), 1, prompt_max),
            std::clamp(static_cast<int32_t>(answer), 1, answer_max)};
}

double percentile(std::vector<double> values, double share) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
}

void add_gaps(const Answer::Sequence& sequence, std::vector<double>* gaps_s, double from_s, double to_s) {
    for (size_t i = 1; i < sequence.times_s.size(); i++)
        if (sequence.times_s[i] > from_s && sequence.times_s[i - 1] < to_s)
            gaps_s->push_back(sequence.times_s[i] - sequence.times_s[i - 1]);
}

uint64_t hash_tokens(const std::vector<int32_t>& tokens, uint64_t seed) {
    for (const int32_t token : tokens)
        for (int shift = 0; shift < 32; shift += 8) {
            seed ^= static_cast<uint32_t>(token) >> shift & 255;
            seed *= 0x100000001b3;
        }
    return seed;
}

Json& Json::raw(std::string_view name, std::string_view json) {
    body_ += (body_.empty() ? "\"" : ", \"") + std::string(name) + "\": " + std::string(json);
    return *this;
}

Json& Json::add(std::string_view name, double value) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.10g", value);
    return raw(name, digits);
}

Json& Json::hash(std::string_view name, uint64_t hash) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "\"%016llx\"", static_cast<unsigned long long>(hash));
    return raw(name, digits);
}

Json& Json::percentiles(std::string_view name, const std::vector<double>& seconds) {
    const std::string start(name);
    add(start + "_p50_ms", percentile(seconds, 0.5) * 1e3);
    add(start + "_p99_ms", percentile(seconds, 0.99) * 1e3);
    return add(start + "_max_ms", percentile(seconds, 1) * 1e3);
}

}  // namespace treadle::bench
