// Defaults for the seams of base/hooks.h on this operating system: a monotonic clock and a file reader. The only files of the
// library that talk to the operating system are platform.cpp and the thread pool.
#pragma once

#include "base/hooks.h"
#include "base/memory.h"

namespace treadle {

ClockHook system_clock();

// Cores that this process may run on; at least 1.
int32_t core_count();
void sleep_ns(int64_t duration);

// Whole pages of the system's memory, for whom the caller remembers the size. Null: there are none.
void* allocate_pages(size_t size);
void free_pages(void* pages, size_t size);

// Puts what lies in pages on the system's large pages where it has them to give: now, or when it finds the time. Others may
// read it meanwhile. Only whole large pages can be merged: pieces that end at multiples of them lose nothing.
constexpr size_t large_page_bytes = size_t{2} << 20;
void merge_pages(void* pages, size_t size, bool now);

// Opens a regular file for reading. NOT_FOUND, IO (a directory, no permission, a device) name the path.
[[nodiscard]] Status open_file(const char* path, Memory* memory, Owned<FileReader>* out, Error* error);

// A reader over bytes that the caller keeps alive.
Owned<FileReader> open_memory(const void* bytes, uint64_t size, Memory* memory);

}  // namespace treadle
