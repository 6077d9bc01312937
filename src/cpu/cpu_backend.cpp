// The CPU backend: plan, buffers and cursor put together behind the interface of ops/backend.h.
#include "cpu/cpu_backend.h"

#include "base/float16.h"
#include "base/limits.h"
#include "cpu/pass_buffers.h"
#include "cpu/pass_cursor.h"
#include "cpu/pass_plan.h"
#include "cpu/pass_tiles.h"
#include "cpu/weight_store.h"

namespace treadle::cpu {
namespace {

class CpuBackend final : public Backend {
public:
    CpuBackend(const CpuWeightStore& store, const BackendParams& params, MemorySet& memory)
        : store_(store), params_(params), memory_(memory), plan_(&memory.other), buffers_(&memory.other),
          cuts_(&memory.other), tiles_(&memory.other) {}

    size_t kv_bytes_per_block(const Program& program) const override;
    [[nodiscard]] Status kv_create(const Program& program, int32_t blocks, Error* error) override;
    void* kv_allocate(int32_t slab) override { return buffers_.allocate_slab(slab); }
    void kv_free(int32_t slab, void* memory) override { buffers_.free_slab(slab, memory); }
    void* kv_exchange(int32_t slab, void* memory) override { return buffers_.exchange_slab(slab, memory); }
    [[nodiscard]] Status read_key(const KvRow& row, float* out) const override;
    [[nodiscard]] Status build(const Program& program, Dims max, Error* error) override;
    [[nodiscard]] Status begin(const PassInput& input, Dims dims) override;
    AdvanceResult advance(int64_t deadline_ns, int32_t max_threads) override;
    void abandon() override;
    PassResults results() const override;

private:
    Cut cut_copies() const;
    Cut cut_attend(const Region& region) const;
    Cut cut(const Region& region) const;
    int32_t parts_of_block(const Region& region, const Cut& cut, int32_t block) const;
    static void run_tile(void* context, int32_t region, int32_t tile, int32_t thread);

    const CpuWeightStore& store_;
    const BackendParams params_;
    MemorySet& memory_;
    PassPlan plan_;
    PassBuffers buffers_;
    std::pmr::vector<Cut> cuts_;       // (regions)
    std::pmr::vector<int32_t> tiles_;  // (regions)
    bool under_way_ = false;           // from begin until advance said done, or abandon
    bool has_results_ = false;
    Owned<PassCursor> cursor_;  // last: its workers end before what they work on
};

size_t CpuBackend::kv_bytes_per_block(const Program& program) const {
    size_t bytes = 0;
    for (const KvGroup& group : program.groups) {
        bytes += static_cast<size_t>(group.layers) * (kv_layout(group.keys(), group.kv_heads).block_bytes +
                                                      kv_layout(group.values(), group.kv_heads).block_bytes);
    }
    return bytes;
}

Status CpuBackend::kv_create(const Program& program, int32_t blocks, Error* error) {
    if (!buffers_.caches.empty()) return fail(error, Status::INTERNAL, "the cache was made before");
    constexpr int32_t blocks_max = INT32_MAX / limits::kv_block_tokens;  // slots are int32
    if (blocks < 1 || blocks > blocks_max) {
        return fail(error, Status::LIMIT, "kv blocks: %d; there may be 1 to %d", static_cast<int>(blocks),
                    static_cast<int>(blocks_max));
    }
    size_t kept_dims = 0;
    for (const KvGroup& group : program.groups) {
        const auto within = [](int32_t value, uint32_t limit) {
            return value >= 1 && static_cast<uint32_t>(value) <= limit;
        };
        if (!within(group.layers, limits::layers_max) || !within(group.kv_heads, limits::heads_max) ||
            !within(group.head_dim, limits::head_dim_max)) {
            return fail(error, Status::LIMIT,
                        "a group of %d layers with %d kv_heads of %d is beyond the limits",
                        static_cast<int>(group.layers), static_cast<int>(group.kv_heads),
                        static_cast<int>(group.head_dim));
        }
        TREADLE_TRY(check_kv_format("key_type", group.keys(), true, error));
        TREADLE_TRY(check_kv_format("value_type", group.values(), false, error));
        for (size_t i = 0; i < group.kept_dims(); ++i, ++kept_dims) {
            if (kept_dims >= program.kept_dims.size() || program.kept_dims[kept_dims] >= group.head_dim)
                return fail(error, Status::INTERNAL, "kept dimension %zu of %zu is missing or out of range",
                            kept_dims, program.kept_dims.size());
        }
    }
    buffers_.create_cache(program, blocks, &memory_.other, &memory_.kv);
    return Status::OK;
}

Status CpuBackend::read_key(const KvRow& row, float* out) const {
    const LayerCache cache = buffers_.caches[static_cast<size_t>(row.group)].layer(row.layer);
    if (cache.keys.format.type != KvType::f16) return Status::INTERNAL;
    const uint8_t* codes = cache.key_block(row.slot / limits::kv_block_tokens) +
                           static_cast<size_t>(row.kv_head) * cache.keys.code_step;
    const auto* halves = reinterpret_cast<const uint16_t*>(codes) + row.slot % limits::kv_block_tokens;
    for (int32_t d = 0; d < cache.keys.format.head_dim; ++d)
        out[d] = f32_from_f16(halves[d * limits::kv_block_tokens]);
    return Status::OK;
}

Status CpuBackend::build(const Program& program, Dims max, Error* error) {
    if (cursor_ != nullptr) return fail(error, Status::INTERNAL, "a program was built before");
    if (buffers_.caches.size() != program.groups.size()) {
        return fail(error, Status::INTERNAL, "the cache has %zu groups, the program %zu",
                    buffers_.caches.size(), program.groups.size());
    }
    for (size_t i = 0; i < program.groups.size(); ++i) {
        if (buffers_.caches[i].layers != program.groups[i].layers) {
            return fail(error, Status::INTERNAL, "the cache has %d layers, the program %d",
                        static_cast<int>(buffers_.caches[i].layers),
                        static_cast<int>(program.groups[i].layers));
        }
    }
    if (max.tokens < 1 || max.tokens > limits::batch_tokens_max || max.logit_rows < 1 ||
        max.logit_rows > max.tokens) {
        return fail(error, Status::LIMIT,
                    "passes of %d tokens and %d rows of logits; tokens may be 1 to %d, rows 1 to tokens",
                    static_cast<int>(max.tokens), static_cast<int>(max.logit_rows),
                    static_cast<int>(limits::batch_tokens_max));
    }
    TREADLE_TRY(plan_.compile(program, store_, error));
    buffers_.allocate(plan_, program, max, params_.threads, &memory_.scratch);
    cuts_.resize(plan_.regions.size());
    tiles_.resize(plan_.regions.size());
    auto cursor =
        make_owned<PassCursor>(&memory_.other, &memory_.other, static_cast<int32_t>(plan_.regions.size()),
                               params_, TileJob{this, run_tile});
    TREADLE_TRY(cursor->start_threads(&memory_.other, error));
    cursor_ = std::move(cursor);
    return Status::OK;
}

Cut CpuBackend::cut_copies() const {
    constexpr double block_ns = 2000;  // of one layer
    int32_t layers = 0;
    int32_t copies = 0;
    for (size_t i = 0; i < buffers_.groups.size(); ++i) {
        layers += buffers_.caches[i].layers;
        copies += buffers_.groups[i].copy_count;
    }
    return cut_evenly(copies == 0 ? 0 : layers, 1, 1, block_ns * copies * layers, params_.threads);
}

Cut CpuBackend::cut_attend(const Region& region) const {
    const auto& op = std::get<Attend>(plan_.steps_of(region).front().op);
    const GroupPass& group = buffers_.groups[static_cast<size_t>(op.group)];
    Cut cut;
    cut.row_blocks = group.unit_count;
    cut.tiles = group.tiles;
    return cut;
}

Cut CpuBackend::cut(const Region& region) const {
    if (region.kind == RegionKind::copies) return cut_copies();
    if (region.kind == RegionKind::attend) return cut_attend(region);
    return plan_.cut(region, buffers_.dims, store_.kernels().rates, params_.threads);
}

int32_t CpuBackend::parts_of_block(const Region& region, const Cut& cut, int32_t block) const {
    if (region.kind != RegionKind::attend) return cut.ranges;
    const auto& op = std::get<Attend>(plan_.steps_of(region).front().op);
    const GroupPass& group = buffers_.groups[static_cast<size_t>(op.group)];
    return plan_.kv_heads * group.units[static_cast<size_t>(block)].pieces;
}

Status CpuBackend::begin(const PassInput& input, Dims dims) {
    if (cursor_ == nullptr || under_way_) return Status::INTERNAL;
    TREADLE_TRY(buffers_.take(input, dims, plan_));
    under_way_ = true;
    has_results_ = false;
    buffers_.cut_attention(plan_, store_.kernels().rates, params_.threads);
    int32_t counters = 0;
    for (size_t i = 0; i < plan_.regions.size(); ++i) {
        const Region& region = plan_.regions[i];
        cuts_[i] = cut(region);
        tiles_[i] = cuts_[i].tiles;
        if (!region.counts_parts()) continue;
        cuts_[i].first_counter = counters;
        for (int32_t block = 0; block < cuts_[i].row_blocks; ++block)
            buffers_.unfinished[static_cast<size_t>(counters++)] = parts_of_block(region, cuts_[i], block);
    }
    cursor_->begin(tiles_);
    return Status::OK;
}

AdvanceResult CpuBackend::advance(int64_t deadline_ns, int32_t max_threads) {
    if (cursor_ == nullptr) return {Status::INTERNAL, PassState::done, 0};
    if (!under_way_) return {};
    const AdvanceResult result = cursor_->advance(deadline_ns, max_threads);
    if (result.state == PassState::done) {
        under_way_ = false;
        has_results_ = true;
    }
    return result;
}

void CpuBackend::abandon() {
    if (!under_way_) return;
    cursor_->abandon();
    under_way_ = false;
}

PassResults CpuBackend::results() const {
    if (!has_results_) return {};
    return {{buffers_.results.data(), static_cast<size_t>(buffers_.dims.logit_rows)}, buffers_.logits.data()};
}

void CpuBackend::run_tile(void* context, int32_t region, int32_t tile, int32_t thread) {
    auto* self = static_cast<CpuBackend*>(context);
    const auto index = static_cast<size_t>(region);
    const PassTiles tiles{self->store_.kernels(), self->plan_, self->buffers_};
    tiles.run(self->plan_.regions[index], self->cuts_[index], tile, thread);
}

}  // namespace

Status CpuWeightStore::make_backend(const BackendParams& params, MemorySet& memory, Owned<Backend>* out,
                                    Error* error) {
    if (params.threads < 1 || params.threads > limits::threads_max) {
        return fail(error, Status::INVALID_ARGUMENT, "threads: %d; there may be 1 to %d",
                    static_cast<int>(params.threads), static_cast<int>(limits::threads_max));
    }
    if (params.clock.now_ns == nullptr) return fail(error, Status::INVALID_ARGUMENT, "clock: it is null");
    std::call_once(settled_, [&] { settle(params.parallel_for.run == nullptr && params.threads > 1); });
    *out = make_owned<CpuBackend>(&memory.other, *this, params, memory);
    return Status::OK;
}

}  // namespace treadle::cpu
