// The histogram against sorted samples: no percentile below the true one, none more than 1/32 above it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "engine/histogram.h"

using namespace treadle;

namespace {

// Nearest rank, by its definition: the smallest sample such that at least `percent` of all don't exceed it.
int64_t true_percentile(const std::vector<int64_t>& sorted, double percent) {
    const double rank = std::ceil(percent / 100 * static_cast<double>(sorted.size()));
    return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

void compare(std::vector<int64_t> samples) {
    Histogram histogram;
    for (const int64_t sample : samples) histogram.add(sample);
    std::sort(samples.begin(), samples.end());
    CHECK(histogram.count() == samples.size());
    CHECK(histogram.min() == samples.front());
    CHECK(histogram.max() == samples.back());
    for (const double percent : {0.001, 1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.999}) {
        const int64_t expected = true_percentile(samples, percent);
        const int64_t got = histogram.percentile(percent);
        CAPTURE(percent);
        CHECK(got >= expected);
        CHECK(got - expected <= expected / 32);
    }
    CHECK(histogram.percentile(0) == samples.front());
    CHECK(histogram.percentile(100) == samples.back());
    for (size_t i = 0; i < samples.size(); i += 97) {
        const int64_t limit = samples[i];
        const auto at_most = [&](int64_t value) {
            return static_cast<uint64_t>(std::upper_bound(samples.begin(), samples.end(), value) -
                                         samples.begin());
        };
        CHECK(histogram.count_at_most(limit) <= at_most(limit));
        CHECK(histogram.count_at_most(limit) >= at_most(limit - limit / 32 - 1));
    }
}

}  // namespace

TEST_CASE("percentiles lie between the sorted samples' and 1/32 above") {
    std::mt19937_64 random(11);
    std::vector<int64_t> samples(20000);
    SUBCASE("counts below 100") {
        for (int64_t& sample : samples) sample = static_cast<int64_t>(random() % 100);
    }
    SUBCASE("evenly, up to an hour") {
        for (int64_t& sample : samples) sample = static_cast<int64_t>(random() % 3'600'000'000);
    }
    SUBCASE("over all powers of two") {
        for (int64_t& sample : samples) sample = static_cast<int64_t>(random() >> (1 + random() % 63));
    }
    SUBCASE("times as they are: log-normal with a tail") {
        std::lognormal_distribution<double> times(10, 2);
        for (int64_t& sample : samples) sample = static_cast<int64_t>(times(random));
    }
    SUBCASE("one value") { std::fill(samples.begin(), samples.end(), 12345); }
    compare(samples);
}

TEST_CASE("small numbers and powers of two are exact") {
    for (int64_t value = 0; value <= 64; value++) {
        Histogram histogram;
        histogram.add(value);
        histogram.add(1000);
        CHECK(histogram.percentile(50) == value);
        CHECK(histogram.count_at_most(value) == 1);
        CHECK(histogram.count_at_most(value - 1) == 0);
    }
    for (int shift = 0; shift < 62; shift++) {
        Histogram histogram;
        const int64_t power = int64_t{1} << shift;
        histogram.add(power);
        histogram.add(power + 1);
        histogram.add(INT64_MAX);
        CHECK(histogram.count_at_most(power) == 1);
        CHECK(histogram.percentile(1) == power);
    }
}

TEST_CASE("each bucket begins where the one before it ends") {
    for (size_t bucket = 0; bucket < Histogram::buckets; bucket++) {
        const int64_t last = Histogram::last_of(bucket);
        CHECK(Histogram::bucket_of(last) == bucket);
        if (last < INT64_MAX) CHECK(Histogram::bucket_of(last + 1) == bucket + 1);
        if (bucket == 0) continue;
        const int64_t first = Histogram::last_of(bucket - 1) + 1;
        CHECK(last - first <= first / 32);
    }
    CHECK(Histogram::last_of(Histogram::buckets - 1) == INT64_MAX);
}

TEST_CASE("an empty histogram, and the extremes") {
    Histogram histogram;
    CHECK(histogram.count() == 0);
    CHECK(histogram.percentile(50) == 0);
    CHECK(histogram.mean() == 0);
    CHECK(histogram.count_at_most(5) == 0);
    histogram.add(-5);  // a clock that jumped back
    histogram.add(INT64_MIN);
    histogram.add(0);
    CHECK(histogram.count() == 3);
    CHECK(histogram.sum() == 0);
    CHECK(histogram.max() == 0);
    CHECK(histogram.percentile(99) == 0);
    histogram.add(INT64_MAX);
    CHECK(histogram.percentile(99) == INT64_MAX);
    CHECK(histogram.percentile(50) == 0);
    histogram.add(INT64_MAX);
    CHECK(histogram.sum() == INT64_MAX);
    CHECK(histogram.max() == INT64_MAX);
    CHECK(histogram.count_at_most(INT64_MAX) == 5);
    CHECK(histogram.count_at_most(INT64_MAX - 1) == 3);
    CHECK(histogram.percentile(std::nan("")) == 0);
    CHECK(histogram.percentile(-3) == 0);
    CHECK(histogram.percentile(1e300) == INT64_MAX);
}
