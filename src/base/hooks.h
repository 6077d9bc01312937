// The seams to the host: log, clock, file reader and parallel_for, each a function with its user pointer. The api layer fills
// them from the host's parameters or with the defaults of base/platform.h; tests inject their own.
//
// Invariant: no lock of the library is held while one of them runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace treadle {

enum class LogLevel : int32_t { debug = 0, info = 1, warning = 2, error = 3 };

struct LogHook {
    void* user = nullptr;
    void (*write)(void* user, int32_t level, const char* message) = nullptr;  // null: no log
};

__attribute__((format(printf, 3, 4))) void log_line(const LogHook& log, LogLevel level, const char* format,
                                                    ...);

struct ClockHook {
    void* user = nullptr;
    int64_t (*now_ns)(void* user) = nullptr;  // monotonic
    int64_t now() const { return now_ns(user); }
};

// Random access to a model file. read fills `size` bytes from `offset` or returns a status; size() is fixed while it is open.
class FileReader {
public:
    virtual ~FileReader() = default;
    virtual uint64_t size() const = 0;
    [[nodiscard]] virtual Status read(uint64_t offset, void* destination, size_t size, Error* error) = 0;
    virtual bool is_shareable() const { return false; }  // read may be called by several threads at once
};

// Asked between pieces of long work; returns false to stop. done and total are in bytes of the file.
struct ProgressHook {
    void* user = nullptr;
    bool (*report)(void* user, uint64_t done, uint64_t total) = nullptr;  // null: never asked
    bool go_on(uint64_t done, uint64_t total) const { return report == nullptr || report(user, done, total); }
};

// Runs body(context, index) for index 0 .. count-1, in any order, on any threads, perhaps one after another on the caller.
struct ParallelForHook {
    void* user = nullptr;
    void (*run)(void* user, void (*body)(void* context, int32_t index), void* context,
                int32_t count) = nullptr;
};

}  // namespace treadle
