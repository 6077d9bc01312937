// What the opaque handles of engine.h point to.
//
// Invariant: members are destroyed in reverse order, so what uses a MemorySet stands after it. The handles themselves come
// straight from the allocator hooks, since the Memory objects live inside them.
#pragma once

#include <atomic>
#include <mutex>

#include "base/hooks.h"
#include "base/memory.h"
#include "engine.h"
#include "engine/engine.h"
#include "model/model.h"
#include "text/chat_template.h"

struct engine_model {
    explicit engine_model(const treadle::AllocatorHooks& allocator)
        : hooks(allocator), memory(allocator), program(&memory.other), kept_dims(&memory.other) {}

    std::atomic<int32_t> references{1};
    treadle::AllocatorHooks hooks;
    treadle::LogHook log;
    treadle::ParallelForHook parallel_for;
    int32_t threads = 1;
    mutable treadle::MemorySet memory;  // scratch of const calls too: Memory is safe to use from many threads
    treadle::Owned<treadle::Model> model;
    treadle::Program program;
    treadle::Owned<treadle::ChatTemplate> chat_template;  // null: chat_error says why
    treadle::Error chat_error;
    size_t tokenizer_bytes = 0;

    std::mutex kept_dims_lock;
    std::pmr::vector<uint16_t> kept_dims;  // as in Program; empty until an engine with tbq4x keys is made
};

struct engine {
    engine(const treadle::AllocatorHooks& allocator, engine_model* of)
        : hooks(allocator), model(of), memory(allocator), program(&memory.other) {}

    treadle::AllocatorHooks hooks;
    engine_model* model;  // holds a reference
    treadle::MemorySet memory;
    treadle::Program program;  // the model's, with this engine's formats of the cache
    char numerics_id[32] = {};
    treadle::Owned<treadle::Engine> core;
};

namespace treadle::api {

// Makes and ends a handle in the host's memory; null where there is none.
template <class Handle, class... Arguments>
Handle* make_handle(const AllocatorHooks& hooks, Arguments... arguments) {
    void* place =
        hooks.alloc(hooks.user, sizeof(Handle), alignof(Handle), static_cast<int32_t>(MemoryKind::other));
    return place == nullptr ? nullptr : ::new (place) Handle(hooks, arguments...);
}

template <class Handle>
void end_handle(Handle* handle) {
    const AllocatorHooks hooks = handle->hooks;
    handle->~Handle();
    hooks.free(hooks.user, handle, sizeof(Handle), alignof(Handle), static_cast<int32_t>(MemoryKind::other));
}

AllocatorHooks default_allocator();

void retain(engine_model* model);

}  // namespace treadle::api
