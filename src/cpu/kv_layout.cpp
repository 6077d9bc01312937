// The offsets of kv_layout.h, computed once per cache.
#include "cpu/kv_layout.h"

#include "base/limits.h"

namespace treadle::cpu {

KvLayout kv_layout(const KvFormat& format, int32_t kv_heads) {
    constexpr size_t positions = limits::kv_block_tokens;
    constexpr size_t scale_bytes = 2 * positions;
    const auto heads = static_cast<size_t>(kv_heads);
    KvLayout layout;
    layout.format = format;
    layout.kv_heads = kv_heads;
    layout.group = format.group();
    layout.groups = format.groups();
    layout.kept = format.kept();
    layout.code_step = positions * static_cast<size_t>(format.code_bytes());
    layout.kept_at = heads * layout.code_step;
    layout.kept_step = positions * static_cast<size_t>(format.kept());
    layout.scales_at = layout.kept_at + heads * layout.kept_step;
    layout.scale_step = scale_bytes * static_cast<size_t>(layout.groups);
    layout.kept_scales_at = layout.scales_at + heads * layout.scale_step;
    const size_t end = layout.kept_scales_at + (layout.kept == 0 ? 0 : heads * scale_bytes);
    layout.block_bytes = (end + 63) / 64 * 64;
    return layout;
}

}  // namespace treadle::cpu
