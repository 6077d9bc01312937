// Defaults for the seams of base/hooks.h on this operating system: a monotonic clock and a file reader. The only files of the
// library that talk to the operating system are platform.cpp and the thread pool.
#pragma once

#include "base/hooks.h"
#include "base/memory.h"

namespace treadle {

ClockHook system_clock();

// Cores that this process may run on; at least 1.
int32_t core_count();

// Whole pages of the system's memory, for whom the caller remembers the size. Null: there are none.
void* allocate_pages(size_t size);
void* allocate_large_pages(size_t size);  // the same, on the system's large pages where it has them to give
void free_pages(void* pages, size_t size);

// Opens a regular file for reading. NOT_FOUND, IO (a directory, no permission, a device) name the path.
[[nodiscard]] Status open_file(const char* path, Memory* memory, Owned<FileReader>* out, Error* error);

// A reader over bytes that the caller keeps alive.
Owned<FileReader> open_memory(const void* bytes, uint64_t size, Memory* memory);

}  // namespace treadle
