// Promise: whatever the bytes are, decode_session gives a status with words, within memory proportional to them, and leaves its
// output alone unless it is OK; what it accepts encodes to the same bytes again.
//
// The input is tried as it is, and as the fields of a session with a header and a right checksum around them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/session.h"
#include "model/fingerprint.h"
#include "test_memory.h"

using namespace treadle;

namespace {

using Bytes = std::vector<std::byte>;

void require(bool condition) {
    if (!condition) std::abort();
}

void check(const Bytes& bytes) {
    test::TestAllocator allocator;
    Memory memory(allocator.hooks(), MemoryKind::other);
    {
        SessionState state(&memory);
        state.delivered_bytes = 42;
        Error error;
        const Status status = decode_session(bytes, &state, &error);
        require(memory.bytes_peak() <= (16 << 10) + 8 * bytes.size());
        if (status != Status::OK) {
            require(error.status == status && error.message[0] != 0);
            require(state.delivered_bytes == 42 && state.tokens.empty());
        } else {
            Bytes again(session_bytes(state));
            require(encode_session(state, again, &error) == Status::OK);
            require(again == bytes);
        }
    }
    require(memory.bytes_in_use() == 0);
}

template <class T>
void put(Bytes* bytes, T value) {
    const size_t at = bytes->size();
    bytes->resize(at + sizeof value);
    std::memcpy(bytes->data() + at, &value, sizeof value);
}

// A session that is accepted, up to a place that the input's first byte chooses, then the input's other bytes.
Bytes framed(const std::byte* input, size_t size) {
    test::TestAllocator allocator;
    Memory memory(allocator.hooks(), MemoryKind::other);
    SessionState state(&memory);
    state.tokens = {1, 300};
    state.stop_tokens = {2};
    state.stop_strings.emplace_back("stop");
    Bytes bytes(session_bytes(state));
    require(encode_session(state, bytes, nullptr) == Status::OK);
    const size_t kept = 20 + std::to_integer<size_t>(input[0]) % (bytes.size() - 28);
    bytes.resize(kept);
    bytes.insert(bytes.end(), input + 1, input + size);
    const uint64_t total_bytes = bytes.size() + 8;
    std::memcpy(bytes.data() + 12, &total_bytes, sizeof total_bytes);
    Fingerprint sum;
    sum.update(bytes.data(), bytes.size());
    put(&bytes, sum.value());
    return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto* input = reinterpret_cast<const std::byte*>(data);
    check(Bytes(input, input + size));
    if (size > 0) check(framed(input, size));
    return 0;
}
