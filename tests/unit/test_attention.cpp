// attend (rule 5): each tier equals the rule written out literally, by bytes; a row doesn't depend on the call, the block table
// or unwritten slots; and the rule itself is close to a softmax in double.

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/exact_fma.h"
#include "base/float16.h"
#include "base/float_mode.h"
#include "base/math.h"
#include "cpu/attention.h"
#include "kv_literal.h"
#include "kv_test_cache.h"
#include "tiers.h"

using namespace treadle;
using namespace treadle::cpu;

namespace {

using AttendFunction = decltype(Kernels::attend);

// A sequence of `positions` in a cache whose blocks are shuffled or not; what the sequence doesn't fill is NaN.
struct Case {
    AttentionShape shape;
    int32_t positions;
    test::KvTestCache cache;
    std::vector<int32_t> block_table;
    std::vector<float> queries;  // (positions, heads, head_dim)

    int32_t slot(int32_t position) const { return block_table[position / 16] * 16 + position % 16; }
    uint16_t& key(int32_t position, int32_t kv_head, int32_t d) {
        return cache.key(slot(position), kv_head, d);
    }
    uint16_t& value(int32_t position, int32_t kv_head, int32_t d) {
        return cache.value(slot(position), kv_head, d);
    }
    size_t row_floats() const { return static_cast<size_t>(shape.heads) * shape.head_dim; }
};

struct Pair {
    KvType keys = KvType::f16;
    KvType values = KvType::f16;
};

Case make_case(AttentionShape shape, int32_t positions, bool shuffled, uint32_t seed, Pair pair = {}) {
    Case c{shape, positions, {}, {}, {}};
    const int32_t blocks = (positions + 15) / 16;
    c.block_table.resize(blocks + 3);
    std::iota(c.block_table.begin(), c.block_table.end(), 0);
    std::mt19937 order(99);
    if (shuffled) std::shuffle(c.block_table.begin(), c.block_table.end(), order);
    c.cache = test::KvTestCache(shape.kv_heads, shape.head_dim, blocks + 3, pair.keys, pair.values);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> keys_values(2 * static_cast<size_t>(shape.kv_heads) * shape.head_dim);
    for (int32_t position = 0; position < positions; position++) {
        for (float& value : keys_values) value = normal(random);
        scalar::kernels.write_kv(c.cache.layer(), keys_values.data(),
                                 keys_values.data() + keys_values.size() / 2, c.slot(position));
    }
    c.queries.resize(positions * c.row_floats());
    const float scale = 2.0f / std::sqrt(static_cast<float>(shape.head_dim));
    for (float& q : c.queries) q = scale * normal(random);
    return c;
}

// All KV heads of rows first .. first + rows - 1.
std::vector<float> attend_rows(AttendFunction attend, Case& c, int32_t first, int32_t rows) {
    const FloatMode mode;
    std::vector<float> out(rows * c.row_floats(), -1.0f);
    std::vector<float> scratch(attention_scratch_bytes(c.shape, first + rows) / sizeof(float) + 16,
                               std::numeric_limits<float>::quiet_NaN());
    void* aligned =
        reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~uintptr_t{63});
    for (int32_t head = 0; head < c.shape.kv_heads; head++)
        attend(c.shape, c.cache.layer(), c.block_table.data(), first, rows, head,
               c.queries.data() + first * c.row_floats(), c.row_floats(), out.data(), c.row_floats(),
               aligned);
    return out;
}

// As attend_rows, in pieces that end before the given spans, the last pieces first.
std::vector<float> attend_in_pieces(const Kernels& kernels, Case& c, int32_t first, int32_t rows,
                                    std::vector<int32_t> ends) {
    const FloatMode mode;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> out(rows * c.row_floats(), -1.0f);
    std::vector<float> scratch(attention_scratch_bytes(c.shape, first + rows) / sizeof(float) + 16, nan);
    void* aligned =
        reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~uintptr_t{63});
    ends.insert(ends.begin(), 0);
    const size_t kept = static_cast<size_t>(ends.back() + 15) / 16 * 16;
    const size_t spans = static_cast<size_t>(rows * (c.shape.heads / c.shape.kv_heads)) * kept;
    for (int32_t head = 0; head < c.shape.kv_heads; head++) {
        std::vector<float> maxima(spans, nan),
            values(spans * static_cast<size_t>(c.shape.head_dim + 16), nan);
        const SpanParts parts{maxima.data(), values.data(), kept};
        for (size_t i = ends.size() - 1; i > 0; i--)
            kernels.attend_spans(c.shape, c.cache.layer(), c.block_table.data(), first, rows, head,
                                 c.queries.data() + first * c.row_floats(), c.row_floats(), ends[i - 1],
                                 ends[i], parts, aligned);
        kernels.merge_spans(c.shape, c.cache.layer(), first, rows, head, parts, out.data(), c.row_floats(),
                            aligned);
    }
    return out;
}

bool same(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) { return same(x, y); });
}

std::vector<float> row_of(const std::vector<float>& all, const Case& c, int32_t row) {
    return {all.begin() + row * c.row_floats(), all.begin() + (row + 1) * c.row_floats()};
}

std::vector<double> reference_row(Case& c, int32_t position) {
    std::vector<double> out(c.row_floats());
    const int32_t heads_per_kv = c.shape.heads / c.shape.kv_heads;
    std::vector<double> scores(position + 1);
    for (int32_t head = 0; head < c.shape.heads; head++) {
        const int32_t kv_head = head / heads_per_kv;
        const float* q = &c.queries[position * c.row_floats() + head * c.shape.head_dim];
        for (int32_t j = 0; j <= position; j++) {
            scores[j] = 0;
            for (int32_t d = 0; d < c.shape.head_dim; d++)
                scores[j] += static_cast<double>(q[d]) * f32_from_f16(c.key(j, kv_head, d));
        }
        const double most = *std::max_element(scores.begin(), scores.end());
        double total = 0;
        for (int32_t j = 0; j <= position; j++) {
            const double p = std::exp2(scores[j] - most);
            total += p;
            for (int32_t d = 0; d < c.shape.head_dim; d++)
                out[head * c.shape.head_dim + d] += p * f32_from_f16(c.value(j, kv_head, d));
        }
        for (int32_t d = 0; d < c.shape.head_dim; d++) out[head * c.shape.head_dim + d] /= total;
    }
    return out;
}

struct Part {
    float maximum = -std::numeric_limits<float>::infinity();
    float sum = 0;
    std::vector<float> output;
};

Part merge(const std::vector<Part>& parts) {
    Part merged;
    merged.output.assign(parts[0].output.size(), 0.0f);
    for (const Part& part : parts)
        merged.maximum = part.maximum > merged.maximum ? part.maximum : merged.maximum;
    for (const Part& part : parts) {
        const float weight = math::exp2(part.maximum - merged.maximum);
        merged.sum = exact_fma(weight, part.sum, merged.sum);
        for (size_t d = 0; d < part.output.size(); d++)
            merged.output[d] = exact_fma(weight, part.output[d], merged.output[d]);
    }
    return merged;
}

// Positions begin .. end - 1 of a span for one query.
Part span_part(Case& c, const test::LiteralQuery& query, int32_t kv_head, int32_t begin, int32_t end) {
    Part part;
    std::vector<float> p;
    const LayerCache layer = c.cache.layer();
    for (int32_t j = begin; j < end; j++) {
        p.push_back(query.score(test::stored_key(layer, c.slot(j), kv_head)));
        part.maximum = p.back() > part.maximum ? p.back() : part.maximum;
    }
    float lanes[16] = {};
    part.output.assign(c.shape.head_dim, 0.0f);
    const int32_t group = layer.values.group;
    for (int32_t j = begin; j < end; j++) {
        const float weight = p[j - begin] = math::exp2(p[j - begin] - part.maximum);
        lanes[j % 16] += weight;
        const test::StoredVector value = test::stored_value(layer, c.slot(j), kv_head);
        for (size_t d = 0; d < part.output.size(); d++)
            part.output[d] = exact_fma(group == 0 ? weight : weight * value.scales[d / group], value.codes[d],
                                       part.output[d]);
    }
    for (int stride = 8; stride > 0; stride /= 2)
        for (int lane = 0; lane < stride; lane++) lanes[lane] += lanes[lane + stride];
    part.sum = lanes[0];
    return part;
}

// Values that were rotated: butterflies, 1 / √n, signs.
void rotate_back(std::vector<float>& x, int32_t n) {
    for (size_t first = 0; first < x.size(); first += n) {
        for (int32_t stride = n / 2; stride > 0; stride /= 2)
            for (int32_t i = 0; i < n; i++) {
                if ((i & stride) != 0) continue;
                const float a = x[first + i], b = x[first + i + stride];
                x[first + i] = a + b;
                x[first + i + stride] = a - b;
            }
        for (int32_t i = 0; i < n; i++) {
            x[first + i] *= static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
            if (tbq_signs[i] != 0) x[first + i] = -x[first + i];
        }
    }
}

// The rule, word by word.
std::vector<float> literal_row(Case& c, int32_t position) {
    const FloatMode mode;
    std::vector<float> out;
    for (int32_t head = 0; head < c.shape.heads; head++) {
        const int32_t kv_head = head / (c.shape.heads / c.shape.kv_heads);
        const KvLayout& keys = c.cache.layer().keys;
        const std::span kept = std::span(c.cache.kept_dims()).subspan(kv_head * keys.kept, keys.kept);
        const test::LiteralQuery q(keys.format,
                                   &c.queries[position * c.row_floats() + head * c.shape.head_dim], kept);
        std::vector<Part> groups;
        for (int32_t group = 0; group <= position; group += 4096) {
            std::vector<Part> spans;
            for (int32_t begin = group; begin <= position && begin < group + 4096; begin += 256)
                spans.push_back(span_part(c, q, kv_head, begin, std::min(begin + 256, position + 1)));
            groups.push_back(merge(spans));
        }
        const Part all = merge(groups);
        std::vector<float> divided;
        for (const float value : all.output) divided.push_back(value / all.sum);
        const KvLayout& values = c.cache.layer().values;
        if (values.format.rotated()) rotate_back(divided, values.group);
        out.insert(out.end(), divided.begin(), divided.end());
    }
    return out;
}

std::vector<AttendFunction> tiers() {
    std::vector<AttendFunction> all;
    for (const Kernels* kernels : test::runnable_kernels()) all.push_back(kernels->attend);
    return all;
}

}  // namespace

TEST_CASE("attention: close to a softmax in double") {
    for (const AttentionShape shape :
         {AttentionShape{9, 3, 64}, AttentionShape{4, 4, 16}, AttentionShape{4, 1, 256}}) {
        Case c = make_case(shape, 1100, true, 5);
        double worst = 0;
        for (const int32_t position : {0, 1, 15, 16, 17, 255, 256, 257, 511, 1000, 1099}) {
            const std::vector<float> got = attend_rows(scalar::kernels.attend, c, position, 1);
            const std::vector<double> want = reference_row(c, position);
            for (size_t i = 0; i < want.size(); i++) worst = std::max(worst, std::abs(got[i] - want[i]));
        }
        MESSAGE("head_dim " << shape.head_dim << ": error " << worst);
        CHECK(worst < 1e-5);
    }
}

TEST_CASE("attention: every tier is the rule, by bytes") {
    const AttentionShape shapes[] = {{9, 3, 64}, {1, 1, 16},  {12, 1, 32},
                                     {8, 8, 48}, {10, 2, 80}, {4, 1, 256}};
    for (const AttentionShape shape : shapes) {
        Case c = make_case(shape, 530, true, 7);
        for (const int32_t position : {0, 3, 15, 16, 254, 255, 256, 300, 520, 529}) {
            const std::vector<float> want = literal_row(c, position);
            for (const AttendFunction attend : tiers())
                CHECK(same(attend_rows(attend, c, position, 1), want));
        }
    }
}

TEST_CASE("attention: several groups of spans") {
    Case c = make_case({2, 1, 16}, 9000, true, 8);
    for (const int32_t position : {4094, 4095, 4096, 4351, 4352, 8191, 8192, 8999}) {
        const std::vector<float> want = literal_row(c, position);
        for (const AttendFunction attend : tiers()) CHECK(same(attend_rows(attend, c, position, 1), want));
    }
    for (const AttendFunction attend : tiers()) {
        for (const int32_t first : {4090, 4092, 8186, 8992}) {
            const std::vector<float> chunk = attend_rows(attend, c, first, 8);
            for (int32_t row = 0; row < 8; row++)
                CHECK(same(row_of(chunk, c, row), attend_rows(attend, c, first + row, 1)));
        }
    }
}

TEST_CASE("attention: a row does not depend on the rows of its call") {
    for (int32_t heads_per_kv = 1; heads_per_kv <= 12; heads_per_kv++) {
        const int32_t kv_heads = 1 + heads_per_kv % 3;
        Case c =
            make_case({kv_heads * heads_per_kv, kv_heads, heads_per_kv % 2 == 0 ? 16 : 48}, 300, true, 9);
        const AttendFunction attend = tiers().back();
        std::vector<std::vector<float>> alone;
        for (int32_t position = 0; position < 300; position++)
            alone.push_back(attend_rows(attend, c, position, 1));
        for (int32_t first = 0; first<292; first += first> 20 && first < 235 ? 41 : 1) {
            const int32_t rows = 1 + (first * 5 + heads_per_kv) % 8;
            const std::vector<float> chunk = attend_rows(attend, c, first, rows);
            for (int32_t row = 0; row < rows; row++) CHECK(same(row_of(chunk, c, row), alone[first + row]));
            if (first % 7 == 0) CHECK(same(chunk, attend_rows(scalar::kernels.attend, c, first, rows)));
        }
    }
}

TEST_CASE("attention: where the blocks lie and what is unwritten makes no difference") {
    const AttentionShape shape{6, 2, 32};
    Case ascending = make_case(shape, 700, false, 10);
    Case shuffled = make_case(shape, 700, true, 10);
    for (const AttendFunction attend : tiers())
        for (const int32_t first : {0, 5, 250, 507, 692})
            CHECK(same(attend_rows(attend, ascending, first, 8), attend_rows(attend, shuffled, first, 8)));
    for (const AttendFunction attend : tiers()) {
        const std::vector<float> before = attend_rows(attend, shuffled, 332, 5);
        const uint16_t rubbishes[] = {0x7e01, 0x7c00, 0xfc00, 0x0001, 0x7bff};
        for (const uint16_t rubbish : rubbishes) {
            for (int32_t position = 337; position < 700; position++)
                for (int32_t head = 0; head < shape.kv_heads; head++)
                    for (int32_t d = 0; d < shape.head_dim; d++)
                        shuffled.key(position, head, d) = shuffled.value(position, head, d) = rubbish;
            CHECK(same(attend_rows(attend, shuffled, 332, 5), before));
        }
        shuffled = make_case(shape, 700, true, 10);
    }
}

TEST_CASE("attention: special values") {
    const AttentionShape shape{3, 1, 32};
    const Case clean = make_case(shape, 600, true, 11);
    const uint16_t specials[] = {0x7e00, 0x7c00, 0xfc00, 0x0001, 0x83ff, 0x7bff, 0xfbff, 0x8000};
    std::mt19937 random(12);
    for (const uint16_t special : specials) {
        for (int variant = 0; variant < 3; variant++) {
            Case c = clean;
            if (variant == 0) c.key(290, 0, 7) = special;
            if (variant == 1) c.value(290, 0, 7) = special;
            if (variant == 2)
                for (int32_t i = 0; i < 2000; i++) {
                    c.key(static_cast<int32_t>(random() % 600), 0, static_cast<int32_t>(random() % 32)) =
                        special;
                    c.value(static_cast<int32_t>(random() % 600), 0, static_cast<int32_t>(random() % 32)) =
                        special;
                }
            for (const int32_t first : {0, 100, 285, 592}) {
                const std::vector<float> want = attend_rows(scalar::kernels.attend, c, first, 8);
                for (int32_t row = 0; row < 8; row += 3)
                    CHECK(same(row_of(want, c, row), literal_row(c, first + row)));
                for (const AttendFunction attend : tiers())
                    CHECK(same(attend_rows(attend, c, first, 8), want));
            }
            if (variant < 2) {  // rows before the special one don't notice
                Case untouched = clean;
                CHECK(same(attend_rows(tiers().back(), c, 282, 8),
                           attend_rows(tiers().back(), untouched, 282, 8)));
            }
        }
    }
    for (const float special : {0.0f, -0.0f, 1e-40f, 1e30f, -3e38f, std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()}) {
        Case c = clean;
        std::fill(c.queries.begin() + 301 * static_cast<long>(c.row_floats()),
                  c.queries.begin() + 302 * static_cast<long>(c.row_floats()), special);
        for (const AttendFunction attend : tiers()) {
            const std::vector<float> chunk = attend_rows(attend, c, 298, 8);
            for (int32_t row = 0; row < 8; row++)
                CHECK(same(row_of(chunk, c, row), literal_row(c, 298 + row)));
        }
    }
}

TEST_CASE("attention: every format of the cache is the rule, by bytes, in every tier") {
    const Pair pairs[] = {{KvType::q8_0, KvType::q8_0},  {KvType::q8_0, KvType::tbq4},
                          {KvType::tbq4x, KvType::tbq4}, {KvType::tbq4, KvType::tbq4},
                          {KvType::f16, KvType::tbq4},   {KvType::tbq4x, KvType::q8_0},
                          {KvType::tbq4, KvType::f16},   {KvType::f16, KvType::q8_0}};
    const AttentionShape shapes[] = {{9, 3, 64}, {10, 2, 64}, {12, 1, 128}, {2, 2, 256}, {5, 1, 64}};
    for (const Pair pair : pairs)
        for (const AttentionShape shape : shapes) {
            INFO(std::string(kv_type_name(pair.keys)) << "/" << std::string(kv_type_name(pair.values)) << " "
                                                      << shape.heads << " " << shape.head_dim);
            Case c = make_case(shape, 300, true, 13, pair);
            for (const int32_t first : {0, 9, 250, 287}) {
                std::vector<std::vector<float>> alone;
                for (int32_t row = 0; row < 8; row++) alone.push_back(literal_row(c, first + row));
                for (const AttendFunction attend : tiers()) {
                    for (const int32_t rows : {1, 3, 8}) {
                        const std::vector<float> got = attend_rows(attend, c, first, rows);
                        for (int32_t row = 0; row < rows; row++) CHECK(same(row_of(got, c, row), alone[row]));
                    }
                }
            }
        }
    for (const int32_t head_dim : {32, 96}) {  // q8_0 takes any multiple of 32
        Case c = make_case({6, 2, head_dim}, 300, true, 14, {KvType::q8_0, KvType::q8_0});
        for (const AttendFunction attend : tiers())
            CHECK(same(attend_rows(attend, c, 299, 1), literal_row(c, 299)));
    }
}

TEST_CASE("attention: a format's unwritten slots and special values") {
    const AttentionShape shape{6, 2, 64};
    for (const Pair pair : {Pair{KvType::q8_0, KvType::q8_0}, Pair{KvType::tbq4x, KvType::tbq4}}) {
        Case c = make_case(shape, 300, true, 15, pair);
        std::vector<float> want[3];
        for (int32_t i = 0; i < 3; i++) want[i] = literal_row(c, 258 + i);
        std::vector<float> special(2 * static_cast<size_t>(shape.kv_heads) * shape.head_dim, 1.0f);
        special[5] = std::numeric_limits<float>::quiet_NaN();
        for (int32_t position = 261; position < 300; position++)
            scalar::kernels.write_kv(c.cache.layer(), special.data(), special.data() + special.size() / 2,
                                     c.slot(position));
        for (const AttendFunction attend : tiers()) {
            const std::vector<float> got = attend_rows(attend, c, 258, 8);
            for (int32_t row = 0; row < 3; row++) CHECK(same(row_of(got, c, row), want[row]));
            for (int32_t row = 3; row < 8; row++) {
                const std::vector<float> nan_row = row_of(got, c, row);
                CHECK(nan_row[0] != nan_row[0]);  // the KV head whose key is not a number
                CHECK(nan_row.back() == nan_row.back());
            }
            c.queries[280 * c.row_floats()] = std::numeric_limits<float>::infinity();
            CHECK(attend_rows(attend, c, 280, 1)[0] != 0.0f);
        }
    }
}

TEST_CASE("attention in pieces equals attention at once, wherever the pieces end") {
    for (const Pair pair : {Pair{}, Pair{KvType::q8_0, KvType::tbq4}, Pair{KvType::tbq4x, KvType::tbq4}}) {
        Case c = make_case({4, 2, 64}, 17 * span_positions + 4, true, 21, pair);
        for (const auto& [first, rows] : {std::pair{c.positions - 1, 1}, {c.positions - 8, 8}, {508, 8}}) {
            const int32_t spans = (first + rows - 1) / span_positions + 1;
            const std::vector<float> expected = attend_rows(scalar::kernels.attend, c, first, rows);
            for (const CpuTier tier : test::runnable_tiers()) {
                const Kernels& kernels = kernels_of(tier);
                CHECK(same(expected, attend_in_pieces(kernels, c, first, rows, {spans})));
                CHECK(same(expected, attend_in_pieces(kernels, c, first, rows, {1, spans})));
                CHECK(same(expected, attend_in_pieces(kernels, c, first, rows, {1, 2, spans - 1, spans})));
            }
        }
    }
}
