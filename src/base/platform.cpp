// POSIX bodies of the default seams.
#include "base/platform.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace treadle {
namespace {

int64_t monotonic_ns(void*) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

Status past_end(Error* error, uint64_t offset, size_t size, uint64_t file_size) {
    return fail(error, Status::TRUNCATED,
                "the file ends at byte %llu, but %zu bytes are needed from byte %llu",
                static_cast<unsigned long long>(file_size), size, static_cast<unsigned long long>(offset));
}

class PosixFile final : public FileReader {
public:
    PosixFile(int descriptor, uint64_t size) : descriptor_(descriptor), size_(size) {}
    ~PosixFile() override { close(descriptor_); }
    uint64_t size() const override { return size_; }
    bool is_shareable() const override { return true; }

    Status read(uint64_t offset, void* destination, size_t size, Error* error) override {
        if (offset > size_ || size > size_ - offset) return past_end(error, offset, size, size_);
        auto* bytes = static_cast<char*>(destination);
        while (size > 0) {
            const ssize_t got = pread(descriptor_, bytes, size, static_cast<off_t>(offset));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0)
                return fail(error, Status::IO, "reading at byte %llu failed: error %d",
                            static_cast<unsigned long long>(offset), errno);
            if (got == 0) return past_end(error, offset, size, offset);  // it shrank while it was open
            bytes += got;
            offset += static_cast<uint64_t>(got);
            size -= static_cast<size_t>(got);
        }
        return Status::OK;
    }

private:
    int descriptor_;
    uint64_t size_;
};

class MemoryFile final : public FileReader {
public:
    MemoryFile(const void* bytes, uint64_t size) : bytes_(static_cast<const char*>(bytes)), size_(size) {}
    uint64_t size() const override { return size_; }
    bool is_shareable() const override { return true; }
    Status read(uint64_t offset, void* destination, size_t size, Error* error) override {
        if (offset > size_ || size > size_ - offset) return past_end(error, offset, size, size_);
        if (size > 0) std::memcpy(destination, bytes_ + offset, size);
        return Status::OK;
    }

private:
    const char* bytes_;
    uint64_t size_;
};

}  // namespace

void* allocate_pages(size_t size) {
    void* pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? nullptr : pages;
}

void free_pages(void* pages, size_t size) { munmap(pages, size); }

// Wishes; where they aren't granted nothing is lost.
void merge_pages(void* pages, size_t size, bool now) {
    constexpr int collapse = 25;  // MADV_COLLAPSE, since Linux 6.1
    if (madvise(pages, size, MADV_HUGEPAGE) == 0 && now) madvise(pages, size, collapse);
}

void sleep_ns(int64_t duration) {
    constexpr int64_t second = 1'000'000'000;
    const timespec of{static_cast<time_t>(duration / second), static_cast<long>(duration % second)};
    nanosleep(&of, nullptr);
}

ClockHook system_clock() { return {nullptr, monotonic_ns}; }

int32_t core_count() {
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) > 0) return CPU_COUNT(&cores);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? static_cast<int32_t>(online) : 1;
}

Status open_file(const char* path, Memory* memory, Owned<FileReader>* out, Error* error) {
    const int descriptor =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // non-blocking: a FIFO must not hang the host
    if (descriptor < 0) {
        const Status status = errno == ENOENT || errno == ENOTDIR ? Status::NOT_FOUND : Status::IO;
        return fail(error, status, "%s: cannot be opened: error %d", path, errno);
    }
    struct stat facts;
    if (fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        const bool directory = S_ISDIR(facts.st_mode);
        close(descriptor);
        return fail(error, Status::IO, "%s: is %s, not a regular file", path,
                    directory ? "a directory" : "something else");
    }
    try {
        *out = make_owned<PosixFile>(memory, descriptor, static_cast<uint64_t>(facts.st_size));
    } catch (...) {
        close(descriptor);
        throw;
    }
    return Status::OK;
}

Owned<FileReader> open_memory(const void* bytes, uint64_t size, Memory* memory) {
    return make_owned<MemoryFile>(memory, bytes, size);
}

}  // namespace treadle
