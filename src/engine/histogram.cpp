// Reading a histogram: the walk over its buckets.
#include "engine/histogram.h"

#include <algorithm>

namespace treadle {

int64_t Histogram::last_of(size_t bucket) {
    if (bucket <= sub_buckets) return static_cast<int64_t>(bucket);
    const size_t shift = (bucket - 1) / sub_buckets - 1;
    const uint64_t leading =
        (bucket - 1) % sub_buckets + sub_buckets;  // 32 … 63, the leading bits of its values
    // One more than the last value minus one; 2^63 for the last bucket of all, which ends at INT64_MAX.
    const uint64_t end = (leading + 1) << shift;
    return end > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(end);
}

int64_t Histogram::percentile(double percent) const {
    if (count_ == 0 || !(percent > 0)) return min_;
    if (percent >= 100) return max_;
    const double exact = percent / 100 * static_cast<double>(count_);
    auto rank = static_cast<uint64_t>(exact);
    if (static_cast<double>(rank) < exact || rank == 0) rank++;
    uint64_t seen = 0;
    for (size_t bucket = bucket_of(min_); bucket < buckets; bucket++) {
        seen += counts_[bucket];
        if (seen >= rank) return std::clamp(last_of(bucket), min_, max_);
    }
    return max_;
}

uint64_t Histogram::count_at_most(int64_t limit) const {
    if (limit >= max_) return count_;
    if (limit < min_) return 0;
    uint64_t seen = 0;
    for (size_t bucket = bucket_of(min_); bucket < buckets && last_of(bucket) <= limit; bucket++)
        seen += counts_[bucket];
    return seen;
}

}  // namespace treadle
