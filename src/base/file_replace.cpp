// POSIX body of file_replace.h.
#include "base/file_replace.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>

namespace treadle {

namespace {

constexpr mode_t mode_new = 0600;
constexpr mode_t mode_bits = 07777;
constexpr int names_tried = 100;  // temporary names of this process that others may have left

class Descriptor {
public:
    explicit Descriptor(int number) : number_(number) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (number_ >= 0) close(number_);
    }
    int get() const { return number_; }
    bool close_now() {  // true where the system kept what was written
        const int number = number_;
        number_ = -1;
        return close(number) == 0;
    }

private:
    int number_;
};

// Removes a file unless it was kept.
class Temporary {
public:
    explicit Temporary(const char* path) : path_(path) {}
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;
    ~Temporary() {
        if (path_ != nullptr) unlink(path_);
    }
    void keep() { path_ = nullptr; }

private:
    const char* path_;
};

Status io_failed(const char* path, const char* what, Error* error) {
    const int number = errno;
    const Status status = number == ENOENT || number == ENOTDIR ? Status::NOT_FOUND : Status::IO;
    return fail(error, status, "%s: %s: error %d", path, what, number);
}

// Makes a file that didn't exist: PATH.PROCESS.NUMBER.tmp.
Status make_temporary(const char* path, std::pmr::string* name, int* descriptor, Error* error) {
    for (int attempt = 0; attempt < names_tried; attempt++) {
        char ending[48];
        std::snprintf(ending, sizeof ending, ".%ld.%d.tmp", static_cast<long>(getpid()), attempt);
        name->assign(path);
        name->append(ending);
        *descriptor = open(name->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode_new);
        if (*descriptor >= 0) return Status::OK;
        if (errno != EEXIST) break;
    }
    return io_failed(path, "a temporary file beside it cannot be made", error);
}

bool write_all(int descriptor, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t written = write(descriptor, bytes.data(), bytes.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return true;
}

// Some file systems have nothing to sync in a folder, and say so.
bool sync_folder(int descriptor) { return fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP; }

}  // namespace

Status replace_file(const char* path, std::span<const std::byte> bytes, Memory* memory, Error* error) {
    const std::string_view name = path;
    if (name.empty() || name.back() == '/')
        return fail(error, Status::INVALID_ARGUMENT, "the path '%s' names no file", path);
    struct stat old;
    const bool exists = stat(path, &old) == 0;
    if (exists && !S_ISREG(old.st_mode))
        return fail(error, Status::IO, "%s: is %s, not a regular file", path,
                    S_ISDIR(old.st_mode) ? "a directory" : "something else");

    const size_t slash = name.rfind('/');
    std::pmr::string folder_name(memory);
    folder_name = slash == std::string_view::npos ? "." : name.substr(0, slash + 1);
    Descriptor folder(open(folder_name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.get() < 0) return io_failed(path, "its folder cannot be opened", error);

    std::pmr::string temporary_name(memory);
    temporary_name.reserve(name.size() + 48);
    int made = -1;
    TREADLE_TRY(make_temporary(path, &temporary_name, &made, error));
    Temporary temporary(temporary_name.c_str());
    Descriptor file(made);
    if (exists && fchmod(file.get(), old.st_mode & mode_bits) != 0)
        return io_failed(path, "its mode cannot be kept", error);
    if (!write_all(file.get(), bytes)) return io_failed(path, "writing failed", error);
    if (fsync(file.get()) != 0 || !file.close_now())
        return io_failed(path, "writing to the disk failed", error);
    if (std::rename(temporary_name.c_str(), path) != 0) return io_failed(path, "cannot be replaced", error);
    temporary.keep();
    if (!sync_folder(folder.get()))
        return io_failed(path, "is written, but a power failure now might bring the old one back", error);
    return Status::OK;
}

}  // namespace treadle
