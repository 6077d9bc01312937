// Opens bytes as a GGUF file over a counting Memory, for the reader's tests. The bytes are copied to a block of their
// exact size, so that a sanitizer sees a read beyond them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/platform.h"
#include "gguf/reader.h"
#include "gguf_writer.h"

namespace treadle::test {

inline AllocatorHooks plain_allocator() {
    AllocatorHooks hooks;
    hooks.alloc = [](void*, size_t size, size_t alignment, int32_t) {
        return ::operator new(size, std::align_val_t(alignment), std::nothrow);
    };
    hooks.free = [](void*, void* pointer, size_t, size_t alignment, int32_t) {
        ::operator delete(pointer, std::align_val_t(alignment));
    };
    return hooks;
}

struct OpenedGguf {
    // `memory_out`, if given, learns of the Memory before the siblings are opened.
    explicit OpenedGguf(const Bytes& bytes, const SiblingHook& siblings = {}, Memory** memory_out = nullptr)
        : copy(new char[bytes.size()]) {
        if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
        if (memory_out != nullptr) *memory_out = &memory;
        reader = open_memory(copy.get(), bytes.size(), &memory);
        status = read_gguf(*reader, siblings, &memory, &file, &error);
    }
    Memory memory{plain_allocator(), MemoryKind::other};
    std::unique_ptr<char[]> copy;
    Owned<FileReader> reader;
    Owned<GgufFile> file;
    Error error;
    Status status = Status::OK;
};

}  // namespace treadle::test
