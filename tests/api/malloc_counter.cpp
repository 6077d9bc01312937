// malloc and its kin, counted and passed on to glibc.
#include "support/malloc_counter.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

namespace {

std::atomic<int64_t> counted{0};
std::atomic<bool> counting{false};

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TREADLE_OWN_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TREADLE_OWN_MALLOC 0
#else
#define TREADLE_OWN_MALLOC 1
#endif
#else
#define TREADLE_OWN_MALLOC 1
#endif

#if TREADLE_OWN_MALLOC
#pragma GCC visibility push( \
    default)  // hidden ones would count this program's own calls only, not those of libraries
extern "C" {

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* pointer, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* pointer);

static void count() {
    if (counting.load(std::memory_order_relaxed)) counted.fetch_add(1, std::memory_order_relaxed);
}

void* malloc(size_t size) {
    count();
    return __libc_malloc(size);
}

void* calloc(size_t number, size_t size) {
    count();
    return __libc_calloc(number, size);
}

void* realloc(void* pointer, size_t size) {
    count();
    return __libc_realloc(pointer, size);
}

void* memalign(size_t alignment, size_t size) {
    count();
    return __libc_memalign(alignment, size);
}

void* aligned_alloc(size_t alignment, size_t size) {
    count();
    return __libc_memalign(alignment, size);
}

int posix_memalign(void** out, size_t alignment, size_t size) {
    count();
    *out = __libc_memalign(alignment, size);
    return *out == nullptr ? ENOMEM : 0;
}

void free(void* pointer) { __libc_free(pointer); }
}
#pragma GCC visibility pop
#endif

namespace treadle::test {

bool malloc_counter_works() { return TREADLE_OWN_MALLOC != 0; }

MallocCounter::MallocCounter() {
    counted = 0;
    counting = true;
}

MallocCounter::~MallocCounter() { counting = false; }

int64_t MallocCounter::calls() const { return counted; }

}  // namespace treadle::test
