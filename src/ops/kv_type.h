// How keys and values are kept in the cache: the types, which heads they fit, and what they take. Backends lay them out as they
// like; the planner, the api and the backends take the sizes from here.
//
//     f16     2 bytes a value
//     q8_0    groups of 32: int8 each, one f16 scale
//     tbq4    groups of 128 (64 where head_dim is 64): rotated by a Walsh–Hadamard transform, 4-bit codes of a fixed table, one
//             f16 scale. After TurboQuant (https://arxiv.org/abs/2504.19874), with integer levels and the least-squares scale
//     tbq4x   for keys: an eighth of the rotary pairs, those of most energy, apart as int8 with one f16 scale; the rest as tbq4
#pragma once

#include <cstdint>

#include "base/status.h"

namespace treadle {

// Numbers are the public ones.
enum class KvType : int32_t { f16 = 0, q8_0 = 1, tbq4 = 2, tbq4x = 3 };

// "f16", …; "?" for what is no type.
const char* kv_type_name(KvType type);

// One of the two sides of the cache: keys, or values.
struct KvFormat {
    KvType type = KvType::f16;
    int32_t head_dim = 0;

    // Values that share a scale; 0: there are no scales.
    constexpr int32_t group() const {
        if (type == KvType::f16) return 0;
        return type == KvType::q8_0 ? 32 : head_dim == 64 ? 64 : 128;
    }
    constexpr int32_t groups() const { return group() == 0 ? 0 : head_dim / group(); }
    constexpr bool rotated() const { return type == KvType::tbq4 || type == KvType::tbq4x; }
    constexpr int32_t kept() const { return type == KvType::tbq4x ? head_dim / 8 : 0; }  // dimensions apart

    // Of one position of one KV head.
    constexpr int32_t code_bytes() const {
        return type == KvType::f16 ? 2 * head_dim : type == KvType::q8_0 ? head_dim : head_dim / 2;
    }
    constexpr int32_t bytes() const { return code_bytes() + 2 * groups() + (kept() == 0 ? 0 : kept() + 2); }
};

// INVALID_ARGUMENT names `field` where the format fits no head of that size, or is none; is_key: tbq4x is for keys only.
[[nodiscard]] Status check_kv_format(const char* field, const KvFormat& format, bool is_key, Error* error);

}  // namespace treadle
