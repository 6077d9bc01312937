// The formats of the cache and the scores of their keys, written out literally from the numerics contract (rule 5) and the
// definition of the formats: plain loops over single values, for tests to compare with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/kernels.h"

namespace treadle::test {

// One key or value of one head. value[d] = scale of its group · code[d]; f16 has scales of 1.
struct StoredVector {
    std::vector<float> codes;   // (head_dim) integers, or f16 values; 0 where a dimension is kept apart
    std::vector<float> scales;  // one per group
    std::vector<float> kept;    // (kept) integers
    float kept_scale = 0;
    bool operator==(const StoredVector& other) const;  // by bits, all NaNs being equal
};

// What the format makes of x (head_dim).
StoredVector literal_quantize(const KvFormat& format, const float* x, std::span<const uint16_t> kept_dims);

// What lies in a slot.
StoredVector stored_key(const cpu::LayerCache& cache, int32_t slot, int32_t head);
StoredVector stored_value(const cpu::LayerCache& cache, int32_t slot, int32_t head);

// y = H · D · x for one group, in place: signs, butterflies.
void literal_rotate(float* x, int32_t n);

// A query, prepared once, and its scores.
class LiteralQuery {
public:
    LiteralQuery(const KvFormat& keys, const float* query, std::span<const uint16_t> kept_dims);
    float score(const StoredVector& key) const;

private:
    KvFormat format_;
    std::vector<float> q_;  // f32, or integers
    std::vector<float> scales_;
    std::vector<float> kept_;
    float kept_scale_ = 0;
};

}  // namespace treadle::test
