// What tests allocate from: counted hooks over malloc that can be told to fail at the nth call. Freed memory is overwritten, so
// that its use shows without a sanitizer too.
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "base/memory.h"

namespace treadle::test {

class TestAllocator {
public:
    // The nth allocation from now on fails, counted from 0, and all after it until fail_never().
    void fail_from(int64_t allocation) { left_ = allocation; }
    void fail_never() { left_ = INT64_MAX; }
    int64_t live() const { return live_; }
    int64_t calls() const { return calls_; }

    AllocatorHooks hooks() {
        return {this,
                [](void* user, size_t size, size_t alignment, int32_t) -> void* {
                    auto* self = static_cast<TestAllocator*>(user);
                    self->calls_++;
                    if (self->left_-- <= 0) return nullptr;
                    self->live_++;
                    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
                },
                [](void* user, void* pointer, size_t size, size_t, int32_t) {
                    static_cast<TestAllocator*>(user)->live_--;
                    std::memset(pointer, 0xdd, size);
                    std::free(pointer);
                }};
    }

private:
    std::atomic<int64_t> left_{INT64_MAX};
    std::atomic<int64_t> live_{0};
    std::atomic<int64_t> calls_{0};
};

}  // namespace treadle::test
