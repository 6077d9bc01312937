// What the tests of packing and of the linear kernels share: random tensors of every type, activations, the
// tiers, and a slow reference that knows nothing of panels, planes or tiles.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/exact_fma.h"
#include "base/float16.h"
#include "cpu/linear.h"
#include "quant/types.h"
#include "whole_weight.h"

namespace treadle::test {

inline void* allocate_for_test(void*, size_t size, size_t alignment, int32_t) {
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
inline void free_for_test(void*, void* pointer, size_t, size_t, int32_t) { std::free(pointer); }

struct TestMemory {
    AllocatorHooks hooks{nullptr, allocate_for_test, free_for_test};
    Memory weights{hooks, MemoryKind::weights};
    Memory scratch{hooks, MemoryKind::scratch};
};

// ---- Tensors ----------------------------------------------------------------------------------------

struct TensorBytes : WeightShape {
    TensorBytes(TensorType tensor_type, int64_t row_count, int64_t column_count) {
        name = "test.weight";
        type = static_cast<uint32_t>(tensor_type);
        rows = row_count;
        columns = column_count;
        const TypeInfo& info = type_info(tensor_type);
        row_bytes = static_cast<size_t>(column_count) / info.block_values * info.block_bytes;
        data.resize(static_cast<size_t>(row_count) * row_bytes);
        bytes = data.size();
    }
    const uint8_t* row(int64_t index) const { return data.data() + static_cast<size_t>(index) * row_bytes; }

    std::vector<uint8_t> data;
    size_t row_bytes = 0;
};

// Offsets of the f16 fields in a block, -1 where there is none.
struct HalfFields {
    int scale;
    int minimum;
};

inline HalfFields half_fields(TensorType type) {
    switch (type) {
        case TensorType::Q4_1:
        case TensorType::Q5_1:
        case TensorType::Q4_K:
        case TensorType::Q5_K: return {0, 2};
        case TensorType::Q2_K: return {80, 82};
        case TensorType::Q3_K: return {108, -1};
        case TensorType::Q6_K: return {208, -1};
        case TensorType::MXFP4: return {-1, -1};
        default: return {0, -1};
    }
}

inline void put_half(uint8_t* block, int offset, uint16_t half) {
    if (offset >= 0) std::memcpy(block + offset, &half, sizeof half);
}

inline uint16_t random_half(std::mt19937& random, float most) {
    return f16_from_f32(most * (static_cast<float>(random() % 20001) - 10000.0f) * 1e-4f);
}

// Fills all blocks: code bytes by `byte()`, scales with numbers a model might have.
template <class Byte>
void fill_blocks(TensorBytes& source, std::mt19937& random, Byte byte) {
    const auto type = static_cast<TensorType>(source.type);
    const TypeInfo& info = type_info(type);
    for (size_t at = 0; at < source.data.size(); at += info.block_bytes) {
        uint8_t* block = source.data.data() + at;
        for (uint32_t i = 0; i < info.block_bytes; ++i) block[i] = static_cast<uint8_t>(byte());
        if (type == TensorType::MXFP4) block[0] = static_cast<uint8_t>(118 + random() % 12);
        put_half(block, half_fields(type).scale, random_half(random, 0.02f));
        put_half(block, half_fields(type).minimum, random_half(random, 0.2f));
    }
}

inline void fill_random(TensorBytes& source, std::mt19937& random) {
    const auto type = static_cast<TensorType>(source.type);
    if (packed_kind(type) != nullptr) return fill_blocks(source, random, [&] { return random(); });
    const size_t width = type_info(type).block_bytes;
    for (size_t at = 0; at < source.data.size(); at += width) {
        const float value = (static_cast<float>(random() % 2000001) - 1e6f) * 1e-6f;
        const auto bits = std::bit_cast<uint32_t>(value);
        const uint16_t half =
            type == TensorType::F16 ? f16_from_f32(value) : static_cast<uint16_t>(bits >> 16);
        if (width == 4)
            std::memcpy(&source.data[at], &bits, 4);
        else
            std::memcpy(&source.data[at], &half, 2);
    }
}

// ---- Activations ------------------------------------------------------------------------------------

struct Activations {
    Activations(int32_t row_count, int32_t column_count) : rows(row_count), columns(column_count) {
        const auto values = static_cast<size_t>(rows) * static_cast<size_t>(columns);
        f32.resize(values);
        q.resize(values);
        scale.resize(values / 32);
        sum.resize(values / 16);
    }
    cpu::Act act() { return {q.data(), scale.data(), sum.data(), f32.data(), columns}; }
    void count_sums() {
        for (size_t i = 0; i < sum.size(); ++i) {
            sum[i] = 0;
            for (size_t j = 0; j < 16; ++j) sum[i] += q[i * 16 + j];
        }
    }
    void fill(std::mt19937& random) {
        for (float& value : f32) value = (static_cast<float>(random() % 2000001) - 1e6f) * 1e-6f;
        for (int8_t& value : q) value = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
        for (float& value : scale) value = static_cast<float>(random() % 1000) * 1e-5f;
        count_sums();
    }

    int32_t rows;
    int32_t columns;
    std::vector<float> f32;
    std::vector<int8_t> q;
    std::vector<float> scale;
    std::vector<int32_t> sum;
};

inline bool same_f32(float a, float b) {  // by bits; one NaN is as good as another
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// ---- The reference ----------------------------------------------------------------------------------

// A matrix as codes and scales, straight from the file.
class ReferenceMatrix {
public:
    explicit ReferenceMatrix(const TensorBytes& source)
        : type_(static_cast<TensorType>(source.type)), kind_(packed_kind(type_)), rows_(source.rows),
          columns_(static_cast<size_t>(source.columns)) {
        const auto all_rows = static_cast<size_t>(rows_);
        decoded_.resize(all_rows * columns_);
        for (size_t row = 0; row < all_rows; ++row)
            decode_row(type_, source.row(static_cast<int64_t>(row)), columns_, &decoded_[row * columns_]);
        if (kind_ == nullptr) return;
        groups_ = columns_ / static_cast<size_t>(kind_->group);
        scales_ = columns_ / static_cast<size_t>(kind_->scale_values);
        codes_.resize(all_rows * columns_);
        scale_.resize(all_rows * scales_);
        minimum_.resize(all_rows * scales_);
        sub_scale_.resize(all_rows * groups_);
        sub_minimum_.resize(all_rows * groups_);
        for (size_t row = 0; row < all_rows; ++row)
            unpack_row(type_, source.row(static_cast<int64_t>(row)), columns_,
                       {&codes_[row * columns_], &scale_[row * scales_], &minimum_[row * scales_],
                        &sub_scale_[row * groups_], &sub_minimum_[row * groups_]});
    }

    int64_t rows() const { return rows_; }
    const float* decoded(size_t row) const { return &decoded_[row * columns_]; }

    // The contract's sum of one output, in plain loops.
    float dot(size_t row, const Activations& act, size_t act_row) const {
        float total = 0;
        for (size_t first = 0; first < columns_; first += 1024) {
            const size_t last = first + 1024 < columns_ ? first + 1024 : columns_;
            const float slice = kind_ == nullptr ? float_slice(row, act, act_row, first, last)
                                                 : quantized_slice(row, act, act_row, first, last);
            total = first == 0 ? slice : total + slice;
        }
        return total;
    }

    // The same in double from decoded weights and activations, and the sum of magnitudes.
    double dot_double(size_t row, const Activations& act, size_t act_row, double* magnitude) const {
        double total = 0;
        *magnitude = 0;
        for (size_t k = 0; k < columns_; ++k) {
            const size_t at = act_row * columns_ + k;
            const double a = kind_ == nullptr ? double{act.f32[at]} : double{act.scale[at / 32]} * act.q[at];
            const double product = a * double{decoded(row)[k]};
            total += product;
            *magnitude += std::fabs(product);
        }
        return total;
    }

private:
    float float_slice(size_t row, const Activations& act, size_t act_row, size_t first, size_t last) const {
        float acc = 0;
        for (size_t k = first; k < last; ++k)
            acc = exact_fma(decoded(row)[k], act.f32[act_row * columns_ + k], acc);
        return acc;
    }

    float quantized_slice(size_t row, const Activations& act, size_t act_row, size_t first,
                          size_t last) const {
        const auto group_values = static_cast<size_t>(kind_->group);
        float acc = 0;
        for (size_t k = first; k < last; k += group_values) {
            int32_t dot = 0;
            int32_t sum = 0;
            for (size_t i = k; i < k + group_values; ++i) {
                const int32_t code = codes_[row * columns_ + i];
                const int32_t weight = kind_->table != nullptr ? kind_->table[code] : code - kind_->offset;
                dot += weight * act.q[act_row * columns_ + i];
                sum += act.q[act_row * columns_ + i];
            }
            const float a_scale = act.scale[(act_row * columns_ + k) / 32];
            const float a_sum = a_scale * static_cast<float>(sum);
            const size_t group = row * groups_ + k / group_values;
            const size_t scale = row * scales_ + k / static_cast<size_t>(kind_->scale_values);
            const float d = f32_from_f16(scale_[scale]);
            const float minimum = f32_from_f16(minimum_[scale]);
            float w_scale = d;
            float w_minimum = minimum;
            switch (kind_->scale) {
                case ScaleKind::f16:
                case ScaleKind::f16_min: break;
                case ScaleKind::i8_f16:
                    w_scale = d * static_cast<float>(static_cast<int8_t>(sub_scale_[group]));
                    break;
                case ScaleKind::u8_f16_min:
                    w_scale = d * static_cast<float>(sub_scale_[group]);
                    w_minimum = -(minimum * static_cast<float>(sub_minimum_[group]));
                    break;
                case ScaleKind::e8m0: w_scale = std::ldexp(1.0f, sub_scale_[group] - 128); break;
            }
            const float product = w_scale * a_scale;
            acc = exact_fma(static_cast<float>(dot), product, acc);
            if (kind_->scale == ScaleKind::f16_min || kind_->scale == ScaleKind::u8_f16_min)
                acc = exact_fma(w_minimum, a_sum, acc);
        }
        return acc;
    }

    TensorType type_;
    const PackedKind* kind_;
    int64_t rows_;
    size_t columns_;
    size_t groups_ = 0;
    size_t scales_ = 0;
    std::vector<float> decoded_;
    std::vector<uint8_t> codes_, sub_scale_, sub_minimum_;
    std::vector<uint16_t> scale_, minimum_;
};

}  // namespace treadle::test
