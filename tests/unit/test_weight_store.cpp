// What happens to weights once they are all there: their pages are merged, piece after piece, each once.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "base/platform.h"
#include "cpu/weight_store.h"

namespace treadle::cpu {
namespace {

// Counts the bytes it is told of; the pieces must follow one another and end at large pages, or where the memory ends.
struct Settled {
    std::atomic<size_t> bytes{0};
    std::atomic<bool> in_order{true};
    const uint8_t* next = nullptr;
    const uint8_t* end = nullptr;

    AllocatorHooks hooks() {
        return {this,
                [](void*, size_t size, size_t alignment, int32_t) {
                    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
                },
                [](void*, void* pointer, size_t, size_t, int32_t) { std::free(pointer); },
                [](void* self, void* pointer, size_t size, int32_t kind, bool now) {
                    static_cast<Settled*>(self)->take(static_cast<uint8_t*>(pointer), size, kind, now);
                }};
    }

    void take(const uint8_t* from, size_t size, int32_t kind, bool now) {
        const uint8_t* to = from + size;
        const bool whole = to == end || reinterpret_cast<uintptr_t>(to) % large_page_bytes == 0;
        if (!now || kind != static_cast<int32_t>(MemoryKind::weights) || from != next || !whole)
            in_order = false;
        next = to;
        bytes += size;
    }
};

}  // namespace

TEST_CASE("pages of weights are merged piece by piece, to the end") {
    constexpr size_t size = 3 * large_page_bytes + 100;
    Settled settled;
    Memory weights(settled.hooks(), MemoryKind::weights);
    std::array slabs = {AlignedArray<uint8_t>(&weights, size)};
    settled.next = slabs[0].data();
    settled.end = slabs[0].data() + size;
    {
        const PageMerger merger(weights, slabs, &weights);
        while (settled.bytes < size) std::this_thread::yield();
    }
    CHECK(settled.bytes == size);
    CHECK(settled.in_order);

    settled.bytes = 0;  // and who goes at once waits for no more than one of them
    settled.next = slabs[0].data();
    { const PageMerger merger(weights, slabs, &weights); }
    CHECK(settled.bytes < size);
    CHECK(settled.in_order);
}

}  // namespace treadle::cpu
