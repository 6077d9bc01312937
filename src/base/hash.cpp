// XXH3, compiled into this file alone; it exports nothing.
#include "base/hash.h"

#ifndef NDEBUG
#define XXH_NO_INLINE_HINTS 1  // g++ -Og refuses what must be inlined through function pointers
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace treadle {

uint64_t hash64(const void* bytes, size_t size, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, size, seed);
}

}  // namespace treadle
