// One hash for tables and for draws: XXH3 of 64 bits. It is the same number on every machine and for ever.
#pragma once

#include <cstddef>
#include <cstdint>

namespace treadle {

uint64_t hash64(const void* bytes, size_t size, uint64_t seed = 0);

}  // namespace treadle
