// One tile of a pass: which kernel runs on which rows and panels, and the epilogue of rows that it completes. Called through the
// cursor by whatever thread claimed it.
//
// Invariant: tiles of one region write disjoint memory and read only what earlier regions wrote; an epilogue touches its own
// rows, when no tile of them is left.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/kernels.h"
#include "cpu/pass_buffers.h"
#include "cpu/pass_plan.h"

namespace treadle::cpu {

struct PassTiles {
    const Kernels& kernels;
    const PassPlan& plan;
    PassBuffers& buffers;

    void run(const Region& region, const Cut& cut, int32_t index, int32_t thread) const;

private:
    void run_copies(int32_t first_layer, int32_t last_layer) const;
    void run_rows(std::span<const Step> steps, int32_t first_row, int32_t last_row, int32_t thread) const;
    void run_row(const Step& step, int32_t row, int32_t thread) const;
    void run_matrix(const Step& step, const Tile& tile) const;
    void run_logits(const Step& step, const Tile& tile) const;
    void run_attend(const Region& region, const Cut& cut, int32_t index, int32_t thread) const;
    void run_candidates(int32_t first_row, int32_t last_row) const;
    void run_attention_item(const Attend& op, const AttentionUnit& unit, int32_t item, int32_t thread) const;
    void merge_pieces(const Attend& op, const AttentionUnit& unit, int32_t thread) const;
    bool ends_block(const Cut& cut, int32_t block, int32_t parts) const;

    void embed_row(const Embed& op, const Step& step, int32_t row) const;
    void norm_row(const AddNorm& op, const Step& step, int32_t row, int32_t thread) const;
    void rope_row(const RopeWrite& op, int32_t row) const;
    void quantize_row(const Step& step, int32_t row) const;
    void gate_row(const Gate& op, const Step& step, int32_t row, int32_t thread) const;
    float* act_target(const Step& step, int32_t row, int32_t thread) const;
    void finish_act(const Step& step, int32_t row, const float* values) const;
    AttentionShape shape() const { return {plan.heads, plan.kv_heads, plan.head_dim}; }
};

}  // namespace treadle::cpu
