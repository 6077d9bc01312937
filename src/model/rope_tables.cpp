// Frequencies of the pairs, with the three ways to stretch a context: linear, yarn, and the factors of llama
// 3 files.
#include "model/rope_tables.h"

#include <algorithm>

#include "base/math.h"

namespace treadle {
namespace {

constexpr double two_pi = 0x1.921fb54442d18p+2;
constexpr double ln_2 = 0x1.62e42fefa39efp-1;

// Exact for the small numbers it is used on; the C library's would be a call on some machines.
double floor_of(double x) {
    const auto whole = static_cast<double>(static_cast<int64_t>(x));
    return whole > x ? whole - 1 : whole;
}

// How much a pair keeps its own angle, from 1 (fast pairs, which turned often while it was trained) to 0
// (slow ones). YaRN finds the pair that makes `turns` turns within the original context, cuts its index to a
// whole one, outward, and to 0 .. dims - 1.
class YarnRamp {
public:
    explicit YarnRamp(const RopeParameters& rope) {
        low_ = std::max(0.0, floor_of(pair_that_makes(rope, rope.beta_fast)));
        high_ = std::min(rope.rotary_dims - 1.0, -floor_of(-pair_that_makes(rope, rope.beta_slow)));
    }
    double kept(int32_t pair) const {
        const double slowness = (pair - low_) / std::max(0.001, high_ - low_);
        return 1 - std::clamp(slowness, 0.0, 1.0);
    }

private:
    static double pair_that_makes(const RopeParameters& rope, double turns) {
        const double pair = rope.rotary_dims * math::log2(rope.original_context / (turns * two_pi)) /
                            (2 * math::log2(rope.freq_base));
        return std::clamp(pair, -0x1p40, 0x1p40);
    }

    double low_;
    double high_;
};

}  // namespace

void RopeTable::make(const RopeParameters& rope, std::span<const float> factors) {
    const bool yarn = rope.scaling == RopeScaling::yarn;
    const int32_t pairs = rope.rotary_dims / 2;
    frequencies_.clear();
    frequencies_.reserve(static_cast<size_t>(pairs));
    for (int32_t i = 0; i < pairs; ++i) {
        double own = math::pow(rope.freq_base, -2.0 * i / rope.rotary_dims);
        if (!factors.empty()) own /= static_cast<double>(factors[static_cast<size_t>(i)]);
        const double interpolated = own / rope.factor;
        const double kept = yarn ? YarnRamp(rope).kept(i) : 0;
        frequencies_.push_back(interpolated * (1 - kept) + own * kept);
    }
    // Interpolation blurs the softmax; yarn sharpens it again through the length of what is rotated.
    amplitude_ = rope.attention_factor;
    if (yarn) amplitude_ *= 1 + 0.1 * (math::log2(rope.factor) * ln_2);
}

void RopeTable::fill(int32_t position, float* cos_sin) const {
    for (const double frequency : frequencies_) {
        const double angle = position * frequency;
        *cos_sin++ = static_cast<float>(math::cos(angle) * amplitude_);
        *cos_sin++ = static_cast<float>(math::sin(angle) * amplitude_);
    }
}

}  // namespace treadle
