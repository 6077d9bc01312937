// Sessions: saving a sequence into the host's buffer, callback or file, and restoring it from there. No lock is held while bytes
// are made or read.
#include <optional>

#include "api/handles.h"
#include "api/params.h"
#include "api/structs.h"
#include "base/limits.h"
#include "engine/session.h"
#include "engine/session_file.h"

namespace treadle {

namespace {

engine_session_params default_session_params() {
    engine_session_params params = {};
    params.priority = ENGINE_PRIORITY_NORMAL;
    params.prefix_cache = 1;
    params.logprobs = -1;
    return params;
}

// Which sequence is to be saved.
struct Place {
    engine_request id;
    int32_t sequence;
    int32_t position;
};

Status read_state(engine* e, const Place& place, SessionState* out, Error* error) {
    std::optional<int32_t> position;
    if (place.position != -1) position = place.position;
    return e->core->save_session(place.id, place.sequence, position, out, error);
}

Status read_params(const engine_session_params* in, RestoreParams* out, Error* error) {
    engine_session_params params = default_session_params();
    TREADLE_TRY(api::read_struct("engine_session_params", in, &params, error));
    TREADLE_TRY(api::read_priority(params.priority, &out->priority, error));
    if (params.logprobs < -1 || params.logprobs > limits::logprobs_max)
        return fail(error, Status::INVALID_ARGUMENT, "logprobs is %d, must be -1 to %d", params.logprobs,
                    limits::logprobs_max);
    TREADLE_TRY(api::read_deadline(params.deadline_us, &out->deadline_us, error));
    out->keep = params.keep != 0;
    out->scope = {params.cache_salt, params.prefix_cache == 0};
    out->logprobs = params.logprobs;
    out->user_data = params.user_data;
    return Status::OK;
}

// Submits what `load` reads into a SessionState.
template <class Load>
Status restore(engine* e, const engine_session_params* in, engine_request* id, Load load, Error* error) {
    RestoreParams params;
    TREADLE_TRY(read_params(in, &params, error));
    SessionState state(&e->memory.other);
    TREADLE_TRY(load(&state));
    return e->core->restore_session(state, params, id, error);
}

}  // namespace

extern "C" {

ENGINE_API engine_status engine_session_save(engine* e, engine_request id, int32_t sequence, int32_t position,
                                             void* buffer, size_t capacity, size_t* size,
                                             engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(e);
        if (capacity > 0) TREADLE_REQUIRE(buffer);
        SessionState state(&e->memory.other);
        TREADLE_TRY(read_state(e, {id, sequence, position}, &state, error));
        const size_t bytes = session_bytes(state);
        if (size != nullptr) *size = bytes;
        return encode_session(state, {static_cast<std::byte*>(buffer), capacity}, error);
    });
}

ENGINE_API engine_status engine_session_save_callback(engine* e, engine_request id, int32_t sequence,
                                                      int32_t position, engine_write_fn write, void* user,
                                                      engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(e);
        TREADLE_REQUIRE(write);
        SessionState state(&e->memory.other);
        TREADLE_TRY(read_state(e, {id, sequence, position}, &state, error));
        AlignedArray<std::byte> bytes(&e->memory.other, session_bytes(state));
        TREADLE_TRY(encode_session(state, {bytes.data(), bytes.size()}, error));
        const int32_t answer = write(user, bytes.data(), bytes.size());
        if (answer == 0) return Status::OK;
        return fail(error, Status::STOPPED, "the write callback answered %d for %zu bytes", answer,
                    bytes.size());
    });
}

ENGINE_API engine_status engine_session_save_file(engine* e, engine_request id, int32_t sequence,
                                                  int32_t position, const char* path,
                                                  engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(e);
        TREADLE_REQUIRE(path);
        SessionState state(&e->memory.other);
        TREADLE_TRY(read_state(e, {id, sequence, position}, &state, error));
        return save_session_file(path, state, &e->memory.other, error);
    });
}

ENGINE_API engine_status engine_session_params_init(engine_session_params* params, size_t size) {
    return api::init_struct(params, size, default_session_params());
}

ENGINE_API engine_status engine_session_restore(engine* e, const void* bytes, size_t size,
                                                const engine_session_params* params, engine_request* id,
                                                engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(e);
        TREADLE_REQUIRE(id);
        if (size > 0) TREADLE_REQUIRE(bytes);
        const auto load = [&](SessionState* out) {
            return decode_session({static_cast<const std::byte*>(bytes), size}, out, error);
        };
        return restore(e, params, id, load, error);
    });
}

ENGINE_API engine_status engine_session_restore_callback(engine* e, engine_read_fn read, void* user,
                                                         uint64_t size, const engine_session_params* params,
                                                         engine_request* id, engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(e);
        TREADLE_REQUIRE(id);
        TREADLE_REQUIRE(read);
        if (size > session_bytes_max)
            return fail(error, Status::LIMIT, "the session has %llu bytes, at most %llu are read",
                        static_cast<unsigned long long>(size),
                        static_cast<unsigned long long>(session_bytes_max));
        const auto load = [&](SessionState* out) {
            AlignedArray<std::byte> bytes(&e->memory.other, static_cast<size_t>(size));
            const int32_t answer = size == 0 ? 0 : read(user, 0, bytes.data(), bytes.size());
            if (answer != 0)
                return fail(error, Status::IO, "the read callback answered %d for %zu bytes", answer,
                            bytes.size());
            return decode_session({bytes.data(), bytes.size()}, out, error);
        };
        return restore(e, params, id, load, error);
    });
}

ENGINE_API engine_status engine_session_restore_file(engine* e, const char* path,
                                                     const engine_session_params* params, engine_request* id,
                                                     engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(e);
        TREADLE_REQUIRE(path);
        TREADLE_REQUIRE(id);
        const auto load = [&](SessionState* out) {
            return load_session_file(path, &e->memory.other, out, error);
        };
        return restore(e, params, id, load, error);
    });
}

}  // extern "C"

}  // namespace treadle
