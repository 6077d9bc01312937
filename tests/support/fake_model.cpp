// The fake model's functions and the run of one sequence alone. Its backend is in fake_backend.cpp.
#include "fake_model.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>

#include "base/math.h"

namespace treadle::test {
namespace {

uint64_t mix(uint64_t value) {
    value = (value ^ value >> 32) * 0xd6e8feb86659fd93u;
    value = (value ^ value >> 32) * 0xd6e8feb86659fd93u;
    return value ^ value >> 32;
}

constexpr float likeliest = 30;  // beside logits of 0 to 8: whatever the temperature, it mostly wins
constexpr float unlikely = -8;

void require(Status status, const Error& error) {
    if (status != Status::OK)
        throw std::runtime_error(std::string(status_name(status)) + ": " + error.message);
}

// Short texts: "a" to "z", then longer ones. Ids 2 and 3 spell bytes C3 and A9, an e with an acute accent, in GPT-2's alphabet.
std::string text_of(int32_t id) {
    if (id == 0) return "<|im_end|>";
    if (id == 1) return "<|im_start|>";
    if (id == 2) return "\u00c3";
    if (id == 3) return "\u00a9";
    std::string text;
    for (int32_t number = id - 4; number >= 0; number = number / 26 - 1)
        text += static_cast<char>('a' + number % 26);
    return text;
}

Owned<Vocabulary> make_texts(int32_t size, Memory* memory) {
    std::vector<std::string> texts;
    texts.reserve(static_cast<size_t>(size));
    for (int32_t id = 0; id < size; id++) texts.push_back(text_of(id));
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    std::vector<int32_t> types(texts.size(), static_cast<int32_t>(TokenType::normal));
    types[0] = types[1] = static_cast<int32_t>(TokenType::control);
    VocabularySource source;
    source.model = "gpt2";
    source.pre = "smollm";
    source.tokens = views;
    source.types = types;
    source.eos = FakeModel::end_token;
    Owned<Vocabulary> vocabulary;
    Error error;
    require(make_vocabulary(source, memory, &vocabulary, &error), error);
    return vocabulary;
}

// Rule 7: slices of 4,096 ids, in each 16 lanes and a tree, slices added ascending.
float sum_of_powers(const float* logits, int32_t vocabulary, float max, float factor) {
    float total = 0;
    for (int32_t begin = 0; begin < vocabulary; begin += 4096) {
        float lanes[16] = {};
        const int32_t end = std::min(vocabulary, begin + 4096);
        for (int32_t id = begin; id < end; id++) lanes[id % 16] += math::exp2((logits[id] - max) * factor);
        for (int stride = 8; stride > 0; stride /= 2)
            for (int lane = 0; lane < stride; lane++) lanes[lane] += lanes[lane + stride];
        total += lanes[0];
    }
    return total;
}

}  // namespace

FakeModel::FakeModel(MemorySet& memory, const FakeModelOptions& options)
    : options_(options), program_(&memory.other), rope_(&memory.other),
      vocabulary_(make_texts(options.vocabulary, &memory.other)) {
    program_.groups.push_back({.layers = 1, .kv_heads = 1, .head_dim = 16});
    program_.rope_pairs.push_back(1);
    program_.hidden = program_.head_dim = program_.feed_forward = 16;
    program_.heads = program_.kv_heads = 1;
    program_.vocabulary = options.vocabulary;
    RopeParameters rope;
    rope.rotary_dims = 2;
    rope_.make(rope, {});
}

uint64_t FakeModel::extend(uint64_t prefix, int32_t token) {
    return mix(prefix * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(token) + 1);
}

void FakeModel::logits(uint64_t prefix, float* out) const {
    for (int32_t id = 0; id < options_.vocabulary; id++) {
        uint64_t bits = (prefix + static_cast<uint64_t>(id)) * 0x9e3779b97f4a7c15u;
        bits = (bits ^ bits >> 32) * 0xd6e8feb86659fd93u;
        out[id] = static_cast<float>(bits >> 52) / 512;  // a coarse grid, so that there are ties
    }
    const bool ends = options_.end_period != 0 && (prefix >> 8) % options_.end_period == 0;
    out[end_token] = ends ? likeliest : unlikely;
    if (options_.nan_period != 0 && (prefix >> 4) % options_.nan_period == 0)
        out[prefix % static_cast<uint64_t>(options_.vocabulary)] = std::numeric_limits<float>::quiet_NaN();
}

void FakeModel::result(const float* logits, float inverse_temperature, RowResult* out) const {
    *out = {};
    // Numbers that sort as (logit descending, id ascending) do: most of a simulation's time is spent here.
    std::vector<uint64_t> order(static_cast<size_t>(options_.vocabulary));
    for (int32_t id = 0; id < options_.vocabulary; id++) {
        if (!(logits[id] - logits[id] == 0)) return;                   // a NaN or an infinity
        const auto bits = std::bit_cast<uint32_t>(logits[id] + 0.0f);  // one zero only
        const uint32_t rising = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
        order[static_cast<size_t>(id)] = uint64_t{~rising} << 32 | static_cast<uint32_t>(id);
    }
    out->usable = 1;
    out->count = std::min(options_.vocabulary, limits::candidates_kept);
    std::sort(order.begin(), order.end());
    for (int32_t i = 0; i < out->count; i++) {
        const auto id = static_cast<int32_t>(static_cast<uint32_t>(order[static_cast<size_t>(i)]));
        out->best[i] = {logits[id], id};
    }
    out->max = out->best[0].logit;
    out->sum = sum_of_powers(logits, options_.vocabulary, out->max, math::log2e);
    out->sum_scaled = inverse_temperature == 1 ? out->sum
                                               : sum_of_powers(logits, options_.vocabulary, out->max,
                                                               math::log2e * inverse_temperature);
}

SoloSequence::SoloSequence(const FakeModel& model, SoloParams params, std::span<const int32_t> tokens,
                           Memory* memory)
    : model_(&model), params_(std::move(params)), stops_(memory), tokens_(tokens.begin(), tokens.end()),
      prefix_(model.empty_prefix()), logits_(static_cast<size_t>(model.vocabulary_size())),
      scratch_(sampling_scratch_candidates(model.vocabulary_size())) {
    const std::vector<std::string_view> stops(params_.stop_strings.begin(), params_.stop_strings.end());
    Error error;
    require(stops_.build(stops, &error), error);
    const size_t prompt = tokens_.size() - static_cast<size_t>(params_.generated_tail);
    std::string before;
    const auto begin_text = [&] {
        const size_t kept = std::min(before.size(), TextStream::context_bytes);
        stream_ = TextStream();
        stream_.begin_after(std::string_view(before).substr(before.size() - kept));
    };
    for (size_t i = 0; i < tokens_.size(); i++) {
        prefix_ = FakeModel::extend(prefix_, tokens_[i]);
        if (i == prompt) begin_text();
        if (!model.vocabulary().is_control(tokens_[i])) before += model.vocabulary().token_bytes(tokens_[i]);
        if (i < prompt) continue;
        const bool end = is_end(tokens_[i]);
        const bool over = end || push_text(tokens_[i]);
        tail_text_ += end ? held_text() : text_;
        if (over) begin_text();  // a stop string or token ends nothing after it
    }
    if (prompt == tokens_.size()) begin_text();
    text_.clear();
}

// The token's text goes to text_; true if it completes a stop string.
bool SoloSequence::push_text(int32_t token) {
    text_.clear();
    if (model_->vocabulary().is_control(token)) return false;
    const std::string_view bytes = model_->vocabulary().token_bytes(token);
    text_.resize(TextStream::output_bytes_max(stops_, bytes.size()));
    const StopResult result = stream_.push(stops_, bytes, text_.data());
    text_.resize(result.bytes);
    return result.stopped;
}

bool SoloSequence::is_end(int32_t token) const {
    const auto& stops = params_.stop_tokens;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) return true;
    return !params_.ignore_end && model_->vocabulary().is_end_of_generation(token);
}

void SoloSequence::advance() {
    text_.clear();
    model_->logits(prefix_, logits_.data());
    model_->result(logits_.data(), inverse_temperature(params_.sampling), &row_);
    const Status status = sample(params_.sampling, params_.sample_index, static_cast<int32_t>(tokens_.size()),
                                 row_, logits_.data(), model_->vocabulary_size(), scratch_, &newest_);
    if (status != Status::OK) {
        reason_ = FinishReason::error;
        return;
    }
    append(newest_.token);
}

void SoloSequence::append(int32_t token) {
    text_.clear();
    tokens_.push_back(token);
    prefix_ = FakeModel::extend(prefix_, token);
    if (is_end(token)) {
        reason_ = FinishReason::end;
        return;
    }
    if (push_text(token)) {
        reason_ = FinishReason::stop_string;
    } else if (static_cast<int32_t>(tokens_.size()) >= params_.limit) {
        reason_ = FinishReason::length;
    }
}

std::string SoloSequence::held_text() {
    std::string text(TextStream::output_bytes_max(stops_, 0), '\0');
    text.resize(stream_.finish(stops_, text.data()).bytes);
    return text;
}

std::vector<int32_t> expected_tokens(const FakeModel& model, std::span<const int32_t> prompt,
                                     const SamplingParams& sampling, uint64_t sample_index,
                                     int32_t max_tokens, bool ignore_end) {
    AllocatorHooks hooks;
    hooks.alloc = [](void*, size_t size, size_t alignment, int32_t) -> void* {
        return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    };
    hooks.free = [](void*, void* pointer, size_t, size_t, int32_t) { std::free(pointer); };
    Memory memory(hooks, MemoryKind::other);
    SoloParams params;
    params.sampling = sampling;
    params.sample_index = sample_index;
    params.limit = static_cast<int32_t>(prompt.size()) + max_tokens;
    params.ignore_end = ignore_end;
    SoloSequence solo(model, params, prompt, &memory);
    while (!solo.over()) solo.advance();
    return {solo.tokens().begin() + static_cast<std::ptrdiff_t>(prompt.size()), solo.tokens().end()};
}

}  // namespace treadle::test
