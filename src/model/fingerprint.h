// A 64-bit name for the content of a model file, so that a saved session finds out whether it is given the
// model it was made with. The loader feeds it while it reads.
//
// Invariant: a function of the bytes alone, whatever pieces they came in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory.h"

namespace treadle {

class Fingerprint {
public:
    explicit Fingerprint(std::pmr::memory_resource* memory);
    ~Fingerprint();
    Fingerprint(const Fingerprint&) = delete;
    Fingerprint& operator=(const Fingerprint&) = delete;

    void update(const void* bytes, size_t size);
    uint64_t value() const;

private:
    struct State;
    Owned<State> state_;
};

}  // namespace treadle
