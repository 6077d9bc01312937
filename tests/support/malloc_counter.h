// Counts the process's calls of malloc and its kin while a MallocCounter lives. Test programs that link malloc_counter.cpp see
// every call, also those of operator new and of shared libraries.
#pragma once

#include <cstdint>

namespace treadle::test {

bool malloc_counter_works();  // false under sanitizers, which bring their own malloc

class MallocCounter {
public:
    MallocCounter();
    ~MallocCounter();
    MallocCounter(const MallocCounter&) = delete;
    MallocCounter& operator=(const MallocCounter&) = delete;
    int64_t calls() const;
};

}  // namespace treadle::test
