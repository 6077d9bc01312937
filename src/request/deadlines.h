// Requests that have a deadline, the nearest first. Intake asks for those that are over; whoever frees a request removes it here
// first.
//
// Invariant: a binary heap of fixed capacity, in which each request knows its place: removal anywhere is O(log n).
#pragma once

#include <cstdint>

#include "base/memory.h"
#include "request/request.h"

namespace treadle {

class Deadlines {
public:
    Deadlines(Memory* memory, int32_t capacity) : heap_(memory, static_cast<size_t>(capacity)) {}

    void add(Request* request);     // its deadline_ns is set
    void remove(Request* request);  // harmless if it isn't here
    Request* nearest() const { return size_ == 0 ? nullptr : heap_[0]; }

private:
    void place(Request* request, int32_t at);
    void rise(Request* request, int32_t from);
    void sink(Request* request, int32_t from);

    AlignedArray<Request*> heap_;
    int32_t size_ = 0;
};

}  // namespace treadle
