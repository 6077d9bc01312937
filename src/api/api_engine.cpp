// Engines: creating, stepping, questions about them.
#include <algorithm>
#include <cstdio>

#include "api/handles.h"
#include "api/structs.h"
#include "base/float_mode.h"
#include "base/limits.h"
#include "base/platform.h"
#include "ops/backend.h"
#include "runner/kept_dims.h"

namespace treadle {

namespace {

engine_params default_engine_params() {
    const EngineParams defaults;
    engine_params params = {};
    params.max_sequences = defaults.max_sequences;
    params.max_batch_tokens = defaults.max_batch_tokens;
    params.max_requests = defaults.max_requests;
    params.watermark_blocks = defaults.watermark_blocks;
    params.prefix_cache = defaults.prefix_cache ? 1 : 0;
    params.prefix_cache_blocks = defaults.prefix_cache_blocks;
    return params;
}

struct HandleOwner {
    engine* handle;
    ~HandleOwner() { engine_destroy(handle); }
};

ProgressHook progress_of(const engine_params& params) {
    if (params.progress == nullptr) return {};
    return {const_cast<engine_params*>(&params), [](void* user, uint64_t done, uint64_t total) {
                const auto* self = static_cast<const engine_params*>(user);
                return self->progress(self->progress_user, done, total) != 0;
            }};
}

// The dimensions that tbq4x keeps, chosen by the first engine that asks; others wait for it.
Status find_kept_dims(engine* handle, const BackendParams& backend_params, const ProgressHook& progress,
                      Error* error) {
    engine_model& model = *handle->model;
    const std::lock_guard lock(model.kept_dims_lock);
    if (model.kept_dims.empty()) {
        Owned<Backend> backend;
        TREADLE_TRY(
            model.model->weight_store().make_backend(backend_params, handle->memory, &backend, error));
        TREADLE_TRY(choose_kept_dims(model.program, model.model->rope_table(), *backend, progress,
                                     &model.kept_dims, error));
    }
    handle->program.kept_dims.assign(model.kept_dims.begin(), model.kept_dims.end());
    return Status::OK;
}

// Gives the handle its program, with the formats of its cache, and the id of the numbers that come of both.
Status make_program(engine* handle, const engine_params& params, const BackendParams& backend_params,
                    Error* error) {
    const engine_model& model = *handle->model;
    const auto keys = static_cast<KvType>(params.key_type);
    const auto values = static_cast<KvType>(params.value_type);
    TREADLE_TRY(check_kv_format("key_type", {keys, model.program.head_dim}, true, error));
    TREADLE_TRY(check_kv_format("value_type", {values, model.program.head_dim}, false, error));
    if (keys == KvType::tbq4x)
        TREADLE_TRY(find_kept_dims(handle, backend_params, progress_of(params), error));
    std::pmr::vector<uint16_t> kept_dims = std::move(handle->program.kept_dims);
    handle->program = model.program;
    handle->program.kept_dims = std::move(kept_dims);
    for (KvGroup& group : handle->program.groups) {
        group.key_type = keys;
        group.value_type = values;
    }
    const char* id = model.model->weight_store().numerics_id();
    if (keys == KvType::f16 && values == KvType::f16)
        std::snprintf(handle->numerics_id, sizeof handle->numerics_id, "%s", id);
    else
        std::snprintf(handle->numerics_id, sizeof handle->numerics_id, "%s:%s/%s", id, kv_type_name(keys),
                      kv_type_name(values));
    return Status::OK;
}

Status create(engine_model* model, const engine_params* in, engine** out, Error* error) {
    *out = nullptr;
    engine_params params = default_engine_params();
    TREADLE_TRY(api::read_struct("engine_params", in, &params, error));
    EngineParams wanted;
    wanted.max_sequences = params.max_sequences;
    wanted.max_batch_tokens = params.max_batch_tokens;
    wanted.max_requests = params.max_requests;
    wanted.context_length = params.context_length;
    wanted.kv_blocks = params.kv_blocks;
    if (params.memory_policy != ENGINE_MEMORY_PREEMPT && params.memory_policy != ENGINE_MEMORY_RESERVE)
        return fail(error, Status::INVALID_ARGUMENT, "memory_policy is %d, which is no policy",
                    params.memory_policy);
    wanted.memory_policy = static_cast<MemoryPolicy>(params.memory_policy);
    wanted.watermark_blocks = params.watermark_blocks;
    wanted.prefix_cache = params.prefix_cache != 0;
    wanted.prefix_cache_blocks = params.prefix_cache_blocks;
    wanted.itl_target_us = params.itl_target_us;
    wanted.trace_events = params.trace_events;
    wanted.threads = model->threads;
    wanted.clock = params.clock == nullptr ? system_clock() : ClockHook{params.clock_user, params.clock};
    wanted.wake = params.wake;
    wanted.wake_user = params.wake_user;

    const FloatMode float_mode;
    HandleOwner owner{api::make_handle<engine>(model->hooks, model)};
    if (owner.handle == nullptr) throw std::bad_alloc();
    api::retain(model);
    const BackendParams backend_params = {model->threads, model->parallel_for, wanted.clock};
    TREADLE_TRY(make_program(owner.handle, params, backend_params, error));
    Owned<Backend> backend;
    TREADLE_TRY(
        model->model->weight_store().make_backend(backend_params, owner.handle->memory, &backend, error));
    const EngineModel parts = {&owner.handle->program, &model->model->rope_table(),
                               &model->model->vocabulary(), model->model->facts().fingerprint,
                               owner.handle->numerics_id};
    TREADLE_TRY(make_engine(owner.handle->memory, parts, model->model->hyper_parameters().context, wanted,
                            std::move(backend), &owner.handle->core, error));
    *out = std::exchange(owner.handle, nullptr);
    return Status::OK;
}

}  // namespace

extern "C" {

ENGINE_API engine_status engine_params_init(engine_params* params, size_t size) {
    return api::init_struct(params, size, default_engine_params());
}

ENGINE_API engine_status engine_create(engine_model* model, const engine_params* params, engine** out,
                                       engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(model);
        TREADLE_REQUIRE(out);
        return create(model, params, out, error);
    });
}

ENGINE_API void engine_destroy(engine* e) {
    if (e == nullptr) return;
    engine_model* model = e->model;
    api::end_handle(e);
    engine_model_free(model);
}

ENGINE_API engine_status engine_info_init(engine_info* info, size_t size) {
    return api::init_struct(info, size, engine_info{});
}

ENGINE_API engine_status engine_get_info(engine* e, engine_info* info) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        TREADLE_REQUIRE(info);
        const EngineParams& params = e->core->params();
        engine_info value = {};
        value.threads = params.threads;
        value.max_sequences = params.max_sequences;
        value.max_batch_tokens = params.max_batch_tokens;
        value.max_requests = params.max_requests;
        value.context_length = params.context_length;
        value.kv_blocks = params.kv_blocks;
        value.kv_block_tokens = limits::kv_block_tokens;
        value.kv_block_bytes = e->core->kv_bytes_per_block();
        value.kv_bytes = e->memory.kv.bytes_in_use();
        value.scratch_bytes = e->memory.scratch.bytes_in_use();
        value.other_bytes = e->memory.other.bytes_in_use();
        value.key_type = static_cast<int32_t>(e->program.groups.front().key_type);
        value.value_type = static_cast<int32_t>(e->program.groups.front().value_type);
        api::copy_text(value.numerics_id, sizeof value.numerics_id, e->numerics_id,
                       std::strlen(e->numerics_id));
        return api::write_struct("engine_info", info, value, error);
    });
}

ENGINE_API engine_status engine_step_params_init(engine_step_params* params, size_t size) {
    return api::init_struct(params, size, engine_step_params{});
}

ENGINE_API engine_status engine_step_report_init(engine_step_report* report, size_t size) {
    return api::init_struct(report, size, engine_step_report{});
}

ENGINE_API engine_status engine_step(engine* e, const engine_step_params* in, engine_step_report* out) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        engine_step_params params = {};
        TREADLE_TRY(api::read_struct("engine_step_params", in, &params, error));
        if (params.budget_us < 0 || params.max_threads < 0) return Status::INVALID_ARGUMENT;
        engine_step_report value = {};
        if (out != nullptr) TREADLE_TRY(api::check_size("engine_step_report", out->struct_size, error));
        StepReport report;
        const Status status = e->core->step({params.budget_us, params.max_threads}, &report);
        if (out == nullptr || status == Status::BUSY) return status;
        value.passes = report.passes;
        value.tokens_computed = report.tokens_computed;
        value.tokens_produced = report.tokens_produced;
        value.running = report.running;
        value.waiting = report.waiting;
        value.waiting_poll = report.waiting_poll;
        value.free_blocks = report.free_blocks;
        value.time_us = report.time_us;
        value.worst_tile_us = report.worst_tile_us;
        value.next_step_us = report.next_step_us;
        value.paused = report.paused;
        value.preemptions = report.preemptions;
        TREADLE_TRY(api::write_struct("engine_step_report", out, value, error));
        return status;
    });
}

}  // extern "C"

}  // namespace treadle
