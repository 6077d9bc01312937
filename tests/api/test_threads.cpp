// Many threads at one engine: submit, cancel, release, poll and ask while another steps. Meant for the thread
// sanitizer; the answers are compared all the same.
#include <atomic>
#include <thread>

#include "api_fixture.h"
#include "test_memory.h"

using namespace treadle::test;

TEST_CASE("eight threads submit, cancel and poll while another steps") {
    engine_model_params of_model = model_params();
    of_model.threads = 2;
    engine_params params = small_engine_params();
    params.max_requests = 64;
    Host host(params, of_model);
    constexpr int rounds = 25;
    std::vector<char> session(
        4096);  // of a request that is over: restored, it ends on the thread that does it
    const engine_request over = host.submit_text("over before they begin", 2);
    host.step();
    host.step();
    size_t session_bytes = 0;
    REQUIRE(engine_session_save(host.e, over, 0, -1, session.data(), session.size(), &session_bytes,
                                nullptr) == ENGINE_OK);
    host.run();
    host.stories.clear();
    std::atomic<int> workers{8};
    std::atomic<int> submitted{0}, finished{0}, failures{0};

    const auto work = [&](int number) {
        engine_event events[8];
        char bytes[2048];
        for (int i = 0; i < rounds; i++) {
            const std::string text = "thread " + std::to_string(number) + " round " + std::to_string(i);
            engine_part part;
            engine_part_init(&part, sizeof part);
            part.text = text.c_str();
            engine_request_params request;
            engine_request_params_init(&request, sizeof request);
            request.parts = &part;
            request.part_count = 1;
            request.max_tokens = 3;
            request.seed = static_cast<uint64_t>(i);
            request.temperature = 1;
            engine_request id = 0;
            const engine_status status = engine_submit(host.e, &request, &id, nullptr);
            if (status == ENGINE_OK) submitted++;
            if (status != ENGINE_OK && status != ENGINE_FULL) failures++;
            if (status == ENGINE_OK && i % 5 == number % 5) engine_cancel(host.e, id);
            if (i % 6 == number % 6) {
                engine_request restored = 0;
                const engine_status ended = engine_session_restore(host.e, session.data(), session_bytes,
                                                                   nullptr, &restored, nullptr);
                if (ended == ENGINE_OK) submitted++;
                if (ended != ENGINE_OK && ended != ENGINE_FULL) failures++;
            }
            engine_request_info info;
            engine_request_info_init(&info, sizeof info);
            engine_request_get_info(host.e, id, &info);
            size_t count = 0;
            int32_t tokens[64];
            engine_sequence_tokens(host.e, id, 0, tokens, 64, &count);
            engine_stats stats;
            engine_stats_init(&stats, sizeof stats);
            engine_get_stats(host.e, &stats);
            if (i % 4 == number % 4 && engine_trim(host.e, nullptr) != ENGINE_OK) failures++;
            if (engine_poll_tokens(host.e, events, sizeof events[0], 8, &count, bytes, sizeof bytes, nullptr,
                                   nullptr) != ENGINE_OK)
                failures++;
            for (size_t k = 0; k < count; k++) finished += events[k].kind == ENGINE_EVENT_FINISHED;
        }
        workers--;
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++) threads.emplace_back(work, i);
    int turn = 0;
    while (workers > 0) {
        engine_step_params step;
        engine_step_params_init(&step, sizeof step);
        step.budget_us = turn++ % 2 == 0 ? 0 : 50;
        if (engine_step(host.e, &step, nullptr) != ENGINE_OK) failures++;
    }
    for (std::thread& thread : threads) thread.join();
    host.run();
    for (const auto& [id, story] : host.stories) finished += story.finished;
    CHECK(failures == 0);
    CHECK(finished == submitted);
    engine_stats stats;
    engine_stats_init(&stats, sizeof stats);
    CHECK(engine_get_stats(host.e, &stats) == ENGINE_OK);
    CHECK(host.step().free_blocks + stats.kv_blocks_trimmed == 64);
}

TEST_CASE("a second thread in engine_step gets BUSY, and so does a callback that steps") {
    struct Meeting {
        engine* e = nullptr;
        std::atomic<bool> inside{false};
        std::atomic<bool> go_on{false};
        engine_status nested = ENGINE_OK;
        bool armed = false;
    } meeting;
    engine_params params = small_engine_params();
    params.clock_user = &meeting;
    params.clock = [](void* user) -> int64_t {
        auto* self = static_cast<Meeting*>(user);
        static std::atomic<int64_t> now{0};
        if (self->armed) {
            self->armed = false;
            self->nested = engine_step(self->e, nullptr, nullptr);
            self->inside = true;
            while (!self->go_on) std::this_thread::yield();
        }
        return now += 1000;
    };
    Host host(params);
    meeting.e = host.e;
    host.submit_text("busy", 3);
    meeting.armed = true;
    std::thread stepper([&] { engine_step(host.e, nullptr, nullptr); });
    while (!meeting.inside) std::this_thread::yield();
    CHECK(engine_step(host.e, nullptr, nullptr) == ENGINE_BUSY);
    meeting.go_on = true;
    stepper.join();
    CHECK(meeting.nested == ENGINE_BUSY);
    host.run();
}

// The clock is read all through a step with no lock held, so its hook stands for another thread at each of these places.
TEST_CASE("a cancel or a release at any moment of the step that ends the request") {
    struct Moment {
        engine* e = nullptr;
        engine_request request = 0;
        engine_status (*act)(engine*, engine_request) = nullptr;
        int64_t now = 0;
        int64_t left = INT64_MAX;  // readings until it acts
    };
    for (const auto act : {engine_cancel, engine_release}) {
        bool acted = true;
        for (int64_t after = 0; acted; after++) {
            CAPTURE(after);
            TestAllocator allocator;
            Moment moment;
            engine_params params = small_engine_params();
            params.clock_user = &moment;
            params.clock = [](void* user) -> int64_t {
                auto* self = static_cast<Moment*>(user);
                if (self->left-- == 0) CHECK(self->act(self->e, self->request) == ENGINE_OK);
                return self->now += 1000;
            };
            Host host(params, params_with(allocator));
            moment = {host.e, host.submit_text("over after one token", 1), act, 0, after};
            host.step();
            acted = moment.left < 0;
            moment.left = INT64_MAX;
            host.poll();  // frees it, where it is over
            const engine_request next = host.submit_text("next", 2);
            host.run();
            CHECK(host.stories.count(moment.request) == (act == engine_release && acted ? 0 : 1));
            CHECK(host.stories[next].tokens.size() == 2);
            CHECK(host.step().free_blocks == 64);
        }
    }
}

TEST_CASE("the wake hook is called once between steps, when work appears") {
    std::atomic<int> woken{0};
    engine_params params = small_engine_params();
    params.wake_user = &woken;
    params.wake = [](void* user) { ++*static_cast<std::atomic<int>*>(user); };
    Host host(params);
    CHECK(host.step().next_step_us == -1);
    CHECK(woken == 0);
    const engine_request a = host.submit_text("a", 2);
    host.submit_text("b", 2);
    engine_cancel(host.e, a);
    CHECK(woken == 1);
    CHECK(host.step().next_step_us == 0);
    host.run();
    CHECK(woken == 1);
    host.submit_text("c", 200);
    CHECK(woken == 2);
    engine_step_report report = host.step();
    while (report.next_step_us == 0) report = host.step();  // until it sits out
    CHECK(report.waiting_poll == 1);
    CHECK(woken == 2);
    host.poll();
    CHECK(woken == 3);
    host.run();
}

TEST_CASE("a step with a budget comes back in the middle of a pass, and the tokens don't care") {
    struct Clock {
        int64_t now = 0;
    } ticks;
    engine_params params = small_engine_params();
    params.clock_user = &ticks;
    params.clock = [](void* user) -> int64_t { return static_cast<Clock*>(user)->now += 1000; };
    Host cut(params), whole;
    const engine_request a = cut.submit_text("a budget of one tile", 10);
    const engine_request b = whole.submit_text("a budget of one tile", 10);
    int steps = 0;
    while (cut.stories[a].finished == 0) {
        const engine_step_report report = cut.step(1);
        CHECK(report.passes <= 1);
        cut.poll();
        steps++;
    }
    CHECK(steps > 50);
    whole.run();
    CHECK(cut.stories[a].tokens == whole.stories[b].tokens);
    CHECK(cut.stories[a].text == whole.stories[b].text);
}
