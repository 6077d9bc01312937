// Slabs of the KV cache on their way between the engine and the allocator: engine_trim takes them out of the cache and frees them
// later; a submission allocates those that it wants back and then puts them in.
//
// Invariant: allocating and freeing happen without the engine's table lock, since the allocator may be the host's.
#pragma once

#include <array>
#include <cstdint>
#include <new>
#include <utility>

#include "base/limits.h"
#include "ops/backend.h"

namespace treadle {

class LooseSlabs {
public:
    explicit LooseSlabs(Backend* backend) : backend_(backend) {}
    ~LooseSlabs() {
        for (int32_t slab = 0; slab < limits::kv_slabs_max; slab++)
            if (void* memory = memory_[static_cast<size_t>(slab)]) backend_->kv_free(slab, memory);
    }
    LooseSlabs(const LooseSlabs&) = delete;
    LooseSlabs& operator=(const LooseSlabs&) = delete;

    // Between the cache and here; under the table lock.
    void take_out(int32_t slab) { memory_[static_cast<size_t>(slab)] = backend_->kv_exchange(slab, nullptr); }
    void put_in(int32_t slab) {
        backend_->kv_exchange(slab, std::exchange(memory_[static_cast<size_t>(slab)], nullptr));
    }

    // Which ones a submission wants, and whether their memory is here.
    void want_none() { wanted_ = 0; }
    void want(int32_t slab) { wanted_ |= uint64_t{1} << slab; }
    bool wants(int32_t slab) const { return (wanted_ >> slab & 1) != 0; }
    bool has_all_wanted() const {
        for (int32_t slab = 0; slab < limits::kv_slabs_max; slab++)
            if (wants(slab) && memory_[static_cast<size_t>(slab)] == nullptr) return false;
        return true;
    }

    // Memory for those that are wanted, the first ones first, until there is no more.
    void allocate() {
        try {
            for (int32_t slab = 0; slab < limits::kv_slabs_max; slab++)
                if (wants(slab) && memory_[static_cast<size_t>(slab)] == nullptr)
                    memory_[static_cast<size_t>(slab)] = backend_->kv_allocate(slab);
        } catch (const std::bad_alloc&) {
            short_of_memory_ = true;
        }
    }
    bool short_of_memory() const { return short_of_memory_; }

private:
    Backend* backend_;
    std::array<void*, limits::kv_slabs_max> memory_ = {};
    uint64_t wanted_ = 0;
    bool short_of_memory_ = false;
};

}  // namespace treadle
