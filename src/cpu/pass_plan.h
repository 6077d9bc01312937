// What build makes of a program: regions of steps with weights in place of ids, checked once, so that
// running a tile checks nothing. And per pass: into how many tiles each region is cut.
//
// Row-wise operations have no region of their own where a linear layer or attention goes before: they are its epilogue. A
// layer of the llama family has five regions:
//
//     | q,k,v + RopeWrite | Attend + Quantize | o + AddNorm | gate,up + Gate | down + AddNorm of the next |
//
// A region's tiles are ranges of units (panels, KV heads) × blocks of rows. Each block of rows counts its unfinished parts; the
// thread that ends the last runs the epilogue for those rows, whose values are in its cache, while others are at other blocks:
//
//     block 0   [units 0..3][units 4..7][units 8..11]→ epilogue of its rows
//     block 1   [units 0..3][units 4..7][units 8..11]→ epilogue of its rows
//
// An epilogue writes act while other blocks still read theirs, so there are two, in turns. Region 0 is the copying of cache
// blocks.
//
// Invariant: what a tile computes does not depend on how its region is cut.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "base/memory.h"
#include "cpu/kernels.h"
#include "cpu/pass_cursor.h"
#include "cpu/weight_store.h"
#include "ops/program.h"

namespace treadle::cpu {

enum class RegionKind : uint8_t { copies, rows, linear, attend, logits, candidates };

struct Region {
    RegionKind kind;
    int32_t first_step;
    int32_t steps;  // of rows all alike; of linear and attend the first, then the epilogue

    // Whether each block of rows counts its unfinished parts.
    bool counts_parts() const {
        return kind == RegionKind::attend || (kind == RegionKind::linear && steps > 1);
    }
};

// The act that a step writes, in which forms, or the one that it reads.
struct ActForm {
    int32_t columns = 0;
    int32_t turn = 0;  // which of the two
    bool quantized = false;
    bool f32 = false;
};

struct Step {
    explicit Step(const Op& of) : op(of) {}
    Op op;
    ActForm act;
    const float* gain = nullptr;  // AddNorm
    int32_t first_part = 0;       // of parts: Embed, Linear, Logits
    int32_t parts = 0;
};

struct MatrixPart {
    PackedMatrix weight;
    const float* bias;  // null: none
    int32_t column;     // of the output, where it begins
    int32_t panel;      // first of its panels, counted over all parts of the step
};

struct Tile {
    int32_t first_unit;
    int32_t last_unit;
    int32_t row_block;
    int32_t first_row;
    int32_t last_row;
};

// How a region's work is cut: a tile is a range of units × a block of rows. Attention has its own tiles (pass_buffers.h); there
// the blocks of rows are the attention units.
struct Cut {
    int32_t units = 0;  // panels, rows, layers
    int32_t ranges = 0;
    int32_t rows = 0;
    int32_t row_step = 1;
    int32_t row_blocks = 0;
    int32_t tiles = 0;
    int32_t first_counter = 0;  // of the unfinished parts of each block of rows, where they are counted

    // Blocks of rows follow one another fastest: a range of panels stays in the cache for all.
    Tile tile(int32_t index) const {
        const auto unit = [&](int32_t range) {
            return static_cast<int32_t>(int64_t{units} * range / ranges);
        };
        const int32_t range = index / row_blocks;
        const int32_t block = index % row_blocks;
        const int32_t first_row = block * row_step;
        return {unit(range), unit(range + 1), block, first_row, std::min(first_row + row_step, rows)};
    }
};

class PassPlan {
public:
    explicit PassPlan(std::pmr::memory_resource* memory) : regions(memory), steps(memory), parts(memory) {}

    // CORRUPT: an id or a shape does not fit, with the tensor's name.
    [[nodiscard]] Status compile(const Program& program, const CpuWeightStore& store, Error* error);

    // The cut of a region for a pass of `dims`; not of attend and copies, which depend on more of the input.
    Cut cut(const Region& region, Dims dims, const Rates& rates, int32_t threads) const;

    int32_t panels(const Step& step) const;
    std::span<const Step> steps_of(const Region& region) const {
        return std::span(steps).subspan(static_cast<size_t>(region.first_step),
                                        static_cast<size_t>(region.steps));
    }

    // How many blocks of rows that count parts a pass of so many rows has at most, over all regions.
    int64_t row_blocks_max(int32_t rows) const;

    std::pmr::vector<Region> regions;
    std::pmr::vector<Step> steps;
    std::pmr::vector<MatrixPart> parts;
    int32_t act_columns_max[2] = {};
    bool uses_quantized = false;
    bool uses_f32 = false;
    int32_t hidden = 0;
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    int32_t feed_forward = 0;
    int32_t vocabulary = 0;
    int32_t qkv_columns() const { return (heads + 2 * kv_heads) * head_dim; }
    int32_t columns_of(Value value) const;

private:
    struct Compiler;
};

// The time a tile should take, for a region of `total_ns` that `threads` threads work on.
double tile_target_ns(double total_ns, int32_t threads);

// Cuts `units` × blocks of row_step rows into tiles of about that time.
Cut cut_evenly(int32_t units, int32_t rows, int32_t row_step, double total_ns, int32_t threads);

}  // namespace treadle::cpu
