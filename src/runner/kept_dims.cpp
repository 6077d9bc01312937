// The sample's passes, the energy of each pair, and the choice.
#include "runner/kept_dims.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/limits.h"
#include "base/philox.h"

namespace treadle {
namespace {

constexpr int32_t piece_tokens = 8;  // between two looks at progress
constexpr int32_t sample_blocks = kept_sample_tokens / limits::kv_block_tokens;

int32_t sample_token(int32_t position, int32_t vocabulary) {
    const uint64_t word = philox_words(0, 0, static_cast<uint32_t>(position))[0];
    return static_cast<int32_t>(word * static_cast<uint64_t>(vocabulary) >> 32);
}

// Computes the sample's tokens first .. first + piece_tokens - 1, whose slots are their positions.
Status run_piece(const Program& program, const RopeTable& rope, Backend& backend, int32_t first,
                 Error* error) {
    std::array<int32_t, piece_tokens> tokens;
    std::array<int32_t, piece_tokens> positions;
    std::pmr::vector<float> cos_sin(static_cast<size_t>(piece_tokens * rope.pairs() * 2), 0.0f,
                                    program.ops.get_allocator().resource());
    for (int32_t i = 0; i < piece_tokens; i++) {
        const auto at = static_cast<size_t>(i);
        positions[at] = first + i;
        tokens[at] = sample_token(first + i, program.vocabulary);
        rope.fill(first + i, cos_sin.data() + at * static_cast<size_t>(rope.pairs()) * 2);
    }
    std::array<int32_t, sample_blocks> block_table;
    std::iota(block_table.begin(), block_table.end(), 0);
    const AttentionWork work = {0, piece_tokens, first, 0};
    const GroupInput group = {
        .slots = positions, .block_table = block_table, .work = {&work, 1}, .copies = {}};
    const PassInput input = {.tokens = tokens,
                             .positions = positions,
                             .groups = {&group, 1},
                             .logit_rows = {},
                             .inverse_temperatures = {},
                             .cos_sin = cos_sin};
    AdvanceResult result;
    result.status = backend.begin(input, {piece_tokens, 0});
    result.state = PassState::more;
    while (result.status == Status::OK && result.state != PassState::done)
        result = backend.advance(INT64_MAX, 0);
    if (result.status == Status::OK) return Status::OK;
    return fail(error, result.status, "key_type tbq4x: the pass over sample tokens failed");
}

// The two dimensions of a pair: those that rotate together, then what is not rotated two by two.
std::array<int32_t, 2> dims_of_pair(const RopeWrite& rope, int32_t pair) {
    const int32_t rotated = rope.rotary_dims / 2;
    if (pair < rotated && rope.pair_order == PairOrder::halves) return {pair, pair + rotated};
    return {2 * pair, 2 * pair + 1};
}

// Energies of one head's pairs: sums of x0² + x1² over the sample, ascending, in double. NaN, which a broken model may yield
// and which has no place in an order, counts nothing.
Status measure(const Program& program, const Backend& backend, const RopeWrite& rope, int32_t kv_head,
               std::array<double, limits::head_dim_max / 2>* energies) {
    std::array<float, limits::head_dim_max> key;
    energies->fill(0);
    for (int32_t slot = 0; slot < kept_sample_tokens; slot++) {
        TREADLE_TRY(backend.read_key({rope.group, rope.layer, kv_head, slot}, key.data()));
        for (int32_t pair = 0; pair < program.head_dim / 2; pair++) {
            for (const int32_t d : dims_of_pair(rope, pair)) {
                const auto x = static_cast<double>(key[static_cast<size_t>(d)]);
                if (!std::isnan(x)) (*energies)[static_cast<size_t>(pair)] += x * x;
            }
        }
    }
    return Status::OK;
}

// The eighth of the pairs with most energy, ties to the lower one, as ascending dimensions.
void choose(const Program& program, const RopeWrite& rope,
            const std::array<double, limits::head_dim_max / 2>& energies, uint16_t* out) {
    std::array<int32_t, limits::head_dim_max / 2> pairs;
    const auto end = pairs.begin() + program.head_dim / 2;
    std::iota(pairs.begin(), end, 0);
    std::sort(pairs.begin(), end, [&](int32_t a, int32_t b) {
        const double of_a = energies[static_cast<size_t>(a)];
        const double of_b = energies[static_cast<size_t>(b)];
        return of_a != of_b ? of_a > of_b : a < b;
    });
    const int32_t kept_pairs = program.head_dim / 16;
    uint16_t* next = out;
    for (int32_t i = 0; i < kept_pairs; i++)
        for (const int32_t d : dims_of_pair(rope, pairs[static_cast<size_t>(i)]))
            *next++ = static_cast<uint16_t>(d);
    std::sort(out, next);
}

}  // namespace

Status choose_kept_dims(const Program& program, const RopeTable& rope, Backend& backend,
                        const ProgressHook& progress, std::pmr::vector<uint16_t>* out, Error* error) {
    TREADLE_TRY(backend.kv_create(program, sample_blocks, error));
    TREADLE_TRY(backend.build(program, {piece_tokens, 1}, error));
    for (int32_t done = 0; done < kept_sample_tokens; done += piece_tokens) {
        if (!progress.go_on(static_cast<uint64_t>(done), kept_sample_tokens)) return Status::STOPPED;
        TREADLE_TRY(run_piece(program, rope, backend, done, error));
    }
    std::pmr::vector<uint16_t> chosen(out->get_allocator());
    const auto kept = static_cast<size_t>(program.head_dim) / 8;
    std::array<double, limits::head_dim_max / 2> energies;
    for (const Op& op : program.ops) {  // layers of a group ascend
        const auto* write = std::get_if<RopeWrite>(&op);
        if (write == nullptr) continue;
        for (int32_t head = 0; head < program.kv_heads; head++) {
            TREADLE_TRY(measure(program, backend, *write, head, &energies));
            chosen.resize(chosen.size() + kept);
            choose(program, *write, energies, chosen.data() + chosen.size() - kept);
        }
    }
    if (!progress.go_on(kept_sample_tokens, kept_sample_tokens)) return Status::STOPPED;
    *out = std::move(chosen);
    return Status::OK;
}

}  // namespace treadle
