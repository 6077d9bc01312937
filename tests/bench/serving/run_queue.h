// How much of a thread's time the operating system gave to others. The benches of budgets take it off, to tell the engine's own
// lateness from that of a machine that has more to do than cores.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace treadle::bench {

// How long this thread has waited for a core although it wanted to run; Linux counts it in /proc.
class RunQueueWait {
public:
    RunQueueWait() : file_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
    ~RunQueueWait() {
        if (file_ >= 0) close(file_);
    }
    RunQueueWait(const RunQueueWait&) = delete;
    RunQueueWait& operator=(const RunQueueWait&) = delete;

    bool known() const { return file_ >= 0; }
    double seconds() const {
        char text[96] = {};
        if (file_ < 0 || pread(file_, text, sizeof text - 1, 0) <= 0) return 0;
        char* end = nullptr;
        std::strtoull(text, &end, 10);  // the time it ran
        return static_cast<double>(std::strtoull(end, nullptr, 10)) * 1e-9;
    }

private:
    int file_;
};

}  // namespace treadle::bench
