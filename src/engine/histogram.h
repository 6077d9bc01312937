// A histogram of times and counts in fixed memory: log-linear buckets, as HdrHistogram (Gil Tene) has them. The engine's metrics
// add to it under the engine's lock; it has no lock of its own.
//
// Values from 0 to INT64_MAX. Each power of two is cut into 32 equal buckets, so a bucket is at most 1/32 as wide as its values:
//
//     bucket    0    1 … 32    33 … 64        65 … 96          97 … 128        …
//     holds     0    1 … 32    33 … 64        65 … 128         129 … 256       …   both ends included
//     width     1    1         1              2                4               …
//
// A bucket ends at the value that it counts last, so 2^k always is the last of its bucket: "at most 64" is exact.
//
// Invariant: the buckets add up to count(); add() takes constant time and allocates nothing.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace treadle {

class Histogram {
public:
    static constexpr int sub_bucket_bits = 5;
    static constexpr size_t sub_buckets = size_t{1} << sub_bucket_bits;
    // Value 0; 32 buckets of one value; 32 buckets for each power of two from 2^5 to 2^62.
    static constexpr size_t buckets = 1 + (63 - sub_bucket_bits + 1) * sub_buckets;

    // A value below 0 (a clock that jumped back) counts as 0.
    void add(int64_t value) {
        if (value < 0) value = 0;
        counts_[bucket_of(value)]++;
        count_++;
        sum_ = value > INT64_MAX - sum_ ? INT64_MAX : sum_ + value;
        if (count_ == 1 || value < min_) min_ = value;
        if (value > max_) max_ = value;
    }

    uint64_t count() const { return count_; }
    int64_t sum() const { return sum_; }  // stays at INT64_MAX once it gets there
    int64_t min() const { return min_; }  // 0 while it is empty, like max, mean and the percentiles
    int64_t max() const { return max_; }
    double mean() const { return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_); }

    // The value that `percent` of the samples don't exceed (nearest rank): never below the true one, above it by at most 1/32 of
    // it, and within min() and max(). 100 or more is max(); 0, less, or not a number is min().
    int64_t percentile(double percent) const;

    // How many samples are at most `limit`. Samples in the bucket that `limit` cuts are left out: those within 1/32 below it may
    // be missing. Exact up to 64 and at powers of two.
    uint64_t count_at_most(int64_t limit) const;

    static size_t bucket_of(int64_t value) {  // value >= 0
        if (value == 0) return 0;
        const auto below = static_cast<uint64_t>(value) - 1;
        if (below < sub_buckets) return 1 + static_cast<size_t>(below);
        const int shift = 63 - sub_bucket_bits - std::countl_zero(below);
        return 1 + static_cast<size_t>(shift) * sub_buckets + static_cast<size_t>(below >> shift);
    }
    static int64_t last_of(size_t bucket);  // the greatest value that it holds

private:
    std::array<uint64_t, buckets> counts_{};
    uint64_t count_ = 0;
    int64_t sum_ = 0;
    int64_t min_ = 0;
    int64_t max_ = 0;
};

}  // namespace treadle
