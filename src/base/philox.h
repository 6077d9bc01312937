// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011), the generator of the draws.
// It has no state: a draw is a function of what it is for, so it doesn't depend on when or beside whom it is made.
//
//     key      seed: low word, high word
//     counter  index of the sample: low word · absolute position · index of the sample: high word · 0
//
// Invariant: the layout never changes; a seed means the same tokens for ever.
#pragma once

#include <array>
#include <cstdint>

namespace treadle {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
        const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
        counter = {
            static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
            static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return counter;
}

// The four words that belong to the token at `position` of a sample.
constexpr PhiloxCounter philox_words(uint64_t seed, uint64_t sample_index, uint32_t position) {
    return philox4x32_10(
        {static_cast<uint32_t>(sample_index), position, static_cast<uint32_t>(sample_index >> 32), 0},
        {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// The draw of rule 7: uniform in [0, 1), a multiple of 2^-24.
constexpr double philox_uniform(uint64_t seed, uint64_t sample_index, uint32_t position) {
    return static_cast<double>(philox_words(seed, sample_index, position)[0] >> 8) * 0x1p-24;
}

}  // namespace treadle
