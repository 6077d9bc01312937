// The counted way to the host's allocator.
#include "base/memory.h"

namespace treadle {

void* Memory::do_allocate(size_t size, size_t alignment) {
    void* pointer = hooks_.alloc(hooks_.user, size, alignment, static_cast<int32_t>(kind_));
    if (pointer == nullptr) throw std::bad_alloc();
    const size_t now = bytes_in_use_.fetch_add(size, std::memory_order_relaxed) + size;
    size_t peak = bytes_peak_.load(std::memory_order_relaxed);
    while (now > peak && !bytes_peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
    return pointer;
}

void Memory::do_deallocate(void* pointer, size_t size, size_t alignment) {
    bytes_in_use_.fetch_sub(size, std::memory_order_relaxed);
    hooks_.free(hooks_.user, pointer, size, alignment, static_cast<int32_t>(kind_));
}

}  // namespace treadle
