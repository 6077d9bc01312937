// One layer of a paged cache in memory of its own, all blocks in one slab, for tests and benches of the kernels that write and
// read it.
#pragma once

#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/kernels.h"

namespace treadle::test {

class KvTestCache {
public:
    KvTestCache() = default;
    KvTestCache(int32_t kv_heads, int32_t head_dim, int32_t blocks, KvType keys = KvType::f16,
                KvType values = KvType::f16)
        : keys_(cpu::kv_layout({keys, head_dim}, kv_heads)),
          values_(cpu::kv_layout({values, head_dim}, kv_heads)),
          key_lines_(keys_.block_bytes / 64 * static_cast<size_t>(blocks)),
          value_lines_(values_.block_bytes / 64 * static_cast<size_t>(blocks)),
          kept_dims_(static_cast<size_t>(kv_heads * keys_.kept)) {
        for (size_t i = 0; i < kept_dims_.size(); i++) {  // other ones for each head
            const auto kept = static_cast<size_t>(keys_.kept);
            kept_dims_[i] = static_cast<uint16_t>(i % kept * 7 + i / kept % 2 * 3 + i % 2);
        }
        fill(0x7e01);
    }

    // Every byte, as halves; 0x7e01 is a NaN.
    void fill(uint16_t half) {
        for (std::vector<Line>* lines : {&key_lines_, &value_lines_})
            for (Line& line : *lines)
                for (uint16_t& to : line.halves) to = half;
    }

    cpu::LayerCache layer() {
        planes_ = {bytes_of(key_lines_), bytes_of(value_lines_)};
        return {keys_, values_, &planes_.first, &planes_.second, 24, kept_dims_.data()};
    }

    // Where f16 keys and values lie.
    uint16_t& key(int32_t slot, int32_t head, int32_t d) {
        return half(layer().key_block(slot / 16), keys_, head, d * 16 + slot % 16);
    }
    uint16_t& value(int32_t slot, int32_t head, int32_t d) {
        return half(layer().value_block(slot / 16), values_, head, slot % 16 * values_.format.head_dim + d);
    }

    const std::vector<uint16_t>& kept_dims() const { return kept_dims_; }

    friend bool operator==(const KvTestCache& a, const KvTestCache& b) {
        return a.key_lines_ == b.key_lines_ && a.value_lines_ == b.value_lines_;
    }

private:
    struct alignas(64) Line {
        uint16_t halves[32];
        friend bool operator==(const Line& a, const Line& b) { return std::memcmp(&a, &b, sizeof a) == 0; }
    };
    static uint8_t* bytes_of(std::vector<Line>& lines) { return reinterpret_cast<uint8_t*>(lines.data()); }
    static uint16_t& half(uint8_t* block, const cpu::KvLayout& layout, int32_t head, int32_t index) {
        return reinterpret_cast<uint16_t*>(block + static_cast<size_t>(head) * layout.code_step)[index];
    }

    cpu::KvLayout keys_;
    cpu::KvLayout values_;
    std::vector<Line> key_lines_;
    std::vector<Line> value_lines_;
    std::vector<uint16_t> kept_dims_;
    std::pair<uint8_t*, uint8_t*> planes_;
};

}  // namespace treadle::test
