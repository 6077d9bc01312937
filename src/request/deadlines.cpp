// The heap of deadlines.
#include "request/deadlines.h"

namespace treadle {

void Deadlines::place(Request* request, int32_t at) {
    heap_[static_cast<size_t>(at)] = request;
    request->deadline_place = at;
}

void Deadlines::rise(Request* request, int32_t from) {
    for (int32_t above = (from - 1) / 2; from > 0; from = above, above = (from - 1) / 2) {
        Request* other = heap_[static_cast<size_t>(above)];
        if (other->deadline_ns <= request->deadline_ns) break;
        place(other, from);
    }
    place(request, from);
}

void Deadlines::sink(Request* request, int32_t from) {
    for (int32_t below = 2 * from + 1; below < size_; from = below, below = 2 * from + 1) {
        if (below + 1 < size_ && heap_[static_cast<size_t>(below) + 1]->deadline_ns <
                                     heap_[static_cast<size_t>(below)]->deadline_ns)
            below++;
        Request* other = heap_[static_cast<size_t>(below)];
        if (other->deadline_ns >= request->deadline_ns) break;
        place(other, from);
    }
    place(request, from);
}

void Deadlines::add(Request* request) { rise(request, size_++); }

void Deadlines::remove(Request* request) {
    const int32_t hole = request->deadline_place;
    if (hole < 0) return;
    request->deadline_place = -1;
    Request* last = heap_[static_cast<size_t>(--size_)];
    if (last == request) return;
    place(last, hole);
    rise(last, hole);
    sink(last, last->deadline_place);
}

}  // namespace treadle
