// Cosines and sines of the rotary embedding. Made once per model; the runner fills a pass's table from it,
// for every backend (numerics contract, rule 6), row by row.
//
//     cos_sin  (pairs, 2)   | cos 0 | sin 0 | cos 1 | sin 1 | …        pair i turns by position * frequency i
//
// Invariant: a function of (parameters, factors, position) by bytes, on every compiler and machine: all in
// double with base/math.h, rounded once at the end.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "model/hyper_parameters.h"

namespace treadle {

class RopeTable {
public:
    // What read_rope_factors accepts: angles then stay within what base/math.h takes.
    static constexpr float factor_min = 0.5f;
    static constexpr float factor_max = 0x1p20f;

    explicit RopeTable(std::pmr::memory_resource* memory) : frequencies_(memory) {}

    // `factors` (pairs) divide each pair's angle (llama3); empty: none do.
    void make(const RopeParameters& parameters, std::span<const float> factors);

    int32_t pairs() const { return static_cast<int32_t>(frequencies_.size()); }
    void fill(int32_t position, float* cos_sin) const;

    std::span<const double> frequencies() const { return frequencies_; }  // (pairs) radians per position
    double amplitude() const { return amplitude_; }                       // of cos and sin

private:
    std::pmr::vector<double> frequencies_;
    double amplitude_ = 1;
};

}  // namespace treadle
