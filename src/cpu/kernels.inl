// All kernels of a tier but the linear ones, and their table. Included by kernels_*.cpp inside the tier's namespace, after its
// vocabularies of lanes and dots.

#include "cpu/vector_math.inl"

#include "cpu/vector.inl"

#include "cpu/vector_candidates.inl"

#include "cpu/quantize.inl"

#include "cpu/kv_write.inl"

#include "cpu/dots.inl"

#include "cpu/attention.inl"

const Kernels kernels = {
    .tier = tier_name,
    .rates = rates,
    .embed = embed,
    .add_norm = add_norm,
    .quantize = quantize,
    .linear = linear,
    .rope = rope,
    .write_kv = write_kv,
    .attend = attend,
    .attend_spans = attend_spans,
    .merge_spans = merge_spans,
    .gate = gate,
    .candidates = candidates,
    .exp2 = exp2_of,
    .exp = exp_of,
};
