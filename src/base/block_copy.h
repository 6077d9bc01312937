// A block of the KV cache that a pass copies before it writes anything: the cache asks for it (kv), the plan and the pass's input
// hand it on, the backend obeys. It stands here because neither side may know the other.
#pragma once

#include <cstdint>

namespace treadle {

struct BlockCopy {
    int32_t from;
    int32_t to;
};

}  // namespace treadle
