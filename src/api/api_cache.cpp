// What stays in the KV cache, and what goes: pins and trim.
#include "api/handles.h"
#include "api/params.h"
#include "api/prompt.h"
#include "api/structs.h"
#include "base/limits.h"

namespace treadle {

namespace {

engine_pin_params default_pin_params() {
    engine_pin_params params = {};
    params.part_size = sizeof(engine_part);
    params.priority = ENGINE_PRIORITY_NORMAL;
    return params;
}

Status pin(engine* e, const engine_pin_params* in, engine_request* id, Error* error) {
    engine_pin_params params = default_pin_params();
    TREADLE_TRY(api::read_struct("engine_pin_params", in, &params, error));
    RequestParams wanted(&e->memory.other);
    TREADLE_TRY(api::read_priority(params.priority, &wanted.priority, error));
    wanted.scope.salt = params.cache_salt;
    std::pmr::vector<int32_t> prefix(&e->memory.other);
    TREADLE_TRY(
        api::build_prefix(*e->model, params.parts, params.part_size, params.part_count, &prefix, error));
    if (prefix.empty())
        return fail(error, Status::INVALID_ARGUMENT, "the prefix has no token in its %zu parts",
                    params.part_count);
    if (prefix.size() > limits::context_max)
        return fail(error, Status::PROMPT_TOO_LONG, "the prefix has %zu tokens, at most %u are taken",
                    prefix.size(), limits::context_max);
    return e->core->pin(std::move(wanted), std::move(prefix), id, error);
}

}  // namespace

extern "C" {

ENGINE_API engine_status engine_pin_params_init(engine_pin_params* params, size_t size) {
    return api::init_struct(params, size, default_pin_params());
}

ENGINE_API engine_status engine_pin(engine* e, const engine_pin_params* params, engine_request* id,
                                    engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(e);
        TREADLE_REQUIRE(params);
        TREADLE_REQUIRE(id);
        return pin(e, params, id, error);
    });
}

ENGINE_API engine_status engine_unpin(engine* e, engine_request id) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        return e->core->unpin(id);
    });
}

ENGINE_API engine_status engine_trim(engine* e, uint64_t* bytes) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(e);
        const uint64_t given_back = e->core->trim();
        if (bytes != nullptr) *bytes = given_back;
        return Status::OK;
    });
}

}  // extern "C"

}  // namespace treadle
