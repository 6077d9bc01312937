// A 64-bit name for the content of a model file, so that a saved session finds out whether it is given the
// model it was made with. The loader feeds it while it reads.
//
// Invariant: a function of the bytes alone, whatever pieces they came in.
#pragma once

#include <cstddef>
#include <cstdint>

namespace treadle {

class Fingerprint {
public:
    Fingerprint();
    Fingerprint(const Fingerprint&) = delete;
    Fingerprint& operator=(const Fingerprint&) = delete;

    void update(const void* bytes, size_t size);
    uint64_t value() const;

private:
    alignas(64) std::byte state_[576];  // an XXH3 state, whose header stays in fingerprint.cpp
};

}  // namespace treadle
