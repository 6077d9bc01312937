// Memory through the hooks: nothing is left after unload, each allocation may fail, a step allocates nothing,
// and the library never calls malloc or operator new itself.
#include <cstdlib>

#include "api_fixture.h"
#include "malloc_counter.h"

using namespace treadle::test;

TEST_CASE("fifty rounds of load and unload leave nothing behind") {
    TestAllocator allocator;
    const engine_model_params params = params_with(allocator);
    for (int i = 0; i < 50; i++) {
        {
            Host host(small_engine_params(), params);
            const engine_request kept = host.submit_text("kept to the end", 5);
            host.step();
            static_cast<void>(kept);
        }
        REQUIRE(allocator.live() == 0);
    }
}

TEST_CASE("a load, a creation and a submission fail cleanly at each allocation") {
    TestAllocator allocator;
    engine_model_params params = params_with(allocator);
    params.threads = 3;
    Failure failure;
    engine_model* model = nullptr;
    for (int64_t n = 0;; n++) {
        allocator.fail_from(n);
        const engine_status status =
            engine_model_load_memory(tiny_file().data(), tiny_file().size(), &params, &model, failure);
        allocator.fail_never();
        if (status == ENGINE_OK) break;
        CAPTURE(n);
        REQUIRE(status == ENGINE_NOMEM);
        REQUIRE(allocator.live() == 0);
    }
    const int64_t model_blocks = allocator.live();
    engine* e = nullptr;
    const engine_params wanted = small_engine_params();
    for (int64_t n = 0;; n++) {
        allocator.fail_from(n);
        const engine_status status = engine_create(model, &wanted, &e, failure);
        allocator.fail_never();
        if (status == ENGINE_OK) break;
        CAPTURE(n);
        REQUIRE(status == ENGINE_NOMEM);
        REQUIRE(allocator.live() == model_blocks);
    }
    const int64_t engine_blocks = allocator.live();
    const engine_part parts[] = {message_part("user", "one two three"), text_part("four")};
    const engine_text stop = {"stop", 4};
    const int32_t stop_token = 7;
    engine_request_params request = request_params(parts, 2);
    request.stop_strings = &stop;
    request.stop_string_count = 1;
    request.stop_tokens = &stop_token;
    request.stop_token_count = 1;
    request.logprobs = 3;
    engine_request id = 0;
    for (int64_t n = 0;; n++) {
        allocator.fail_from(n);
        const engine_status status = engine_submit(e, &request, &id, failure);
        allocator.fail_never();
        if (status == ENGINE_OK) break;
        CAPTURE(n);
        REQUIRE(status == ENGINE_NOMEM);
        REQUIRE(allocator.live() == engine_blocks);
    }
    engine_destroy(e);
    engine_model_free(model);
    CHECK(allocator.live() == 0);
}

TEST_CASE("a step allocates nothing") {
    TestAllocator allocator;
    for (const int32_t threads : {1, 3}) {
        engine_model_params params = params_with(allocator);
        params.threads = threads;
        Host host(small_engine_params(), params);
        const std::string prompt(90, 'q');
        const engine_part part = text_part(prompt.c_str());
        engine_request_params request = request_params(&part, 1);
        request.max_tokens = 30;
        request.ignore_end = 1;
        request.logprobs = 4;
        request.temperature = 1;
        request.top_p = 0.9f;
        std::vector<engine_request> ids;
        for (int i = 0; i < 9; i++) {
            request.seed = static_cast<uint64_t>(i);
            ids.push_back(host.submit(request));
        }
        REQUIRE(engine_cancel(host.e, ids[3]) == ENGINE_OK);
        for (int i = 0; i < 400; i++) {
            const int64_t calls = allocator.calls();
            allocator.fail_from(0);
            const engine_step_report report = host.step(i % 3 == 0 ? 1 : 0);
            allocator.fail_never();
            REQUIRE(allocator.calls() == calls);
            host.poll();
            if (report.next_step_us != 0) break;
        }
        for (const engine_request id : ids) CHECK(host.stories[id].finished == 1);
    }
}

TEST_CASE("the library calls neither malloc nor operator new") {
    if (!malloc_counter_works()) return;  // a sanitizer or valgrind has its own malloc
    const engine_model_params params = model_params();
    const engine_params wanted = small_engine_params();
    Failure failure;
    engine_model* model = nullptr;
    engine* e = nullptr;
    engine_request id = 0;
    const engine_part parts[] = {message_part("user", "na\xc3\xafve text, 123 words")};
    engine_request_params request = request_params(parts, 1);
    request.max_tokens = 20;
    const Bytes& file = tiny_file();
    engine_status statuses[4];
    {
        const MallocCounter counter;
        statuses[0] = engine_model_load_memory(file.data(), file.size(), &params, &model, failure);
        CHECK(counter.calls() == 0);
    }
    {
        const MallocCounter counter;
        statuses[1] = engine_create(model, &wanted, &e, failure);
        CHECK(counter.calls() == 0);
    }
    {
        const MallocCounter counter;
        statuses[2] = engine_submit(e, &request, &id, failure);
        CHECK(counter.calls() == 0);
    }
    {
        const MallocCounter counter;
        engine_event events[4];
        char bytes[512];
        size_t count = 0;
        for (int i = 0; i < 30; i++) {
            statuses[3] = engine_step(e, nullptr, nullptr);
            engine_poll_tokens(e, events, sizeof events[0], 4, &count, bytes, sizeof bytes, nullptr, nullptr);
        }
        engine_destroy(e);
        engine_model_free(model);
        CHECK(counter.calls() == 0);
    }
    for (const engine_status status : statuses) CHECK(status == ENGINE_OK);
}

TEST_CASE("the host's malloc and operator new stay the host's") {
    if (!malloc_counter_works()) return;
    // Through pointers that the compiler can't see through: it may leave out an allocation that nobody looks at.
    void* (*volatile allocate)(size_t) = std::malloc;
    void* (*volatile allocate_new)(size_t) = ::operator new;
    const MallocCounter counter;
    std::free(allocate(100));
    CHECK(counter.calls() == 1);
    ::operator delete(allocate_new(100));
    CHECK(counter.calls() == 2);
}
