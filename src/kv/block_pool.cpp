// The pool's few counters. Its callers keep the order reserve, acquire, release; consistent() finds out if they don't.
#include "kv/block_pool.h"

namespace treadle {

BlockPool::BlockPool(Memory* memory, int32_t blocks)
    : references_(memory, static_cast<size_t>(blocks)), free_list_(memory, static_cast<size_t>(blocks)),
      free_count_(blocks) {
    for (int32_t i = 0; i < blocks; i++) {
        references_[static_cast<size_t>(i)] = 0;
        free_list_[static_cast<size_t>(i)] = blocks - 1 - i;  // block 0 is on top
    }
}

bool BlockPool::reserve(int32_t blocks) {
    if (blocks > available()) return false;
    reserved_ += blocks;
    return true;
}

void BlockPool::forfeit(int32_t blocks) { reserved_ -= blocks; }

int32_t BlockPool::acquire() {
    reserved_--;
    const int32_t block = free_list_[static_cast<size_t>(--free_count_)];
    references_[static_cast<size_t>(block)] = 1;
    return block;
}

void BlockPool::add_reference(int32_t block) { references_[static_cast<size_t>(block)]++; }

void BlockPool::release(int32_t block) {
    if (--references_[static_cast<size_t>(block)] == 0)
        free_list_[static_cast<size_t>(free_count_++)] = block;
}

bool BlockPool::consistent() const {
    int32_t held = 0;
    for (const int32_t count : references_) {
        if (count < 0) return false;
        if (count > 0) held++;
    }
    for (int32_t i = 0; i < free_count_; i++)
        if (references(free_list_[static_cast<size_t>(i)]) != 0) return false;
    return held + free_count_ == total() && reserved_ >= 0 && reserved_ <= free_count_;
}

}  // namespace treadle
