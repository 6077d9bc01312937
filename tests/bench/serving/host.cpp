// The host's loop: submit, step, poll.
#include "host.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace treadle::bench {

void give_up(const std::string& why) {
    std::fprintf(stderr, "bench: %s\n", why.c_str());
    std::exit(1);
}

void Checked::operator()(engine_status status) const {
    if (status == ENGINE_OK) return;
    give_up(std::string(engine_status_name(status)) + ": " +
            (error_.message[0] ? error_.message : engine_status_string(status)));
}

engine_params default_params() {
    const Checked check;
    engine_params params;
    check(engine_params_init(&params, sizeof params));
    return params;
}

Host::Host(engine_model* model, const engine_params& params) {
    Checked check;
    check(engine_create(model, &params, &engine_, check));
}

Host::~Host() { engine_destroy(engine_); }

engine_status Host::enter(const Ask& ask, engine_error* error) {
    const Checked check;
    engine_part part;
    check(engine_part_init(&part, sizeof part));
    part.kind = ENGINE_PART_TOKENS;
    part.tokens = ask.prompt.data();
    part.token_count = static_cast<int32_t>(ask.prompt.size());
    engine_request_params params;
    check(engine_request_params_init(&params, sizeof params));
    params.parts = &part;
    params.part_count = 1;
    params.max_tokens = ask.max_tokens;
    params.ignore_end = 1;
    params.samples = ask.samples;
    params.priority = ask.priority;
    params.temperature = ask.temperature;
    params.seed = ask.seed;
    params.prefix_cache = ask.prefix_cache ? 1 : 0;
    params.keep = ask.keep ? 1 : 0;
    params.user_data = answers_.size();
    Answer answer;
    answer.asked_s = now_s();
    const engine_status status = engine_submit(engine_, &params, &answer.id, error);
    if (status != ENGINE_OK) return status;
    answer.prompt_tokens = part.token_count;
    answer.sequences.resize(static_cast<size_t>(ask.samples));
    live_.push_back(answers_.size());
    answers_.push_back(std::move(answer));
    return ENGINE_OK;
}

size_t Host::submit(const Ask& ask) {
    Checked check;
    check(enter(ask, check));
    return answers_.size() - 1;
}

bool Host::try_submit(const Ask& ask) { return enter(ask, nullptr) == ENGINE_OK; }

engine_step_report Host::step(int64_t budget_us) {
    const Checked check;
    engine_step_params params;
    check(engine_step_params_init(&params, sizeof params));
    params.budget_us = budget_us;
    engine_step_report report;
    check(engine_step_report_init(&report, sizeof report));
    const double begin = now_s();
    check(engine_step(engine_, &params, &report));
    step_s_ = now_s() - begin;
    const size_t events = poll();
    if (events == 0 && report.next_step_us < 0 && !live_.empty()) give_up("the engine waits for nothing");
    return report;
}

size_t Host::poll() {
    alignas(8) static char bytes[1 << 16];
    engine_event events[64];
    size_t count = 0, all = 0;
    do {
        const Checked check;
        check(engine_poll_tokens(engine_, events, sizeof events[0], 64, &count, bytes, sizeof bytes, nullptr,
                                 nullptr));
        const double time_s = now_s();
        for (size_t i = 0; i < count; i++) take(events[i], time_s);
        all += count;
    } while (count > 0);
    return all;
}

void Host::take(const engine_event& event, double time_s) {
    Answer& answer = answers_[event.user_data];
    Answer::Sequence& sequence = answer.sequences[static_cast<size_t>(event.sequence)];
    if (event.kind == ENGINE_EVENT_TOKEN) {
        sequence.tokens.push_back(event.token);
        sequence.times_s.push_back(time_s);
    } else if (event.kind == ENGINE_EVENT_FINISHED) {
        const Checked check;
        check(event.status);
        sequence.finished = true;
        sequence.reason = event.finish_reason;
        if (event.sequence == 0) answer.cached_tokens = event.cached_tokens;
        if (!event.last) return;
        answer.finished = true;
        answer.finished_s = time_s;
        live_.erase(std::lower_bound(live_.begin(), live_.end(), event.user_data));
    }
}

void Host::finish_all() {
    while (!live_.empty()) step();
}

void Host::cancel(size_t answer) {
    const Checked check;
    check(engine_cancel(engine_, answers_[answer].id));
}

void Host::release(size_t answer) {
    const Checked check;
    check(engine_release(engine_, answers_[answer].id));
}

engine_info Host::about() const {
    const Checked check;
    engine_info info;
    check(engine_info_init(&info, sizeof info));
    check(engine_get_info(engine_, &info));
    return info;
}

engine_stats Host::stats() {
    const Checked check;
    engine_stats stats;
    check(engine_stats_init(&stats, sizeof stats));
    check(engine_get_stats(engine_, &stats));
    return stats;
}

engine_request_info Host::info(size_t answer) {
    const Checked check;
    engine_request_info info;
    check(engine_request_info_init(&info, sizeof info));
    check(engine_request_get_info(engine_, answers_[answer].id, &info));
    return info;
}

std::vector<int32_t> Host::sequence_tokens(size_t answer, int32_t sequence) {
    const Checked check;
    std::vector<int32_t> tokens(1 << 16);
    size_t count = 0;
    check(
        engine_sequence_tokens(engine_, answers_[answer].id, sequence, tokens.data(), tokens.size(), &count));
    tokens.resize(count);
    return tokens;
}

std::string Host::trace() {
    std::string json;
    const Checked check;
    check(engine_trace_write(
        engine_,
        [](void* user, const void* bytes, size_t size) -> int32_t {
            static_cast<std::string*>(user)->append(static_cast<const char*>(bytes), size);
            return 0;
        },
        &json));
    return json;
}

void Host::write_trace(const std::string& path) {
    std::ofstream file(path, std::ios::binary);
    file << trace();
    file.close();
    if (!file) give_up(path + " cannot be written");
}

}  // namespace treadle::bench
