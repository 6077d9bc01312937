// What an engine tells about itself through the C interface: stats with percentiles, metrics text, the trace.
#include <atomic>

#include "api_fixture.h"

using namespace treadle::test;

namespace {

struct ManualClock {
    std::atomic<int64_t> now_ns{1'000'000};
    static int64_t read(void* user) { return static_cast<ManualClock*>(user)->now_ns; }
    void pass_us(int64_t us) { now_ns += us * 1000; }
};

engine_params timed(ManualClock* clock) {
    engine_params params = small_engine_params();
    params.clock = ManualClock::read;
    params.clock_user = clock;
    return params;
}

std::string trace_of(const Host& host) {
    std::string json;
    REQUIRE(engine_trace_write(
                host.e,
                [](void* user, const void* bytes, size_t size) {
                    static_cast<std::string*>(user)->append(static_cast<const char*>(bytes), size);
                    return 0;
                },
                &json) == ENGINE_OK);
    return json;
}

size_t count_of(const std::string& text, const std::string& word) {
    size_t count = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) count++;
    return count;
}

}  // namespace

TEST_CASE("stats tell how long things took, to the microsecond of the host's clock") {
    ManualClock clock;
    Host host(timed(&clock));
    host.submit_text("hello", 5);
    clock.pass_us(40);  // in the queue
    for (int i = 0; i < 5; i++) {
        host.step();
        clock.pass_us(10);  // until the next step
    }
    host.poll();
    const engine_stats stats = stats_of(host.e);
    CHECK(stats.queue_us.count == 1);
    CHECK(stats.queue_us.max == 40);
    CHECK(stats.ttft_us.count == 1);
    CHECK(stats.ttft_us.p50 == 40);
    CHECK(stats.itl_us.count == 4);
    CHECK(stats.itl_us.p50 == 10);
    CHECK(stats.itl_us.p99 == 10);
    CHECK(stats.itl_us.mean == 10);
    CHECK(stats.request_us.max == 80);
    CHECK(stats.pass_rows.count == 5);
    CHECK(stats.pass_rows.max == 1);
    CHECK(stats.steps == 5);
    CHECK(stats.step_us.max == 0);  // the clock stood still in them
}

TEST_CASE("stats tell how much of the prompts the cache had, and which requests came too late") {
    ManualClock clock;
    Host host(timed(&clock));
    const std::string prompt(60, 'x');
    for (int i = 0; i < 2; i++) {
        host.submit_text(prompt.c_str(), 2);
        host.run();
    }
    const engine_part part = text_part("late");
    engine_request_params params = request_params(&part, 1);
    params.deadline_us = 5;
    params.max_tokens = 100;
    params.ignore_end = 1;
    host.submit(params);
    host.step();
    clock.pass_us(6);
    host.run();
    const engine_stats stats = stats_of(host.e);
    CHECK(stats.queried_tokens > 2 * 48);
    CHECK(stats.cached_tokens >= 48);
    CHECK(stats.cached_tokens <= stats.queried_tokens / 2);
    CHECK(stats.requests_late == 1);
    CHECK(stats.requests_finished == 3);
}

TEST_CASE("metrics text has every family once, and says how long it is") {
    Host host;
    host.submit_text("hello", 5);
    host.run();
    size_t size = 0;
    CHECK(engine_metrics_text(host.e, nullptr, 0, &size) == ENGINE_BUFFER_TOO_SMALL);
    std::string text(size + 1, '~');
    CHECK(engine_metrics_text(host.e, text.data(), size - 1, &size) == ENGINE_BUFFER_TOO_SMALL);
    CHECK(text == std::string(size + 1, '~'));
    REQUIRE(engine_metrics_text(host.e, text.data(), size, &size) == ENGINE_OK);
    CHECK(text[size] == '~');
    CHECK(count_of(text, "\ntreadle_generation_tokens_total 5\n") == 1);
    CHECK(count_of(text, "\ntreadle_time_to_first_token_seconds_count 1\n") == 1);
    CHECK(count_of(text, "\ntreadle_inter_token_latency_seconds_count 4\n") == 1);
    CHECK(count_of(text, "# TYPE ") == count_of(text, "# HELP "));
}

TEST_CASE("a trace has every token of every sequence, and the newest events if it is full") {
    engine_params params = small_engine_params();
    params.trace_events = 4096;
    Host host(params);
    for (int i = 0; i < 6; i++) host.submit_text(i % 2 ? "a longer prompt than the others" : "hi", 4 + i);
    host.run();
    const std::string json = trace_of(host);
    CHECK(json.front() == '{');
    CHECK(count_of(json, "\"name\":\"submit\"") == 6);
    CHECK(count_of(json, "\"name\":\"finish\"") == 6);
    CHECK(count_of(json, "\"name\":\"first token\"") == 6);
    CHECK(count_of(json, "\"name\":\"decode\"") == 4 + 5 + 6 + 7 + 8 + 9 - 6);

    params.trace_events = 16;
    Host small(params);
    for (int i = 0; i < 6; i++) small.submit_text("hi", 4 + i);
    small.run();
    CHECK(count_of(trace_of(small), "\"ph\":\"") < 60);  // 16, and the names of lines
    Host without;
    without.submit_text("hi");
    without.run();
    CHECK(count_of(trace_of(without), "decode") == 0);
}

TEST_CASE("a host that wants no more of a trace stops it") {
    engine_params params = small_engine_params();
    params.trace_events = 64;
    Host host(params);
    host.submit_text("hi");
    host.run();
    int calls = 0;
    CHECK(engine_trace_write(
              host.e,
              [](void* user, const void*, size_t) {
                  ++*static_cast<int*>(user);
                  return 1;
              },
              &calls) == ENGINE_STOPPED);
    CHECK(calls == 1);
    CHECK(engine_trace_write(host.e, nullptr, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_trace_write(nullptr, nullptr, nullptr) == ENGINE_INVALID_ARGUMENT);
    params.trace_events = (1 << 24) + 1;
    engine* another = nullptr;
    Failure failure;
    CHECK(engine_create(host.model, &params, &another, failure) == ENGINE_INVALID_ARGUMENT);
    CHECK(failure.names("trace_events"));
}
