// The linear kernels, written once over the words of a tier. The including file opens the namespace of
// that tier.
//
//     linear ─► chunks of rows whose activations stay in L2 ─► panels ─► tiles of 1 .. tile_rows rows
//            ─► slices ─► groups of 32 values: each quad of codes is unpacked once, then meets every row of the tile
//
// The order in which an output is summed is that of linear.h: tiles, chunks and panels only choose
// which outputs are computed together.

#include "cpu/dots.inl"

constexpr size_t chunk_bytes = 256 * 1024;  // of activations: half of a common L2
constexpr int32_t slice_groups = slice_values / 32;

// ---- Activations of a tile --------------------------------------------------------------------------

// Pointers into the activations of the rows of a tile, and what a slice needs of their sums.
template <int32_t rows>
struct ActTile {
    const int8_t* q[rows];                                 // (columns) each
    const float* scale[rows];                              // (columns / 32)
    const int32_t* sum[rows];                              // (columns / 16)
    const float* f32[rows];                                // (columns)
    alignas(64) float scaled_sum[rows][2 * slice_groups];  // a_scale · float(Σ q_a) of each weight group
    alignas(64) int32_t
        offset_sum[rows][2 * slice_groups];  // offset · Σ q_a, what biased codes count too much
};

// Fills the sums of the slice that starts at group `first`, for `groups` groups of 32.
template <PackedFormat format, int32_t rows>
TREADLE_LANES_WORD void prepare_sums(ActTile<rows>& act, int32_t first, int32_t groups) {
    constexpr PackedLayout layout = packed_layout(format);
    constexpr int32_t per_32 = 32 / layout.group;
    for (int32_t t = 0; t < rows; ++t) {
        const int32_t* sums = act.sum[t] + 2 * first;
        const float* scales = act.scale[t] + first;
        int32_t g = 0;
        if constexpr (layout.group == 32) {
            for (; g + 16 <= groups; g += 16) {
                const I32x16 total = load_add_pairs(sums + 2 * g);
                if constexpr (layout.has_minimum())
                    store(act.scaled_sum[t] + g, mul(load(scales + g), to_f32(total)));
                if constexpr (layout.offset != 0)
                    store(act.offset_sum[t] + g, shift_left<__builtin_ctz(layout.offset | 1 << 30)>(total));
            }
        }
        for (int32_t i = g * per_32; i < groups * per_32; ++i) {
            const int32_t total = layout.group == 32 ? sums[2 * i] + sums[2 * i + 1] : sums[i];
            if constexpr (layout.has_minimum())
                act.scaled_sum[t][i] = scales[i / per_32] * static_cast<float>(total);
            if constexpr (layout.offset != 0) act.offset_sum[t][i] = layout.offset * total;
        }
    }
}

// ---- Scales -----------------------------------------------------------------------------------------

struct GroupScales {
    F32x16 scale;
    F32x16 minimum;
};

// Scales of group `index` (of the record's groups) of a record.
template <PackedFormat format>
TREADLE_LANES_WORD GroupScales load_scales(const uint8_t* record, int32_t index) {
    constexpr PackedLayout layout = packed_layout(format);
    if constexpr (layout.scale == PackedScale::e8m0) {
        const I32x16 power = load_u8(record);
        const I32x16 one = set1(1);
        const I32x16 subnormal = shift_left<21>(add(power, one));
        const I32x16 normal = shift_left<23>(sub(power, one));
        return {f32_of_bits(select(less(power, set1(2)), subnormal, normal)), zero_f32()};
    } else {
        const auto* halves = reinterpret_cast<const uint16_t*>(record);
        const F32x16 d = load_f16(halves);
        const uint8_t* sub_scales = record + layout.record_head_bytes() + index * layout.group_scale_bytes();
        if constexpr (layout.scale == PackedScale::f16) return {d, zero_f32()};
        if constexpr (layout.scale == PackedScale::f16_min) return {d, load_f16(halves + 16)};
        if constexpr (layout.scale == PackedScale::i8_f16)
            return {mul(d, to_f32(load_i8(reinterpret_cast<const int8_t*>(sub_scales)))), zero_f32()};
        const I32x16 sign = set1(INT32_MIN);
        const F32x16 minimum =
            f32_of_bits(bit_xor(bits_of(load_f16(halves + 16)), sign));  // w = … - dmin · sub
        if constexpr (layout.scale == PackedScale::u8_f16_min)
            return {mul(d, to_f32(load_u8(sub_scales))), mul(minimum, to_f32(load_u8(sub_scales + 16)))};
        const I32x16 both = load_u8(sub_scales);
        return {mul(d, to_f32(bit_and(both, set1(15)))), mul(minimum, to_f32(shift_right<4>(both)))};
    }
}

// ---- Quantized weights ------------------------------------------------------------------------------

// One weight group: the float steps of each row. `slot` is the group's place in the slice's sums.
template <PackedFormat format, int32_t first, int32_t last, int32_t rows>
TREADLE_LANES_WORD void take_group(const uint8_t* lines, const GroupScales& scales, const ActTile<rows>& act,
                                   int32_t k, int32_t slot, const Table16& table, F32x16 (&acc)[rows]) {
    constexpr PackedLayout layout = packed_layout(format);
    I32x16 total[rows];
    dot_quads<layout.codes, layout.group, first, last>(lines, act.q, k, table, total);
    TREADLE_UNROLL
    for (int32_t t = 0; t < rows; ++t) {
        if constexpr (layout.offset != 0) total[t] = sub(total[t], set1(act.offset_sum[t][slot]));
        const F32x16 product = mul(scales.scale, set1(act.scale[t][k / 32]));
        acc[t] = fma(to_f32(total[t]), product, acc[t]);
        if constexpr (layout.has_minimum())
            acc[t] = fma(scales.minimum, set1(act.scaled_sum[t][slot]), acc[t]);
    }
}

// The chain of one slice: groups of 32 from `first`, `groups` of them, from +0.
template <PackedFormat format, int32_t rows>
TREADLE_LANES_WORD void take_slice(const uint8_t* codes, const uint8_t* scales, const ActTile<rows>& act,
                                   int32_t first, int32_t groups, const Table16& table, F32x16 (&acc)[rows]) {
    constexpr PackedLayout layout = packed_layout(format);
    constexpr int32_t per_32 = 32 / layout.group;
    constexpr int32_t record_groups = layout.record_values() / 32;
    constexpr int32_t line_bytes = layout.lines_per_32() * 64;
    TREADLE_UNROLL
    for (int32_t t = 0; t < rows; ++t) acc[t] = zero_f32();
    for (int32_t g = 0; g < groups; ++g) {
        const auto group = static_cast<size_t>(first + g);
        const uint8_t* lines = codes + group * line_bytes;
        const uint8_t* record = scales + group / record_groups * layout.record_bytes();
        const int32_t index = static_cast<int32_t>(group % record_groups) * per_32;
        const int32_t k = (first + g) * 32;
        if constexpr (layout.group == 32) {
            take_group<format, 0, 8>(lines, load_scales<format>(record, index), act, k, g, table, acc);
        } else {
            take_group<format, 0, 4>(lines, load_scales<format>(record, index), act, k, 2 * g, table, acc);
            take_group<format, 4, 8>(lines, load_scales<format>(record, index + 1), act, k, 2 * g + 1, table,
                                     acc);
        }
    }
}

// total[t] = the sum of the slices of a panel with row t of the tile.
template <PackedFormat format, int32_t rows>
static void quantized_tile(const PackedMatrix& w, int32_t panel, ActTile<rows>& act, F32x16 (&total)[rows]) {
    const uint8_t* codes = w.codes + static_cast<size_t>(panel) * w.code_bytes_per_panel;
    const uint8_t* scales = w.scales + static_cast<size_t>(panel) * w.scale_bytes_per_panel;
    const Table16 table = load_table(w.table);
    const int32_t all_groups = w.columns / 32;
    for (int32_t t = 0; t < rows; ++t) total[t] = zero_f32();
    for (int32_t first = 0; first < all_groups; first += slice_groups) {
        const int32_t groups = all_groups - first < slice_groups ? all_groups - first : slice_groups;
        prepare_sums<format>(act, first, groups);
        F32x16 acc[rows];
        take_slice<format>(codes, scales, act, first, groups, table, acc);
        for (int32_t t = 0; t < rows; ++t) total[t] = first == 0 ? acc[t] : add(total[t], acc[t]);
    }
}

// ---- Float weights ----------------------------------------------------------------------------------

template <PackedFormat format>
TREADLE_LANES_WORD F32x16 load_weights(const uint8_t* plane, size_t k) {
    if constexpr (format == PackedFormat::f32)
        return load(reinterpret_cast<const float*>(plane) + k * panel_rows);
    const auto* halves = reinterpret_cast<const uint16_t*>(plane) + k * panel_rows;
    if constexpr (format == PackedFormat::f16)
        return load_f16(halves);
    else
        return load_bf16(halves);
}

template <PackedFormat format, int32_t rows>
static void float_tile(const PackedMatrix& w, int32_t panel, ActTile<rows>& act, F32x16 (&total)[rows]) {
    const uint8_t* plane = w.codes + static_cast<size_t>(panel) * w.code_bytes_per_panel;
    for (int32_t t = 0; t < rows; ++t) total[t] = zero_f32();
    for (int32_t first = 0; first < w.columns; first += slice_values) {
        const int32_t last = w.columns - first < slice_values ? w.columns : first + slice_values;
        F32x16 acc[rows];
        TREADLE_UNROLL
        for (int32_t t = 0; t < rows; ++t) acc[t] = zero_f32();
        for (int32_t k = first; k < last; ++k) {
            const F32x16 weights = load_weights<format>(plane, static_cast<size_t>(k));
            TREADLE_UNROLL
            for (int32_t t = 0; t < rows; ++t) acc[t] = fma(weights, set1(act.f32[t][k]), acc[t]);
        }
        for (int32_t t = 0; t < rows; ++t) total[t] = first == 0 ? acc[t] : add(total[t], acc[t]);
    }
}

// ---- A tile, from rows to outputs -------------------------------------------------------------------

// What a call of `linear` keeps the same over its tiles.
struct LinearCall {
    const PackedMatrix* w;
    const float* bias;
    const Act* act;
    const int32_t* rows;  // or null: row i is i
    float* out;
    size_t out_stride;
};

template <PackedFormat format, int32_t rows>
static void run_tile(const LinearCall& call, int32_t panel, int32_t first_row) {
    const Act& act = *call.act;
    const auto columns = static_cast<size_t>(act.columns);
    ActTile<rows> tile;
    for (int32_t t = 0; t < rows; ++t) {
        const int32_t i = first_row + t;
        const auto row = static_cast<size_t>(call.rows == nullptr ? i : call.rows[i]);
        if constexpr (packed_layout(format).is_float()) {
            tile.f32[t] = act.f32 + row * columns;
        } else {
            tile.q[t] = act.q + row * columns;
            tile.scale[t] = act.scale + row * (columns / 32);
            tile.sum[t] = act.sum + row * (columns / 16);
        }
    }
    F32x16 total[rows];
    if constexpr (packed_layout(format).is_float())
        float_tile<format, rows>(*call.w, panel, tile, total);
    else
        quantized_tile<format, rows>(*call.w, panel, tile, total);

    const int32_t first_output = panel * panel_rows;
    const int32_t left = call.w->rows - first_output;
    const int32_t outputs = left < panel_rows ? left : panel_rows;
    const F32x16 bias = call.bias == nullptr ? zero_f32() : load_first(call.bias + first_output, outputs);
    for (int32_t t = 0; t < rows; ++t) {
        const F32x16 result = call.bias == nullptr ? total[t] : add(total[t], bias);
        float* to = call.out + static_cast<size_t>(first_row + t) * call.out_stride + first_output;
        if (outputs == panel_rows)
            store(to, result);
        else
            store_first(to, result, outputs);
    }
}

using TileFunction = void (*)(const LinearCall& call, int32_t panel, int32_t first_row);

// The function for tiles of 1 .. tile_rows rows.
template <PackedFormat format, int32_t rows = tile_rows>
static TileFunction tile_function(int32_t row_count) {
    if constexpr (rows > 1) {
        if (row_count < rows) return tile_function<format, rows - 1>(row_count);
    }
    return run_tile<format, rows>;
}

static TileFunction tile_function_of(PackedFormat format, int32_t row_count) {
    switch (format) {
#define TREADLE_TILE_FUNCTION_CASE(name, codes, scale, group, offset) \
    case PackedFormat::name: return tile_function<PackedFormat::name>(row_count);
        TREADLE_PACKED_FORMATS(TREADLE_TILE_FUNCTION_CASE)
#undef TREADLE_TILE_FUNCTION_CASE
    }
    return tile_function<PackedFormat::f32>(row_count);
}

// Rows of the next tile where `left` are left: a small rest is shared with the tile before it.
static int32_t next_tile_rows(int32_t left) {
    if (left <= tile_rows) return left;
    return left < 2 * tile_rows ? (left + 1) / 2 : tile_rows;
}

void linear(const PackedMatrix& w, const float* bias, const Act& act, const int32_t* rows, int32_t row_count,
            int32_t panel_begin, int32_t panel_end, float* out, size_t out_stride) {
    const LinearCall call = {&w, bias, &act, rows, out, out_stride};
    const size_t row_bytes = static_cast<size_t>(w.columns) * (w.reads_f32 ? 4 : 1);
    const size_t rows_in_l2 = chunk_bytes / row_bytes / tile_rows * tile_rows;
    const auto chunk_rows = static_cast<int32_t>(rows_in_l2 < tile_rows ? tile_rows : rows_in_l2);
    TileFunction functions[tile_rows];
    for (int32_t i = 0; i < tile_rows; ++i) functions[i] = tile_function_of(w.format, i + 1);
    for (int32_t chunk = 0; chunk < row_count; chunk += chunk_rows) {
        const int32_t chunk_end = row_count - chunk < chunk_rows ? row_count : chunk + chunk_rows;
        for (int32_t panel = panel_begin; panel < panel_end; ++panel) {
            for (int32_t row = chunk; row < chunk_end;) {
                const int32_t count = next_tile_rows(chunk_end - row);
                functions[count - 1](call, panel, row);
                row += count;
            }
        }
    }
}
