// The literal formats of kv_literal.h.
#include "kv_literal.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/exact_fma.h"
#include "base/float16.h"

namespace treadle::test {

namespace {

const float nan_value = std::numeric_limits<float>::quiet_NaN();

bool same(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) { return same(x, y); });
}

float through_f16(float x) { return f32_from_f16(f16_from_f32_saturate(x)); }

// The sum by the tree of strides n / 2 .. 1.
float tree(std::vector<float> leaves) {
    for (size_t stride = leaves.size() / 2; stride > 0; stride /= 2)
        for (size_t i = 0; i < stride; i++) leaves[i] = leaves[i] + leaves[i + stride];
    return leaves[0];
}

// Rule 4 for a group of any size.
std::vector<float> int8_of(std::span<const float> x, float* scale) {
    float largest = 0;
    bool finite = true;
    for (const float value : x) {
        finite &= std::isfinite(value);
        largest = std::max(largest, std::fabs(value));
    }
    std::vector<float> q(x.size(), 0.0f);
    *scale = finite ? 0 : nan_value;
    if (!finite || largest < 0x1p-100f) return q;
    const float factor = 127.0f / largest;
    for (size_t i = 0; i < x.size(); i++) q[i] = std::nearbyint(x[i] * factor) + 0.0f;  // no -0
    *scale = largest / 127.0f;
    return q;
}

uint64_t splitmix64(uint64_t steps) {
    uint64_t x = steps * 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

constexpr int levels[16] = {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127};

std::vector<float> levels_of(std::span<const float> x, float* scale) {
    const auto n = static_cast<int32_t>(x.size());
    std::vector<float> leaves;
    for (const float value : x) leaves.push_back(value * value);
    const float length = std::sqrt(tree(leaves));
    std::vector<float> y(x.begin(), x.end());
    *scale = length == 0 ? 0 : nan_value;
    if (length == 0 || !std::isfinite(length)) return std::vector<float>(x.size(), 6.0f);
    literal_rotate(y.data(), n);
    const double halfway[16] = {-111.5, -85.5, -66.5, -51, -37.5, -24.5, -12,  0,
                                12,     24.5,  37.5,  51,  66.5,  85.5,  111.5};
    std::vector<float> coded, with_u, squares;
    for (const float value : y) {
        const float u = value / length;
        int code = 0;
        for (int k = 0; k < 15; k++) code += static_cast<float>(halfway[k] * 2.7325896 / 127) < u;
        coded.push_back(static_cast<float>(levels[code]));
        with_u.push_back(u * coded.back());
        squares.push_back(coded.back() * coded.back());
    }
    const auto root = static_cast<float>(std::sqrt(static_cast<double>(n)));
    const float product = length * tree(with_u);
    const float ratio = product / tree(squares);
    *scale = through_f16(ratio / root);
    return coded;
}

float half_at(const uint8_t* block, size_t bytes) {
    return f32_from_f16(reinterpret_cast<const uint16_t*>(block + bytes)[0]);
}

}  // namespace

bool StoredVector::operator==(const StoredVector& other) const {
    return same(codes, other.codes) && same(scales, other.scales) && same(kept, other.kept) &&
           same(kept_scale, other.kept_scale);
}

void literal_rotate(float* x, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (splitmix64(static_cast<uint64_t>(i) + 1) >> 63 != 0) x[i] = -x[i];
    for (int32_t stride = n / 2; stride > 0; stride /= 2)
        for (int32_t i = 0; i < n; i++) {
            if ((i & stride) != 0) continue;
            const float a = x[i], b = x[i + stride];
            x[i] = a + b;
            x[i + stride] = a - b;
        }
}

StoredVector literal_quantize(const KvFormat& format, const float* x, std::span<const uint16_t> kept_dims) {
    StoredVector stored;
    std::vector<float> rest(x, x + format.head_dim);
    if (format.type == KvType::f16) {
        for (const float value : rest) stored.codes.push_back(through_f16(value));
        return stored;
    }
    if (format.kept() > 0) {
        std::vector<float> apart;
        for (const uint16_t d : kept_dims) {
            apart.push_back(rest[d]);
            rest[d] = 0;
        }
        stored.kept = int8_of(apart, &stored.kept_scale);
        stored.kept_scale = through_f16(stored.kept_scale);
    }
    for (int32_t g = 0; g < format.groups(); g++) {
        const std::span group(rest.data() + g * format.group(), static_cast<size_t>(format.group()));
        float scale = 0;
        const std::vector<float> codes = format.rotated() ? levels_of(group, &scale) : int8_of(group, &scale);
        stored.codes.insert(stored.codes.end(), codes.begin(), codes.end());
        stored.scales.push_back(through_f16(scale));
    }
    return stored;
}

StoredVector stored_key(const cpu::LayerCache& cache, int32_t slot, int32_t head) {
    const cpu::KvLayout& layout = cache.keys;
    const uint8_t* block = cache.key_block(slot / 16);
    const size_t position = static_cast<size_t>(slot % 16), index = static_cast<size_t>(head);
    const uint8_t* codes = block + index * layout.code_step;
    StoredVector stored;
    for (size_t d = 0; d < static_cast<size_t>(layout.format.head_dim); d++) {
        if (layout.format.type == KvType::f16) {
            stored.codes.push_back(half_at(codes, (d * 16 + position) * 2));
        } else if (layout.format.type == KvType::q8_0) {
            stored.codes.push_back(static_cast<float>(codes[d / 4 * 64 + position * 4 + d % 4] - 128));
        } else {
            const uint8_t byte = codes[d / 32 * 256 + d % 16 / 4 * 64 + position * 4 + d % 4];
            stored.codes.push_back(static_cast<float>(levels[d % 32 < 16 ? byte & 15 : byte >> 4]));
        }
    }
    for (size_t g = 0; g < static_cast<size_t>(layout.groups); g++)
        stored.scales.push_back(
            half_at(block, layout.scales_at + index * layout.scale_step + (g * 16 + position) * 2));
    for (size_t i = 0; i < static_cast<size_t>(layout.kept); i++)
        stored.kept.push_back(static_cast<float>(
            block[layout.kept_at + index * layout.kept_step + i / 4 * 64 + position * 4 + i % 4] - 128));
    if (layout.kept > 0)
        stored.kept_scale = half_at(block, layout.kept_scales_at + (index * 16 + position) * 2);
    return stored;
}

StoredVector stored_value(const cpu::LayerCache& cache, int32_t slot, int32_t head) {
    const cpu::KvLayout& layout = cache.values;
    const uint8_t* block = cache.value_block(slot / 16);
    const size_t position = static_cast<size_t>(slot % 16), index = static_cast<size_t>(head);
    const uint8_t* codes = block + index * layout.code_step + position * (layout.code_step / 16);
    StoredVector stored;
    for (size_t d = 0; d < static_cast<size_t>(layout.format.head_dim); d++) {
        if (layout.format.type == KvType::f16) {
            stored.codes.push_back(half_at(codes, 2 * d));
        } else if (layout.format.type == KvType::q8_0) {
            stored.codes.push_back(static_cast<float>(static_cast<int8_t>(codes[d])));
        } else {
            const uint8_t byte = codes[d / 32 * 16 + d % 16];
            stored.codes.push_back(static_cast<float>(levels[d % 32 < 16 ? byte & 15 : byte >> 4]));
        }
    }
    for (size_t g = 0; g < static_cast<size_t>(layout.groups); g++)
        stored.scales.push_back(
            half_at(block, layout.scales_at + index * layout.scale_step + (g * 16 + position) * 2));
    return stored;
}

LiteralQuery::LiteralQuery(const KvFormat& keys, const float* query, std::span<const uint16_t> kept_dims)
    : format_(keys), q_(query, query + keys.head_dim) {
    if (keys.type == KvType::f16) return;
    if (keys.kept() > 0) {
        std::vector<float> apart;
        for (const uint16_t d : kept_dims) {
            apart.push_back(q_[d]);
            q_[d] = 0;
        }
        kept_ = int8_of(apart, &kept_scale_);
    }
    if (!keys.rotated()) {
        std::vector<float> all;
        for (int32_t g = 0; g < keys.groups(); g++) {
            float scale = 0;
            const std::vector<float> q = int8_of({q_.data() + 32 * g, 32}, &scale);
            all.insert(all.end(), q.begin(), q.end());
            scales_.push_back(scale);
        }
        q_ = all;
        return;
    }
    const auto inverse_root = static_cast<float>(1 / std::sqrt(static_cast<double>(keys.group())));
    for (int32_t g = 0; g < keys.groups(); g++) literal_rotate(q_.data() + g * keys.group(), keys.group());
    for (float& value : q_) value = value * inverse_root;
    float scale = 0;
    q_ = int8_of(q_, &scale);
    scales_.assign(static_cast<size_t>(keys.groups()), scale);
}

float LiteralQuery::score(const StoredVector& key) const {
    float s = 0;
    if (format_.type == KvType::f16) {
        for (size_t d = 0; d < q_.size(); d++) s = exact_fma(q_[d], key.codes[d], s);
        return s;
    }
    const auto group = static_cast<size_t>(format_.group());
    for (size_t g = 0; g < scales_.size(); g++) {
        double dot = 0;  // of integers: exact
        for (size_t d = g * group; d < (g + 1) * group; d++)
            dot += static_cast<double>(q_[d]) * static_cast<double>(key.codes[d]);
        s = exact_fma(static_cast<float>(dot), scales_[g] * key.scales[g], s);
    }
    if (kept_.empty()) return s;
    double dot = 0;
    for (size_t i = 0; i < kept_.size(); i++)
        dot += static_cast<double>(kept_[i]) * static_cast<double>(key.kept[i]);
    return exact_fma(static_cast<float>(dot), kept_scale_ * key.kept_scale, s);
}

}  // namespace treadle::test
