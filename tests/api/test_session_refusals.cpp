// What is no session, or none of this model: a status, and nothing is changed. Full disks, failing callbacks, no memory.
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "session_fixture.h"
#include "test_memory.h"

using namespace treadle::test;

namespace {

// A session in the middle of an answer, with everything that one can have.
SessionBytes some_session(Host& host, bool finished = false) {
    const engine_part part = text_part("refuse me");
    const engine_text stops[] = {{"never met", 9}, {"\xe2\x98\x83", 3}};
    const int32_t stop_tokens[] = {7, 9};
    engine_request_params params = request_params(&part, 1);
    params.temperature = 1;
    params.max_tokens = 20;
    params.ignore_end = 1;
    params.keep = 1;
    params.logprobs = 2;
    params.stop_strings = stops;
    params.stop_string_count = 2;
    params.stop_tokens = stop_tokens;
    params.stop_token_count = 2;
    const engine_request id = host.submit(params);
    for (int i = 0; i < 9; i++) host.step();
    if (finished) host.run();
    const SessionBytes bytes = save(host.e, id);
    REQUIRE(engine_release(host.e, id) == ENGINE_OK);
    host.step();
    return bytes;
}

void check_refused(engine* e, const SessionBytes& bytes, std::initializer_list<engine_status> expected,
                   const char* word = "") {
    engine_request id = 77;
    Failure failure;
    const engine_status status = engine_session_restore(e, bytes.data(), bytes.size(), nullptr, &id, failure);
    CAPTURE(status);
    CAPTURE(failure.message());
    CHECK(std::find(expected.begin(), expected.end(), status) != expected.end());
    CHECK(failure.error.status == status);
    CHECK(failure.names(word));
    CHECK(id == 77);
}

struct Folder {
    std::filesystem::path path;
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "api_session_XXXXXX").string();
        REQUIRE(mkdtemp(name.data()) != nullptr);
        path = name;
    }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string file(const char* name) const { return (path / name).string(); }
};

std::string content(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

TEST_CASE("every prefix and every flipped bit of a session is a status, and nothing changes") {
    Host host;
    const SessionBytes bytes = some_session(host);
    const engine_stats before = stats_of(host.e);
    for (size_t size = 0; size < bytes.size(); size++)
        check_refused(host.e, {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)},
                      {ENGINE_TRUNCATED});
    for (size_t bit = 0; bit < 8 * bytes.size(); bit++) {
        SessionBytes flipped = bytes;
        flipped[bit / 8] = static_cast<unsigned char>(flipped[bit / 8] ^ 1u << bit % 8);
        check_refused(host.e, flipped,
                      {ENGINE_CORRUPT, ENGINE_BAD_MAGIC, ENGINE_BAD_VERSION, ENGINE_TRUNCATED});
    }
    SessionBytes longer = bytes;
    longer.push_back(0);
    check_refused(host.e, longer, {ENGINE_CORRUPT});
    const Bytes& model = tiny_file();
    check_refused(host.e, {model.begin(), model.begin() + 1000}, {ENGINE_BAD_MAGIC});
    const engine_stats after = stats_of(host.e);
    CHECK(after.requests_submitted == before.requests_submitted);
    CHECK(after.kv_blocks_free == before.kv_blocks_free);
    Teller teller;
    const engine_request id = restore(host.e, bytes);
    teller.run(host.e);
    CHECK(teller.of(id).finish_reason == ENGINE_FINISH_LENGTH);
}

TEST_CASE("a session of another model is refused with both fingerprints") {
    Host host;
    const SessionBytes bytes = some_session(host);
    const Bytes other_file = tiny_llama(43).bytes();
    Host other(small_engine_params(), model_params(), other_file);
    for (engine_model* model : {host.model, other.model}) {
        engine_model_info info;
        REQUIRE(engine_model_info_init(&info, sizeof info) == ENGINE_OK);
        REQUIRE(engine_model_get_info(model, &info) == ENGINE_OK);
        char fingerprint[32];
        std::snprintf(fingerprint, sizeof fingerprint, "%016llx",
                      static_cast<unsigned long long>(info.fingerprint));
        check_refused(other.e, bytes, {ENGINE_WRONG_MODEL}, fingerprint);
    }
    CHECK(std::string(engine_status_name(ENGINE_WRONG_MODEL)) == "ENGINE_WRONG_MODEL");
}

TEST_CASE("a session that doesn't fit an engine is refused with the numbers, unless it is over") {
    Host host;
    const SessionBytes live = some_session(host), over = some_session(host, true);
    engine_params params = small_engine_params();
    params.context_length = 12;
    Host short_context(params);
    check_refused(short_context.e, live, {ENGINE_PROMPT_TOO_LONG}, "12");
    params = small_engine_params();
    params.kv_blocks = 1;
    params.max_requests = 1;
    Host small_pool(params);
    check_refused(small_pool.e, live, {ENGINE_POOL_TOO_SMALL}, "16");
    Teller teller;
    const engine_request id = restore(small_pool.e, over);
    check_refused(small_pool.e, over, {ENGINE_FULL}, "max_requests");
    while (teller.poll(small_pool.e, 4)) {
    }
    CHECK(teller.of(id).generated_tokens == 20);
    restore(small_pool.e, over);  // the place is free at once
}

TEST_CASE("what is saved is named rightly, or nothing is written") {
    Host host;
    const engine_request id = host.submit_text("names", 5);
    const auto length = static_cast<int32_t>(tokens_of(host.e, id).size());
    unsigned char byte = 0x5a;
    size_t size = 123;
    const auto refused = [&](engine_request request, int32_t sequence, int32_t position,
                             engine_status expected, const char* word) {
        Failure failure;
        CHECK(engine_session_save(host.e, request, sequence, position, &byte, 1, &size, failure) == expected);
        CHECK(failure.names(word));
        CHECK(byte == 0x5a);
    };
    refused(id + 1, 0, -1, ENGINE_STALE_ID, "request");
    refused(0, 0, -1, ENGINE_STALE_ID, "request");
    refused(id, 1, -1, ENGINE_INVALID_ARGUMENT, "sequence");
    refused(id, -1, -1, ENGINE_INVALID_ARGUMENT, "sequence");
    refused(id, 0, 0, ENGINE_INVALID_ARGUMENT, "position");
    refused(id, 0, -2, ENGINE_INVALID_ARGUMENT, "position");
    refused(id, 0, length + 1, ENGINE_INVALID_ARGUMENT, "position");
    CHECK(size == 123);
    refused(id, 0, -1, ENGINE_BUFFER_TOO_SMALL, "buffer");
    CHECK(size > 100);
    Failure failure;
    CHECK(engine_session_save(nullptr, id, 0, -1, &byte, 1, &size, failure) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_save(host.e, id, 0, -1, nullptr, 1, &size, failure) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_save(host.e, id, 0, -1, nullptr, 0, nullptr, failure) == ENGINE_BUFFER_TOO_SMALL);
    CHECK(engine_session_save_callback(host.e, id, 0, -1, nullptr, nullptr, failure) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_save_file(host.e, id, 0, -1, nullptr, failure) == ENGINE_INVALID_ARGUMENT);

    const SessionBytes bytes = save(host.e, id);
    const auto refused_params = [&](auto change, engine_status expected, const char* word) {
        engine_session_params params = session_params();
        change(params);
        engine_request restored = 77;
        Failure words;
        CHECK(engine_session_restore(host.e, bytes.data(), bytes.size(), &params, &restored, words) ==
              expected);
        CHECK(words.names(word));
        CHECK(restored == 77);
    };
    using Params = engine_session_params;
    refused_params([](Params& p) { p.priority = 4; }, ENGINE_INVALID_ARGUMENT, "priority");
    refused_params([](Params& p) { p.priority = -1; }, ENGINE_INVALID_ARGUMENT, "priority");
    refused_params([](Params& p) { p.logprobs = 21; }, ENGINE_INVALID_ARGUMENT, "logprobs");
    refused_params([](Params& p) { p.logprobs = -2; }, ENGINE_INVALID_ARGUMENT, "logprobs");
    refused_params([](Params& p) { p.deadline_us = -1; }, ENGINE_INVALID_ARGUMENT, "deadline_us");
    refused_params([](Params& p) { p.struct_size = 0; }, ENGINE_STRUCT_SIZE, "engine_session_params");
    engine_request restored = 0;
    CHECK(engine_session_restore(nullptr, bytes.data(), bytes.size(), nullptr, &restored, failure) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_restore(host.e, nullptr, 10, nullptr, &restored, failure) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_restore(host.e, nullptr, 0, nullptr, &restored, failure) == ENGINE_TRUNCATED);
    CHECK(engine_session_restore(host.e, bytes.data(), bytes.size(), nullptr, nullptr, failure) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_restore_callback(host.e, nullptr, nullptr, 10, nullptr, &restored, failure) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_restore_file(host.e, nullptr, nullptr, &restored, failure) ==
          ENGINE_INVALID_ARGUMENT);
}

TEST_CASE("sessions go through callbacks, which may fail, and may call the engine") {
    struct Stream {
        engine* e;
        SessionBytes bytes;
        int32_t answer = 0;
        static int32_t write(void* user, const void* bytes, size_t size) {
            auto* self = static_cast<Stream*>(user);
            engine_stats stats = stats_of(self->e);  // no lock is held
            static_cast<void>(stats);
            const auto* from = static_cast<const unsigned char*>(bytes);
            self->bytes.insert(self->bytes.end(), from, from + size);
            return self->answer;
        }
        static int32_t read(void* user, uint64_t offset, void* destination, size_t size) {
            auto* self = static_cast<Stream*>(user);
            static_cast<void>(stats_of(self->e));
            CHECK(offset + size <= self->bytes.size());
            std::memcpy(destination, self->bytes.data() + offset, size);
            return self->answer;
        }
    };
    Host host;
    const engine_request id = host.submit_text("streamed", 20);
    for (int i = 0; i < 5; i++) host.step();
    Stream stream{host.e, {}, 0};
    Failure failure;
    REQUIRE(engine_session_save_callback(host.e, id, 0, -1, Stream::write, &stream, failure) == ENGINE_OK);
    CHECK(stream.bytes == save(host.e, id));
    engine_request restored = 0;
    const uint64_t size = stream.bytes.size();
    REQUIRE(engine_session_restore_callback(host.e, Stream::read, &stream, size, nullptr, &restored,
                                            failure) == ENGINE_OK);
    CHECK(engine_session_restore_callback(host.e, Stream::read, &stream, size - 1, nullptr, &restored,
                                          failure) == ENGINE_TRUNCATED);
    CHECK(engine_session_restore_callback(host.e, Stream::read, &stream, 0, nullptr, &restored, failure) ==
          ENGINE_TRUNCATED);
    CHECK(engine_session_restore_callback(host.e, Stream::read, &stream, UINT64_MAX, nullptr, &restored,
                                          failure) == ENGINE_LIMIT);
    stream.answer = 5;
    CHECK(engine_session_restore_callback(host.e, Stream::read, &stream, size, nullptr, &restored, failure) ==
          ENGINE_IO);
    CHECK(failure.names("5"));
    CHECK(engine_session_save_callback(host.e, id, 0, -1, Stream::write, &stream, failure) == ENGINE_STOPPED);
    CHECK(failure.names("5"));
    host.run();
    CHECK(host.stories[restored].generated_tokens == 20);
}

TEST_CASE("sessions go into files, which hold the old or the new one whatever happens") {
    const Folder folder;
    const std::string path = folder.file("chat.session");
    Host host;
    const engine_request id = host.submit_text("filed", 20);
    for (int i = 0; i < 5; i++) host.step();
    Failure failure;
    REQUIRE(engine_session_save_file(host.e, id, 0, -1, path.c_str(), failure) == ENGINE_OK);
    const std::string first = content(path);
    const SessionBytes bytes = save(host.e, id);
    CHECK(first == std::string(bytes.begin(), bytes.end()));
    for (int i = 0; i < 5; i++) host.step();

    rlimit before;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small_files{50, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small_files) == 0);
    const engine_status full = engine_session_save_file(host.e, id, 0, -1, path.c_str(), failure);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    std::signal(SIGXFSZ, handler);
    CHECK(full == ENGINE_IO);
    CHECK(failure.names(path.c_str()));
    CHECK(content(path) == first);
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path),
                        std::filesystem::directory_iterator()) == 1);
    CHECK(engine_session_save_file(host.e, id, 0, -1, folder.file("no/where").c_str(), failure) ==
          ENGINE_NOT_FOUND);
    CHECK(engine_session_save_file(host.e, id, 0, 999, path.c_str(), failure) == ENGINE_INVALID_ARGUMENT);
    CHECK(content(path) == first);

    REQUIRE(engine_session_save_file(host.e, id, 0, -1, path.c_str(), failure) == ENGINE_OK);
    CHECK(content(path) != first);
    engine_request restored = 0;
    REQUIRE(engine_session_restore_file(host.e, path.c_str(), nullptr, &restored, failure) == ENGINE_OK);
    host.run();
    CHECK(host.stories[restored].generated_tokens == 20);
    CHECK(engine_session_restore_file(host.e, folder.file("none").c_str(), nullptr, &restored, failure) ==
          ENGINE_NOT_FOUND);
    CHECK(engine_session_restore_file(host.e, folder.path.c_str(), nullptr, &restored, failure) == ENGINE_IO);
    std::filesystem::resize_file(path, 60);
    CHECK(engine_session_restore_file(host.e, path.c_str(), nullptr, &restored, failure) == ENGINE_TRUNCATED);
    CHECK(failure.names(path.c_str()));
}

TEST_CASE("saving and restoring fail cleanly at each allocation") {
    const Folder folder;
    const std::string path = folder.file("chat.session");
    TestAllocator allocator;
    Host host(small_engine_params(), params_with(allocator));
    const SessionBytes live = some_session(host), over = some_session(host, true);
    const engine_request id = restore(host.e, live);
    for (int i = 0; i < 3; i++) host.step();
    const int64_t blocks = allocator.live();
    uint64_t submitted = stats_of(host.e).requests_submitted;
    const auto fails_at_each = [&](auto call) {
        for (int64_t n = 0;; n++) {
            allocator.fail_from(n);
            const engine_status status = call();
            allocator.fail_never();
            if (status == ENGINE_OK) return n;
            CAPTURE(n);
            REQUIRE(status == ENGINE_NOMEM);
            REQUIRE(allocator.live() == blocks);
            REQUIRE(stats_of(host.e).requests_submitted == submitted);
        }
    };
    CHECK(fails_at_each([&] { return engine_session_save_file(host.e, id, 0, -1, path.c_str(), nullptr); }) >
          3);
    CHECK(fails_at_each([&] {
              return engine_session_save_callback(
                  host.e, id, 0, 6, [](void*, const void*, size_t) -> int32_t { return 0; }, nullptr,
                  nullptr);
          }) > 2);
    CHECK(allocator.live() == blocks);
    for (const SessionBytes& bytes : {live, over}) {
        engine_request restored = 0;
        CHECK(fails_at_each([&] {
                  return engine_session_restore(host.e, bytes.data(), bytes.size(), nullptr, &restored,
                                                nullptr);
              }) > 8);
        REQUIRE(engine_release(host.e, restored) == ENGINE_OK);
        host.step();
        host.poll();  // frees what the step has ended
        submitted++;
        REQUIRE(allocator.live() == blocks);
    }
}
