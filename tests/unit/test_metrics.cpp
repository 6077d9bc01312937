// The engine's figures and their text, read back by a small parser of the exposition format's grammar.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/metrics.h"
#include "engine/metrics_text.h"
#include "engine/text_writer.h"

using namespace treadle;

namespace {

struct Sample {
    std::string name;
    std::map<std::string, std::string> labels;
    double value;
};

struct Exposition {
    std::map<std::string, std::string> types;
    std::vector<Sample> samples;

    double value(const std::string& name, const std::string& label = "", const std::string& is = "") const {
        for (const Sample& sample : samples)
            if (sample.name == name &&
                (label.empty() || (sample.labels.count(label) != 0 && sample.labels.at(label) == is)))
                return sample.value;
        FAIL("no sample " << name);
        return 0;
    }
};

bool is_name(const std::string& text) {
    if (text.empty() || (std::isdigit(static_cast<unsigned char>(text[0])) != 0)) return false;
    for (const char c : text)
        if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != ':') return false;
    return true;
}

double parse_value(const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    REQUIRE(!text.empty());
    REQUIRE(*end == 0);
    return value;
}

Sample parse_sample(const std::string& line) {
    Sample sample;
    size_t at = line.find_first_of("{ ");
    REQUIRE(at != std::string::npos);
    sample.name = line.substr(0, at);
    REQUIRE(is_name(sample.name));
    if (line[at] == '{') {
        const size_t end = line.find('}', at);
        REQUIRE(end != std::string::npos);
        const std::string label = line.substr(at + 1, end - at - 1);
        const size_t equals = label.find("=\"");
        REQUIRE(equals != std::string::npos);
        REQUIRE(is_name(label.substr(0, equals)));
        REQUIRE(label.back() == '"');
        const std::string text = label.substr(equals + 2, label.size() - equals - 3);
        REQUIRE(text.find_first_of("\"\\,") == std::string::npos);  // one label, nothing to escape
        sample.labels[label.substr(0, equals)] = text;
        at = end + 1;
    }
    REQUIRE(line.at(at) == ' ');
    sample.value = parse_value(line.substr(at + 1));
    return sample;
}

// The family a sample belongs to: the name itself, or without the suffix that histograms add.
std::string family_of(const Exposition& exposition, const std::string& name) {
    if (exposition.types.count(name) != 0) return name;
    for (const std::string suffix : {"_bucket", "_sum", "_count"})
        if (name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix)
            return name.substr(0, name.size() - suffix.size());
    return "";
}

Exposition parse(const std::string& text) {
    Exposition exposition;
    std::set<std::string> helped;
    std::string family;
    REQUIRE(!text.empty());
    REQUIRE(text.back() == '\n');
    for (size_t at = 0; at < text.size();) {
        const size_t end = text.find('\n', at);
        const std::string line = text.substr(at, end - at);
        at = end + 1;
        CAPTURE(line);
        if (line.rfind("# HELP ", 0) == 0) {
            const size_t space = line.find(' ', 7);
            REQUIRE(space != std::string::npos);
            CHECK(helped.insert(line.substr(7, space - 7)).second);
            CHECK(line.size() > space + 1);
        } else if (line.rfind("# TYPE ", 0) == 0) {
            const size_t space = line.find(' ', 7);
            family = line.substr(7, space - 7);
            CHECK(helped.count(family) == 1);
            CHECK(exposition.types.emplace(family, line.substr(space + 1)).second);
        } else {
            const Sample sample = parse_sample(line);
            CHECK(family_of(exposition, sample.name) ==
                  family);  // its TYPE came before it, and families don't mix
            exposition.samples.push_back(sample);
        }
    }
    return exposition;
}

void check_types(const Exposition& exposition) {
    for (const auto& entry : exposition.types) {
        const std::string& name = entry.first;
        const std::string& type = entry.second;
        CAPTURE(name);
        CHECK(name.rfind("treadle_", 0) == 0);
        const bool total = name.size() > 6 && name.substr(name.size() - 6) == "_total";
        CHECK(total == (type == "counter"));
        CHECK((type == "counter" || type == "gauge" || type == "histogram"));
        if (type != "histogram") continue;
        double limit = -1;
        double below = 0;
        for (const Sample& sample : exposition.samples) {
            if (sample.name != name + "_bucket") continue;
            const double le =
                sample.labels.at("le") == "+Inf" ? INFINITY : parse_value(sample.labels.at("le"));
            CHECK(le > limit);
            CHECK(sample.value >= below);
            limit = le;
            below = sample.value;
        }
        CHECK(limit == INFINITY);
        CHECK(below == exposition.value(name + "_count"));
    }
}

std::string text_of(const Metrics& metrics, const Gauges& gauges) {
    std::string text(write_metrics_text(metrics, gauges, {}), '?');
    CHECK(write_metrics_text(metrics, gauges, {text.data(), text.size()}) == text.size());
    return text;
}

std::unique_ptr<Metrics> some_metrics() {
    auto metrics = std::make_unique<Metrics>();
    for (int i = 0; i < 10; i++) {
        metrics->on_submit();
        metrics->on_admit(100 * i);
        metrics->on_prefix_lookup(100, 32);
        metrics->on_prompt_computed(68);
        metrics->on_first_token(20'000 + 1'000 * i);
        for (int token = 1; token < 50; token++) metrics->on_token(3'000 + 10 * token);
    }
    metrics->on_finish(FinishReason::end, 400'000);
    metrics->on_finish(FinishReason::end, 400'000);
    metrics->on_finish(FinishReason::length, 500'000);
    metrics->on_finish(FinishReason::cancelled, 1'000);
    metrics->on_finish(FinishReason::error, 1'234'567);
    metrics->on_preempt(300);
    metrics->on_recomputed(212);
    metrics->on_copy(2);
    for (int i = 0; i < 64; i++) metrics->on_pass(64, 64 + i % 2);
    for (int i = 0; i < 100; i++) metrics->on_step(3'000 + i, 90 + i);
    return metrics;
}

constexpr Gauges some_gauges = {.requests_running = 4,
                                .requests_waiting = 3,
                                .requests_waiting_poll = 2,
                                .requests_paused = 1,
                                .blocks_total = 32,
                                .blocks_free = 12,
                                .blocks_held = 8,
                                .blocks_cached = 12,
                                .blocks_trimmed = 3,
                                .blocks_pinned = 5,
                                .blocks_evicted = 7};

}  // namespace

TEST_CASE("a snapshot sums up what happened") {
    const auto metrics = some_metrics();
    const MetricsSnapshot snapshot = metrics->snapshot(some_gauges);
    CHECK(snapshot.counters.requests_submitted == 10);
    CHECK(snapshot.counters.requests_finished() == 5);
    CHECK(snapshot.counters.requests_cancelled() == 1);
    CHECK(snapshot.counters.requests_failed() == 1);
    CHECK(snapshot.counters.generated_tokens == 500);
    CHECK(snapshot.counters.prompt_tokens_computed == 680);
    CHECK(snapshot.counters.prompt_tokens_cached == 320);
    CHECK(snapshot.counters.preemptions == 1);
    CHECK(snapshot.counters.worst_tile_us == 189);
    CHECK(snapshot.gauges.blocks_cached == 12);
    CHECK(snapshot.ttft_us.count == 10);
    CHECK(snapshot.ttft_us.mean == 24'500);
    CHECK(snapshot.ttft_us.max == 29'000);
    CHECK(snapshot.itl_us.count == 490);
    CHECK(snapshot.itl_us.p50 >= 3'250);
    CHECK(snapshot.itl_us.p50 <= 3'250 + 3'250 / 32);
    CHECK(snapshot.queue_us.max == 900);
    CHECK(snapshot.step_us.count == 100);
    CHECK(snapshot.batch_rows.p50 == 64);
    CHECK(snapshot.batch_tokens.mean == 64.5);
    CHECK(snapshot.e2e_us.count == 5);
}

TEST_CASE("a reason without a name or a place is counted nowhere, and no harm is done") {
    Metrics metrics;
    metrics.on_finish(static_cast<FinishReason>(-1), 5);
    metrics.on_finish(static_cast<FinishReason>(1000), 5);
    CHECK(metrics.counters.requests_finished() == 0);
    CHECK(finish_reason_name(static_cast<FinishReason>(-1)) == "other");
    CHECK(finish_reason_name(FinishReason::stop_string) == "stop_string");
}

TEST_CASE("the metrics text keeps to the exposition format") {
    SUBCASE("empty") { check_types(parse(text_of(*std::make_unique<Metrics>(), {}))); }
    SUBCASE("filled") {
        const Exposition exposition = parse(text_of(*some_metrics(), some_gauges));
        check_types(exposition);
        CHECK(exposition.value("treadle_num_requests_running") == 4);
        CHECK(exposition.value("treadle_kv_cache_usage_perc") == 0.25);
        CHECK(exposition.value("treadle_kv_cache_blocks", "state", "cached") == 12);
        CHECK(exposition.value("treadle_kv_cache_blocks", "state", "trimmed") == 3);
        CHECK(exposition.value("treadle_kv_cache_blocks_pinned") == 5);
        CHECK(exposition.value("treadle_generation_tokens_total") == 500);
        CHECK(exposition.value("treadle_prefix_cache_hits_total") == 320);
        CHECK(exposition.value("treadle_requests_finished_total", "finished_reason", "end") == 2);
        CHECK(exposition.value("treadle_worst_tile_seconds") == 0.000189);
        CHECK(exposition.value("treadle_time_to_first_token_seconds_sum") == 0.245);
        CHECK(exposition.value("treadle_time_to_first_token_seconds_bucket", "le", "0.025") >= 4);
        CHECK(exposition.value("treadle_time_to_first_token_seconds_bucket", "le", "0.05") == 10);
        CHECK(exposition.value("treadle_pass_rows_bucket", "le", "32") == 0);
        CHECK(exposition.value("treadle_pass_rows_bucket", "le", "64") == 64);
        CHECK(exposition.value("treadle_pass_tokens_bucket", "le", "64") == 32);
    }
    SUBCASE("at the extremes") {
        auto metrics = std::make_unique<Metrics>();
        metrics->on_first_token(INT64_MAX);
        metrics->on_first_token(INT64_MIN);
        metrics->counters.steps = UINT64_MAX;
        Gauges gauges;
        gauges.blocks_held = gauges.blocks_total = INT32_MAX;
        const Exposition exposition = parse(text_of(*metrics, gauges));
        check_types(exposition);
        CHECK(exposition.value("treadle_kv_cache_usage_perc") == 1);
    }
}

TEST_CASE("a buffer too small for the metrics text stays as it was") {
    const auto metrics = some_metrics();
    const std::string whole = text_of(*metrics, some_gauges);
    for (const size_t size : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
        std::string buffer(size, '#');
        CHECK(write_metrics_text(*metrics, some_gauges, {buffer.data(), size}) == whole.size());
        CHECK(buffer == std::string(size, '#'));
    }
    std::string larger(whole.size() + 10, '#');
    CHECK(write_metrics_text(*metrics, some_gauges, {larger.data(), larger.size()}) == whole.size());
    CHECK(larger == whole + std::string(10, '#'));
}

TEST_CASE("the writer's decimals are exact") {
    const auto decimal = [](int64_t value, int places) {
        char buffer[64];
        TextWriter writer(buffer);
        writer.put_decimal(value, places);
        REQUIRE(writer.fits());
        return std::string(buffer, writer.bytes());
    };
    CHECK(decimal(0, 6) == "0");
    CHECK(decimal(1, 6) == "0.000001");
    CHECK(decimal(1'500'000, 6) == "1.5");
    CHECK(decimal(-1'500, 3) == "-1.5");
    CHECK(decimal(12, 0) == "12");
    CHECK(decimal(1'000'010, 6) == "1.00001");
    CHECK(decimal(INT64_MAX, 6) == "9223372036854.775807");
    CHECK(decimal(INT64_MIN, 3) == "-9223372036854775.808");
}
