// The table of kernels that the CPU backend calls: one table per tier, all equal by bytes.
// A kernel works on raw pointers; tiles, threads and value layout are cpu_backend.cpp's business.
//
// The cache of one layer of a group lies in slabs of 2^slab_shift blocks; block b is in slab b >> slab_shift, and within it the
// next block follows after block_bytes. kv_layout.h draws a block.
//
// Invariant: every kernel obeys the numerics contract; for the same inputs each tier writes the same bytes, whatever row
// range, panel range or work range it is asked for. Kernels run with MXCSR 0x1F80, which their caller sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kv_layout.h"
#include "cpu/packed.h"
#include "cpu/tiers.h"
#include "ops/backend.h"

namespace treadle::cpu {

// The `act` value, row-major. Columns are a multiple of 32 wherever q is used.
struct Act {
    int8_t* q = nullptr;     // (rows, columns), in ±127
    float* scale = nullptr;  // (rows, columns / 32)
    int32_t* sum = nullptr;  // (rows, columns / 16) exact sums of q
    float* f32 = nullptr;    // (rows, columns)
    int32_t columns = 0;
};

struct LayerCache {
    KvLayout keys;
    KvLayout values;
    uint8_t* const* key_slabs = nullptr;  // (slabs) first block of this layer in each; null: it is not there
    uint8_t* const* value_slabs = nullptr;  // (slabs)
    int32_t slab_shift = 0;
    const uint16_t* kept_dims = nullptr;  // (kv_heads, keys.kept) ascending

    uint8_t* key_block(int32_t block) const {
        return key_slabs[block >> slab_shift] + within_slab(block) * keys.block_bytes;
    }
    uint8_t* value_block(int32_t block) const {
        return value_slabs[block >> slab_shift] + within_slab(block) * values.block_bytes;
    }
    size_t within_slab(int32_t block) const { return static_cast<size_t>(block & ((1 << slab_shift) - 1)); }
};

struct AttentionShape {
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
};

constexpr int32_t span_positions =
    256;  // rule 5: attention over a context is made of parts, one for each span of it

// Where attend_spans leaves the parts of spans, for one KV head: kept is a multiple of 16, above the number of spans. A part is
// head_dim + 16 floats.
struct SpanParts {
    float* maxima;  // (rows, heads of the KV head, kept)
    float* parts;   // (rows, heads of the KV head, kept, part)
    size_t kept;
};

struct RopeShape {
    PairOrder pair_order = PairOrder::adjacent;
    int32_t rotary_dims = 0;
    float query_scale = 1;
};

// What kernels achieve on one core, roughly: tiles have to be neither tiny nor long, not equal.
struct Rates {
    double macs_per_ns;
    double float_macs_per_ns;
    double attention_macs_per_ns;
    double elements_per_ns;  // of row-wise operations
    double bytes_per_ns;     // of weights from memory
};

struct Kernels {
    const char* tier;
    Rates rates;

    // residual row = row `token` of w, decoded exactly, times scale (one rounded product).
    void (*embed)(const PackedMatrix& w, int32_t token, float scale, float* out);

    // residual += delta (null: not); out = residual / sqrt(mean square + epsilon) * gain. All (columns).
    void (*add_norm)(float* residual, const float* delta, const float* gain, float epsilon, int32_t columns,
                     float* out);

    // Quantizes x (columns, a multiple of 32) into q, scale and sum (rule 4).
    void (*quantize)(const float* x, int32_t columns, int8_t* q, float* scale, int32_t* sum);

    // out[i * out_stride + 16 * panel + lane] = act[row(i)] · w[16 * panel + lane], for panels begin .. end - 1 and i in
    // 0 .. row_count - 1; row(i) is rows[i], or i where rows is null. Lanes beyond w.rows are not written.
    void (*linear)(const PackedMatrix& w, const float* bias, const Act& act, const int32_t* rows,
                   int32_t row_count, int32_t panel_begin, int32_t panel_end, float* out, size_t out_stride);

    // One row of qkv: scales and rotates the queries, rotates the keys, in place.
    void (*rope)(const AttentionShape& shape, const RopeShape& rope, const float* cos_sin, float* qkv);

    // Writes the keys and values (kv_heads, head_dim) of one position to slot.
    void (*write_kv)(const LayerCache& cache, const float* keys, const float* values, int32_t slot);

    // Attention of `rows` consecutive rows of one sequence (1 .. 8), all heads of one KV head: queries from qkv (first row),
    // output to attended (first row). head_dim is a multiple of 16. Scratch is attention_scratch_bytes() for at least
    // first_position + rows positions, 64-byte aligned.
    void (*attend)(const AttentionShape& shape, const LayerCache& cache, const int32_t* block_table,
                   int32_t first_position, int32_t rows, int32_t kv_head, const float* qkv, size_t qkv_stride,
                   float* attended, size_t attended_stride, void* scratch);

    // attend in pieces, for many threads: each goes over the spans first_span .. end_span - 1 of the context; when all were gone
    // over, merge_spans writes the output. The same bytes, wherever the pieces end.
    void (*attend_spans)(const AttentionShape& shape, const LayerCache& cache, const int32_t* block_table,
                         int32_t first_position, int32_t rows, int32_t kv_head, const float* qkv,
                         size_t qkv_stride, int32_t first_span, int32_t end_span, const SpanParts& parts,
                         void* scratch);
    void (*merge_spans)(const AttentionShape& shape, const LayerCache& cache, int32_t first_position,
                        int32_t rows, int32_t kv_head, const SpanParts& parts, float* attended,
                        size_t attended_stride, void* scratch);

    // out = gate(kind, gate_up[0 .. n), gate_up[n .. 2n)) (n).
    void (*gate)(GateKind kind, const float* gate_up, int32_t n, float* out);

    // Everything rule 7 asks of one row of logits (vocabulary).
    void (*candidates)(const float* logits, int32_t vocabulary, float inverse_temperature, RowResult* out);

    // out[i] = exp2(x[i]), exp(x[i]), for i below n, as the others compute them; for tests.
    void (*exp2)(const float* x, int32_t n, float* out);
    void (*exp)(const float* x, int32_t n, float* out);
};

constexpr int32_t attend_rows_max = 8;
size_t attention_scratch_bytes(const AttentionShape& shape,
                               int32_t positions_max);  // grows by a part per 4,096 positions

#define TREADLE_TIER_KERNELS(tier) \
    namespace tier {               \
    extern const Kernels kernels;  \
    }
TREADLE_CPU_TIERS(TREADLE_TIER_KERNELS)
#undef TREADLE_TIER_KERNELS

// Of the best tier for automatic. May run where cpu_has(tier); asking runs none of its instructions.
const Kernels& kernels_of(CpuTier tier);

}  // namespace treadle::cpu
