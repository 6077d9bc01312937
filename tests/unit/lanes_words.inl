// Bodies of the list in lanes_words.h for one tier. The including file defines TREADLE_TEST_TIER and
// has included that tier's dots.

namespace {
namespace words {

using namespace treadle::cpu::TREADLE_TEST_TIER;

const float* floats(const uint32_t* bits) { return reinterpret_cast<const float*>(bits); }
const int32_t* integers(const uint32_t* bits) { return reinterpret_cast<const int32_t*>(bits); }
void give(uint32_t* out, F32x16 a) { store(reinterpret_cast<float*>(out), a); }
void give(uint32_t* out, I32x16 a) { store(reinterpret_cast<int32_t*>(out), a); }
Levels levels(const uint32_t* bits) { return load_levels(reinterpret_cast<const int8_t*>(bits) + 1); }
const uint8_t* nibbles(const uint32_t* bits) { return reinterpret_cast<const uint8_t*>(bits) + 1; }
uint32_t bits(float value) {
    uint32_t r;
    __builtin_memcpy(&r, &value, 4);
    return r;
}

struct Quads {
    int8_t at[64];  // activations, in ±127
};

Quads quads(const uint32_t* bits) {
    Quads r;
    __builtin_memcpy(r.at, bits, sizeof r.at);
    for (int8_t& value : r.at) value = value == -128 ? int8_t{127} : value;
    return r;
}

template <int count>
I32x16 dot_of_nibbles(I32x16 codes, const Quads& activations, Dot sum = dot_zero()) {
    if constexpr (count == 0) {
        return finish<0>(sum);
    } else {
        const I32x16 nibbles = bit_and(shift_right<count % 8>(codes), set1(0x0f0f0f0f));
        return dot_of_nibbles<count - 1>(codes, activations, dot(sum, nibbles, activations.at + 4 * (count - 1)));
    }
}

template <int plane>
I32x16 dot_of_plane(I32x16 codes, const Quads& activations) {
    Dot sum = dot_zero();
    for (int quad = 0; quad < 8; ++quad) sum = dot(sum, plane_of<plane>(codes), activations.at + 4 * quad);
    return finish<plane>(sum);
}

I32x16 dot_of_bytes(I32x16 codes, const Quads& activations) {
    const I32x16 total = dot_of_plane<0>(codes, activations);
    return byte_planes == 1 ? total : add(total, dot_of_plane<1>(codes, activations));
}

I32x16 look_up_bytes(const uint8_t* entries, I32x16 bytes) {
    const Table16 table = load_table(entries);
    const I32x16 indices = bit_and(bytes, set1(0x0f0f0f0f));
    const I32x16 found = look_up<0>(table, indices);
    return byte_planes == 1 ? found : bit_or(found, shift_left<4>(look_up<byte_planes - 1>(table, indices)));
}

I32x16 add_pairs_of(I32x16 i, I32x16 j) {
    int32_t values[32];
    store(values, i);
    store(values + 16, j);
    return load_add_pairs(values);
}

// In each body: x, y, z are the inputs as floats, i, j as integers, m is a mask.
#define TREADLE_TEST_WORDS(X)                                                                        \
    X("set1 f32", true, false, give(out, set1(floats(in.a)[3])))                                     \
    X("set1 i32", false, false, give(out, set1(integers(in.a)[3])))                                  \
    X("zero_f32", true, false, give(out, zero_f32()))                                                \
    X("lane_numbers", false, false, give(out, lane_numbers()))                                       \
    X("load_first", true, false, give(out, load_first(floats(in.a), in.count)))                      \
    X("store_first", true, false, store_first(reinterpret_cast<float*>(out), x, in.count))           \
    X("load_i8", false, false, give(out, load_i8(reinterpret_cast<const int8_t*>(in.a) + 1)))        \
    X("load_u8", false, false, give(out, load_u8(reinterpret_cast<const uint8_t*>(in.a) + 1)))       \
    X("store_i8", false, false, store_i8(reinterpret_cast<int8_t*>(out), shift_right_signed<24>(i))) \
    X("load_f16", true, false, give(out, load_f16(reinterpret_cast<const uint16_t*>(in.a))))         \
    X("load_bf16", true, false, give(out, load_bf16(reinterpret_cast<const uint16_t*>(in.a))))       \
    X("store_f16", false, true, store_f16(reinterpret_cast<uint16_t*>(out), x))                      \
    X("add f32", true, false, give(out, add(x, y)))                                                  \
    X("sub f32", true, false, give(out, sub(x, y)))                                                  \
    X("mul", true, false, give(out, mul(x, y)))                                                      \
    X("div", true, false, give(out, div(x, y)))                                                      \
    X("sqrt", true, false, give(out, sqrt(x)))                                                       \
    X("fma", true, false, give(out, fma(x, y, z)))                                                   \
    X("min", true, false, give(out, min(x, y)))                                                      \
    X("max f32", true, false, give(out, max(x, y)))                                                  \
    X("add i32", false, false, give(out, add(i, j)))                                                 \
    X("sub i32", false, false, give(out, sub(i, j)))                                                 \
    X("max i32", false, false, give(out, max(i, j)))                                                 \
    X("shift_left", false, false, give(out, shift_left<5>(i)))                                       \
    X("shift_right", false, false, give(out, shift_right<5>(i)))                                     \
    X("shift_right_signed", false, false, give(out, shift_right_signed<5>(i)))                       \
    X("bits_of, f32_of_bits", false, false, give(out, bits_of(f32_of_bits(i))))                      \
    X("bit_and", false, false, give(out, bit_and(i, j)))                                             \
    X("bit_or", false, false, give(out, bit_or(i, j)))                                               \
    X("bit_xor", false, false, give(out, bit_xor(i, j)))                                             \
    X("to_f32", true, false, give(out, to_f32(i)))                                                   \
    X("to_i32", false, false, give(out, to_i32(x)))                                                  \
    X("less f32", false, false, give(out, less(x, y)))                                               \
    X("equal", false, false, give(out, equal(x, y)))                                                 \
    X("less i32", false, false, give(out, less(i, j)))                                               \
    X("select f32", true, false, give(out, select(m, x, z)))                                         \
    X("select i32", false, false, give(out, select(m, i, j)))                                        \
    X("mask_bits", false, false, out[0] = mask_bits(m))                                              \
    X("swap_lanes<8>", true, false, give(out, swap_lanes<8>(x)))                                     \
    X("swap_lanes<4>", true, false, give(out, swap_lanes<4>(x)))                                     \
    X("swap_lanes<2>", true, false, give(out, swap_lanes<2>(x)))                                     \
    X("swap_lanes<1>", true, false, give(out, swap_lanes<1>(x)))                                     \
    X("look_up<0>", true, false, give(out, look_up<0>(levels(in.b), nibbles(in.a))))                 \
    X("look_up<1>", true, false, give(out, look_up<1>(levels(in.b), nibbles(in.a))))                 \
    X("sum f32", true, false, out[0] = bits(sum(x)))                                                 \
    X("sum i32", false, false, out[0] = static_cast<uint32_t>(sum(shift_right_signed<5>(i))))        \
    X("max_lane f32", true, false, out[0] = bits(max_lane(x)))                                       \
    X("max_lane i32", false, false, out[0] = static_cast<uint32_t>(max_lane(i)))                     \
    X("load_line", false, false, give(out, load_line(reinterpret_cast<const uint8_t*>(in.a))))       \
    X("load_add_pairs", false, false,                                                                \
      give(out, add_pairs_of(shift_right_signed<1>(i), shift_right_signed<1>(j))))                   \
    X("dot of nibbles", false, false, give(out, dot_of_nibbles<8>(i, quads(in.b))))                  \
    X("dot of bytes", false, false, give(out, dot_of_bytes(i, quads(in.b))))                         \
    X("look_up", false, false, give(out, look_up_bytes(reinterpret_cast<const uint8_t*>(in.b), i)))

#define TREADLE_TEST_WORD_ENTRY(name, f32, f16, body)            \
    {name, f32, f16, [](const LanesInput& in, uint32_t* out) {   \
         [[maybe_unused]] const F32x16 x = load(floats(in.a));   \
         [[maybe_unused]] const F32x16 y = load(floats(in.b));   \
         [[maybe_unused]] const F32x16 z = load(floats(in.c));   \
         [[maybe_unused]] const I32x16 i = load(integers(in.a)); \
         [[maybe_unused]] const I32x16 j = load(integers(in.b)); \
         [[maybe_unused]] const I32x16 m = less(i, j);           \
         body;                                                   \
     }},

constexpr LanesWord list[] = {TREADLE_TEST_WORDS(TREADLE_TEST_WORD_ENTRY)};

LanesWords all() {
    static_assert(sizeof list / sizeof list[0] <= lanes_words_max);
    LanesWords r = {};
    for (const LanesWord& word : list) r.words[r.count++] = word;
    r.fma = [](const float* a, const float* b, const float* c, float* out) {
        store(out, fma(load(a), load(b), load(c)));
    };
    return r;
}

}  // namespace words
}  // namespace
