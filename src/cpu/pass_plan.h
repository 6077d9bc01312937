// What build makes of a program: regions of steps with weights in place of ids, checked once, so that
// running a tile checks nothing. And per pass: into how many tiles each region is cut.
//
// A layer of the llama family has ten regions; for few rows the five between the matrices are one tile
// each, which the thread that ends the region before runs without a barrier (pass_cursor.h):
//
//     | AddNorm | q,k,v | RopeWrite | Attend | Quantize | o | AddNorm | gate,up | Gate | down |
//       rows      linear  rows        attend   rows   linear  rows      linear    rows   linear
//
// Row-wise operations that follow one another share a region. Region 0 is the copying of cache blocks.
//
// Invariant: what a tile computes does not depend on how its region is cut.
#pragma once

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
    int32_t steps;  // more than one only for rows
};

// Which forms of act a step writes, or how many columns it reads.
struct ActForm {
    int32_t columns = 0;
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

// How a region's work is cut: tile = unit range × row range, ranges of rows inside.
struct Cut {
    int32_t units = 0;  // panels, rows, layers; or tiles that begin prepared
    int32_t unit_step = 1;
    int32_t rows = 0;
    int32_t row_step = 1;
    int32_t row_blocks = 1;
    int32_t tiles = 0;
};

class PassPlan {
public:
    explicit PassPlan(std::pmr::memory_resource* memory) : regions(memory), steps(memory), parts(memory) {}

    // CORRUPT: an id or a shape does not fit, with the tensor's name.
    [[nodiscard]] Status compile(const Program& program, const CpuWeightStore& store, Error* error);

    // The cut of a region for a pass of `dims`; not of attend and copies, which depend on more of the input.
    Cut cut(const Region& region, Dims dims, const Rates& rates, int32_t threads) const;

    int32_t panels(const Step& step) const;

    std::pmr::vector<Region> regions;
    std::pmr::vector<Step> steps;
    std::pmr::vector<MatrixPart> parts;
    int32_t act_columns_max = 0;
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
