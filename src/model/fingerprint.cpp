// XXH3 behind Fingerprint. Its header is compiled into this file alone and exports nothing.
#include "model/fingerprint.h"

#ifndef NDEBUG
#define XXH_NO_INLINE_HINTS 1  // g++ -Og refuses what must be inlined through function pointers
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace treadle {

namespace {

static_assert(sizeof(XXH3_state_t) == 576 && alignof(XXH3_state_t) <= 64);
XXH3_state_t* state_of(std::byte* place) { return reinterpret_cast<XXH3_state_t*>(place); }
const XXH3_state_t* state_of(const std::byte* place) { return reinterpret_cast<const XXH3_state_t*>(place); }

}  // namespace

Fingerprint::Fingerprint() { XXH3_64bits_reset(state_of(state_)); }

void Fingerprint::update(const void* bytes, size_t size) {
    XXH3_64bits_update(state_of(state_), bytes, size);
}

uint64_t Fingerprint::value() const { return XXH3_64bits_digest(state_of(state_)); }

}  // namespace treadle
