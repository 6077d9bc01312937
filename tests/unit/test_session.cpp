// Saved sessions: every state comes back as it was, and nothing but a whole, undamaged file is accepted.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/file_replace.h"
#include "engine/session.h"
#include "engine/session_file.h"
#include "model/fingerprint.h"
#include "test_memory.h"

using namespace treadle;

namespace {

using Bytes = std::vector<std::byte>;

// Where the fields of version 1 lie.
constexpr size_t version_at = 8, length_at = 12, numerics_at = 28, temperature_at = 84, top_p_at = 92,
                 logprobs_at = 100, max_tokens_at = 104, prompt_tokens_at = 108, delivered_at = 112,
                 finish_at = 120, ignore_end_at = 124, token_count_at = 125, tokens_at = 129;

struct Fixture {
    test::TestAllocator allocator;
    Memory memory{allocator.hooks(), MemoryKind::other};

    SessionState small() {
        SessionState state(&memory);
        state.model_fingerprint = 0x0123456789abcdef;
        std::strcpy(state.numerics_id, "cpu-1");
        state.tokens = {1, 127, 128, 16383, 16384, 2097151, 2097152, 4194303, 0};
        state.prompt_tokens = 4;
        state.sample_index = 3;
        state.forks = 0x0102030405060708;
        state.sampling = {0.75f, 40, 0.9f, 0.05f, 0xfedcba9876543210, 5};
        state.max_tokens = 300;
        state.ignore_end = true;
        state.stop_tokens = {7, 4194303};
        state.stop_strings.emplace_back("END");
        state.stop_strings.emplace_back(std::string(100, 'x') + "\xf0\x9f\x98\x80");
        state.delivered_bytes = 17;
        state.finish_reason = 3;
        return state;
    }

    Bytes encode(const SessionState& state) {
        Bytes bytes(session_bytes(state));
        Error error;
        REQUIRE(encode_session(state, bytes, &error) == Status::OK);
        return bytes;
    }

    Status decode(std::span<const std::byte> bytes, Error* error = nullptr) {
        SessionState out(&memory);
        out.tokens = {42};
        Error own;
        const Status status = decode_session(bytes, &out, error == nullptr ? &own : error);
        if (status != Status::OK) {
            CHECK((error == nullptr ? own : *error).status == status);
            CHECK((error == nullptr ? own : *error).message[0] != 0);
            CHECK(out.tokens == std::pmr::vector<int32_t>{42});  // unchanged
        }
        return status;
    }
};

void check_equal(const SessionState& a, const SessionState& b) {
    CHECK(a.model_fingerprint == b.model_fingerprint);
    CHECK(std::memcmp(a.numerics_id, b.numerics_id, numerics_id_bytes) == 0);
    CHECK(a.tokens == b.tokens);
    CHECK(a.prompt_tokens == b.prompt_tokens);
    CHECK(a.sample_index == b.sample_index);
    CHECK(a.forks == b.forks);
    CHECK(a.sampling.temperature == b.sampling.temperature);
    CHECK(a.sampling.top_k == b.sampling.top_k);
    CHECK(a.sampling.top_p == b.sampling.top_p);
    CHECK(a.sampling.min_p == b.sampling.min_p);
    CHECK(a.sampling.seed == b.sampling.seed);
    CHECK(a.sampling.logprobs == b.sampling.logprobs);
    CHECK(a.max_tokens == b.max_tokens);
    CHECK(a.ignore_end == b.ignore_end);
    CHECK(a.stop_tokens == b.stop_tokens);
    CHECK(a.stop_strings == b.stop_strings);
    CHECK(a.delivered_bytes == b.delivered_bytes);
    CHECK(a.finish_reason == b.finish_reason);
}

template <class T>
void put(Bytes& bytes, size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

// Gives crafted bytes the length and the checksum that they need to be looked into.
Bytes sealed(Bytes bytes) {
    put(bytes, length_at, static_cast<uint64_t>(bytes.size()));
    Fingerprint sum;
    sum.update(bytes.data(), bytes.size() - 8);
    put(bytes, bytes.size() - 8, sum.value());
    return bytes;
}

template <class T>
Bytes with(Bytes bytes, size_t at, T value) {
    put(bytes, at, value);
    return sealed(std::move(bytes));
}

// A folder of its own, gone with the test.
struct Folder {
    std::filesystem::path path;
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "session_XXXXXX").string();
        REQUIRE(mkdtemp(name.data()) != nullptr);
        path = name;
    }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string file(const char* name) const { return (path / name).string(); }
    std::ptrdiff_t count() const {
        return std::distance(std::filesystem::directory_iterator(path),
                             std::filesystem::directory_iterator());
    }
};

std::string content(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a session comes back as it was, and gives the same bytes again") {
    for (const bool large : {false, true}) {
        SessionState state = small();
        if (large) {
            std::mt19937 random(5);
            for (int i = 0; i < 8000; i++) state.tokens.push_back(static_cast<int32_t>(random() % 49152));
        }
        const Bytes bytes = encode(state);
        SessionState back(&memory);
        Error error;
        REQUIRE(decode_session(bytes, &back, &error) == Status::OK);
        check_equal(state, back);
        CHECK(encode(back) == bytes);
        if (large) CHECK(bytes.size() < 26000);  // 8,000 tokens
    }
    SessionState least(&memory);
    least.tokens = {0};
    SessionState back = small();
    REQUIRE(decode_session(encode(least), &back, nullptr) == Status::OK);
    check_equal(least, back);
}

TEST_CASE_FIXTURE(Fixture, "a session's bytes are little-endian and lie where the format says") {
    const Bytes bytes = encode(small());
    CHECK(std::memcmp(bytes.data(), "TREADLES", 8) == 0);
    CHECK(bytes[version_at] == std::byte{1});
    CHECK(bytes[length_at] == static_cast<std::byte>(bytes.size() & 0xff));
    CHECK(bytes[20] == std::byte{0xef});
    CHECK(bytes[27] == std::byte{0x01});
    CHECK(std::memcmp(bytes.data() + numerics_at, "cpu-1", 6) == 0);
    CHECK(bytes[temperature_at + 3] == std::byte{0x3f});  // 0.75 is 0x3f400000
    CHECK(bytes[token_count_at] == std::byte{9});
    CHECK(bytes[tokens_at] == std::byte{1});
    CHECK(bytes[tokens_at + 1] == std::byte{127});
    CHECK(bytes[tokens_at + 2] == std::byte{0x80});  // 128 in two bytes
    CHECK(bytes[tokens_at + 3] == std::byte{1});
}

TEST_CASE_FIXTURE(Fixture, "every prefix, every extension and every flipped bit of a session is refused") {
    const Bytes bytes = encode(small());
    for (size_t size = 0; size < bytes.size(); size++) {
        CAPTURE(size);
        CHECK(decode(std::span(bytes).first(size)) == Status::TRUNCATED);
    }
    for (size_t more = 1; more < 20; more++) {
        Bytes longer = bytes;
        longer.resize(bytes.size() + more);
        CHECK(decode(longer) == Status::CORRUPT);
    }
    for (size_t bit = 0; bit < 8 * bytes.size(); bit++) {
        CAPTURE(bit);
        Bytes flipped = bytes;
        flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
        const Status status = decode(flipped);
        if (bit < 8 * version_at)
            CHECK(status == Status::BAD_MAGIC);
        else if (bit < 8 * length_at)
            CHECK(status == Status::BAD_VERSION);
        else if (bit < 8 * (length_at + 8))
            CHECK((status == Status::TRUNCATED || status == Status::CORRUPT));
        else
            CHECK(status == Status::CORRUPT);
    }
    CHECK(decode(bytes) == Status::OK);
    CHECK(decode(bytes_of("GGUF and more, long enough to be one of ours")) == Status::BAD_MAGIC);
    CHECK(decode(bytes_of("TREA")) == Status::TRUNCATED);
    CHECK(decode(bytes_of("TREE")) == Status::BAD_MAGIC);
}

TEST_CASE_FIXTURE(Fixture, "a session with a right checksum and wrong fields is refused") {
    const Bytes good = encode(small());
    REQUIRE(decode(sealed(good)) == Status::OK);
    const auto refused = [&](const Bytes& bytes, Status expected, const char* field) {
        Error error;
        CAPTURE(std::string(field));
        CHECK(decode(bytes, &error) == expected);
        CAPTURE(std::string(error.message));
        CHECK(std::strstr(error.message, field) != nullptr);
    };
    constexpr Status corrupt = Status::CORRUPT;
    refused(with(good, version_at, 2), Status::BAD_VERSION, "version");
    refused(with(good, numerics_at, '\n'), corrupt, "numerics_id");
    refused(with(good, numerics_at + 10, 'x'), corrupt, "numerics_id");
    Bytes unended = good;
    std::memset(unended.data() + numerics_at, 'x', 32);
    refused(sealed(unended), corrupt, "numerics_id");
    refused(with(good, temperature_at, std::numeric_limits<float>::quiet_NaN()), corrupt, "temperature");
    refused(with(good, temperature_at, -1.0f), corrupt, "temperature");
    refused(with(good, top_p_at, 0.0f), corrupt, "top_p");
    refused(with(good, logprobs_at, 21), corrupt, "logprobs");
    refused(with(good, max_tokens_at, 0), corrupt, "max_tokens");
    refused(with(good, max_tokens_at, -2), corrupt, "max_tokens");
    refused(with(good, prompt_tokens_at, 0), corrupt, "prompt_tokens");
    refused(with(good, prompt_tokens_at, 10), corrupt, "prompt_tokens");
    refused(with(good, delivered_at, UINT64_MAX), corrupt, "delivered_bytes");
    refused(with(good, finish_at, session_finish_reason_max + 1), corrupt, "finish_reason");
    refused(with(good, finish_at, session_finish_reason_error), corrupt, "finish_reason");
    refused(with(good, finish_at, -1), corrupt, "finish_reason");
    refused(with(good, ignore_end_at, uint8_t{2}), corrupt, "ignore_end");
    refused(with(good, token_count_at, UINT32_MAX), Status::LIMIT, "tokens");
    refused(with(good, token_count_at, limits::context_max), corrupt, "tokens");
    refused(with(good, token_count_at, 0), Status::LIMIT, "stop tokens");  // tokens are read as their count

    Bytes overlong = good;  // token 1 in two bytes instead of one
    overlong[tokens_at] = std::byte{0x81};
    overlong.insert(overlong.begin() + tokens_at + 1, std::byte{0});
    refused(sealed(overlong), corrupt, "token 0");
    Bytes endless = good;
    std::memset(endless.data() + tokens_at, 0xff, 8);
    refused(sealed(endless), corrupt, "token 0");

    const size_t stops_at = tokens_at + 1 + 1 + 2 + 2 + 3 + 3 + 4 + 4 + 1;
    refused(with(good, stops_at, 257), Status::LIMIT, "stop tokens");
    refused(with(good, stops_at, 200), corrupt, "stop tokens");
    refused(with(good, stops_at + 4, -7), corrupt, "stop token");
    refused(with(good, stops_at + 12, 65), Status::LIMIT, "stop strings");
    refused(with(good, stops_at + 12, 1), corrupt, "after its last field");
    refused(with(good, stops_at + 16, 4097), Status::LIMIT, "stop string 0");
    refused(with(good, stops_at + 16, 4096), corrupt, "list");
    refused(with(good, stops_at + 16, UINT32_MAX), Status::LIMIT, "stop string 0");
}

TEST_CASE_FIXTURE(Fixture,
                  "damage behind a right checksum never crashes, and what is accepted is one form only") {
    const Bytes good = encode(small());
    std::mt19937 random(11);
    int accepted = 0;
    for (int i = 0; i < 20000; i++) {
        Bytes bytes = good;
        for (auto changes = 1 + random() % 4; changes > 0; changes--)
            bytes[20 + random() % (bytes.size() - 28)] = static_cast<std::byte>(random());
        if (random() % 4 == 0)
            bytes.erase(bytes.begin() + 20 + random() % 100, bytes.end() - 8 - random() % 20);
        bytes = sealed(bytes);
        SessionState state(&memory);
        if (decode_session(bytes, &state, nullptr) != Status::OK) continue;
        accepted++;
        CHECK(encode(state) == bytes);
    }
    CHECK(accepted > 100);
}

TEST_CASE_FIXTURE(Fixture, "what could not be read back is not written") {
    const auto refused = [&](auto change, Status expected) {
        SessionState state = small();
        change(state);
        Bytes bytes(session_bytes(state), std::byte{0x5a});
        CHECK(encode_session(state, bytes, nullptr) == expected);
        CHECK(
            std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0x5a}; }));
    };
    refused([](SessionState& s) { s.tokens.clear(); }, Status::CORRUPT);
    refused([](SessionState& s) { s.tokens[0] = -1; }, Status::CORRUPT);
    refused([](SessionState& s) { s.tokens[0] = limits::vocabulary_max; }, Status::CORRUPT);
    refused([](SessionState& s) { s.prompt_tokens = 0; }, Status::CORRUPT);
    refused([](SessionState& s) { s.sampling.min_p = 1; }, Status::CORRUPT);
    refused([](SessionState& s) { s.finish_reason = 99; }, Status::CORRUPT);
    refused([](SessionState& s) { s.stop_strings.emplace_back(); }, Status::CORRUPT);
    refused([](SessionState& s) { s.stop_strings.emplace_back(4097, 'x'); }, Status::LIMIT);
    refused([](SessionState& s) { s.stop_tokens.resize(257); }, Status::LIMIT);
    refused([](SessionState& s) { s.stop_strings.resize(65, s.stop_strings[0]); }, Status::LIMIT);
    const SessionState state = small();
    Bytes bytes(session_bytes(state) - 1, std::byte{0x5a});
    CHECK(encode_session(state, bytes, nullptr) == Status::BUFFER_TOO_SMALL);
    CHECK(bytes[0] == std::byte{0x5a});
}

TEST_CASE_FIXTURE(Fixture, "a session goes on only with its model and numerics") {
    const SessionState state = small();
    Error error;
    CHECK(check_session(state, state.model_fingerprint, "cpu-1", 4194304, &error) == Status::OK);
    CHECK(check_session(state, 5, "cpu-1", 4194304, &error) == Status::WRONG_MODEL);
    CHECK(std::strstr(error.message, "0123456789abcdef") != nullptr);
    CHECK(std::strstr(error.message, "0000000000000005") != nullptr);
    CHECK(check_session(state, state.model_fingerprint, "cpu-2", 4194304, &error) == Status::WRONG_MODEL);
    CHECK(std::strstr(error.message, "cpu-1") != nullptr);
    CHECK(std::strstr(error.message, "cpu-2") != nullptr);
    CHECK(check_session(state, state.model_fingerprint, "cpu-1", 49152, &error) ==
          Status::TOKEN_OUT_OF_RANGE);
    CHECK(std::strstr(error.message, "2097151") != nullptr);
}

TEST_CASE_FIXTURE(Fixture, "without memory a decoded session changes nothing") {
    const Bytes bytes = encode(small());
    for (int failing = 0;; failing++) {
        SessionState out(&memory);
        out.prompt_tokens = 42;
        allocator.fail_from(failing);
        bool thrown = false;
        Status status = Status::INTERNAL;
        try {
            status = decode_session(bytes, &out, nullptr);
        } catch (const std::bad_alloc&) {
            thrown = true;
        }
        allocator.fail_never();
        CHECK((status == Status::OK) == !thrown);
        if (!thrown) break;
        CHECK(out.prompt_tokens == 42);
        REQUIRE(failing < 20);
    }
    CHECK(memory.bytes_in_use() == 0);
}

TEST_CASE_FIXTURE(Fixture, "sessions are saved and loaded by path") {
    const Folder folder;
    const std::string path = folder.file("chat.session");
    SessionState state = small();
    Error error;
    REQUIRE(save_session_file(path.c_str(), state, &memory, &error) == Status::OK);
    state.tokens.push_back(5);
    REQUIRE(save_session_file(path.c_str(), state, &memory, &error) == Status::OK);
    CHECK(folder.count() == 1);
    SessionState back(&memory);
    REQUIRE(load_session_file(path.c_str(), &memory, &back, &error) == Status::OK);
    check_equal(state, back);

    std::filesystem::resize_file(path, 100);
    CHECK(load_session_file(path.c_str(), &memory, &back, &error) == Status::TRUNCATED);
    CHECK(std::strstr(error.message, path.c_str()) != nullptr);
    std::filesystem::resize_file(path, session_bytes_max + 1);
    CHECK(load_session_file(path.c_str(), &memory, &back, &error) == Status::LIMIT);
    std::filesystem::resize_file(path, 0);
    CHECK(load_session_file(path.c_str(), &memory, &back, &error) == Status::TRUNCATED);
    CHECK(load_session_file(folder.file("none").c_str(), &memory, &back, &error) == Status::NOT_FOUND);
    CHECK(load_session_file(folder.path.c_str(), &memory, &back, &error) == Status::IO);
    check_equal(state, back);
}

TEST_CASE_FIXTURE(Fixture, "replacing a file leaves the old or the new one, and no other") {
    const Folder folder;
    const std::string path = folder.file("file");
    Error error;
    REQUIRE(replace_file(path.c_str(), bytes_of("old"), &memory, &error) == Status::OK);
    struct stat facts;
    REQUIRE(stat(path.c_str(), &facts) == 0);
    CHECK((facts.st_mode & 0777) == 0600);
    REQUIRE(chmod(path.c_str(), 0644) == 0);
    REQUIRE(replace_file(path.c_str(), bytes_of("new and longer"), &memory, &error) == Status::OK);
    CHECK(content(path) == "new and longer");
    REQUIRE(stat(path.c_str(), &facts) == 0);
    CHECK((facts.st_mode & 0777) == 0644);
    CHECK(folder.count() == 1);

    // A temporary file that an earlier process of this number left is not written to.
    const std::string left = path + "." + std::to_string(getpid()) + ".0.tmp";
    std::ofstream(left) << "theirs";
    REQUIRE(replace_file(path.c_str(), bytes_of("third"), &memory, &error) == Status::OK);
    CHECK(content(path) == "third");
    CHECK(content(left) == "theirs");
    std::filesystem::remove(left);

    // The disk is full, as far as this process can tell.
    rlimit before;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small_files{1000, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small_files) == 0);
    const Status status = replace_file(path.c_str(), bytes_of(std::string(5000, 'x')), &memory, &error);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    std::signal(SIGXFSZ, handler);
    CHECK(status == Status::IO);
    CHECK(std::strstr(error.message, path.c_str()) != nullptr);
    CHECK(content(path) == "third");
    CHECK(folder.count() == 1);

    CHECK(replace_file(folder.file("none/file").c_str(), bytes_of("x"), &memory, &error) ==
          Status::NOT_FOUND);
    CHECK(replace_file(folder.file("file/file").c_str(), bytes_of("x"), &memory, &error) ==
          Status::NOT_FOUND);
    CHECK(replace_file(folder.path.c_str(), bytes_of("x"), &memory, &error) == Status::IO);
    CHECK(replace_file("", bytes_of("x"), &memory, &error) == Status::INVALID_ARGUMENT);
    CHECK(replace_file(folder.file("file/").c_str(), bytes_of("x"), &memory, &error) ==
          Status::INVALID_ARGUMENT);
    CHECK(content(path) == "third");
    CHECK(folder.count() == 1);
    REQUIRE(replace_file(path.c_str(), {}, &memory, &error) == Status::OK);
    CHECK(content(path).empty());
    CHECK(memory.bytes_in_use() == 0);
}
