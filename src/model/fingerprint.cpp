// XXH3 behind Fingerprint. Its header is compiled into this file alone and exports nothing.
#include "model/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace treadle {

struct Fingerprint::State {
    XXH3_state_t xxh3;  // aligned to 64 bytes by its type
};

Fingerprint::Fingerprint(std::pmr::memory_resource* memory) : state_(make_owned<State>(memory)) {
    XXH3_64bits_reset(&state_->xxh3);
}

Fingerprint::~Fingerprint() = default;

void Fingerprint::update(const void* bytes, size_t size) { XXH3_64bits_update(&state_->xxh3, bytes, size); }

uint64_t Fingerprint::value() const { return XXH3_64bits_digest(&state_->xxh3); }

}  // namespace treadle
