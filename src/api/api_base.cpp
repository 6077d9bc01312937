// Versions, statuses, error structs and the default allocator.
#include <mimalloc.h>

#include "api/handles.h"
#include "api/structs.h"
#include "base/platform.h"

namespace treadle::api {
namespace {

constexpr size_t pages_bytes_min = size_t{1} << 20;

// Large pieces of the KV cache come straight from the operating system, so that what engine_trim gives back is free for other
// programs at once: mimalloc keeps pages for a while. So do weights, since every pass reads them all, which is faster on large
// pages.
bool takes_pages(size_t size, int32_t kind) {
    const bool kind_does =
        kind == static_cast<int32_t>(MemoryKind::kv) || kind == static_cast<int32_t>(MemoryKind::weights);
    return kind_does && size >= pages_bytes_min;
}

void* default_alloc(void*, size_t size, size_t alignment, int32_t kind) {
    return takes_pages(size, kind) ? allocate_pages(size) : mi_malloc_aligned(size, alignment);
}

void default_free(void*, void* pointer, size_t size, size_t, int32_t kind) {
    if (takes_pages(size, kind)) {
        free_pages(pointer, size);
    } else {
        mi_free(pointer);
    }
}

// Not before they are full: a virtual machine may have lent its large free pages to others, and would wait for each.
void default_settle(void*, void* pointer, size_t size, int32_t kind, bool now) {
    if (takes_pages(size, kind)) merge_pages(pointer, size, now);
}

}  // namespace

AllocatorHooks default_allocator() { return {nullptr, default_alloc, default_free, default_settle}; }

void write_error(engine_error* out, Status status, const Error& error) {
    if (out == nullptr || out->struct_size < struct_bytes_min || out->struct_size > struct_bytes_max) return;
    engine_error value = {};
    value.struct_size = out->struct_size;
    value.status = static_cast<engine_status>(status);
    const char* text = error.message[0] != 0 ? error.message : status_text(status);
    const size_t room = out->struct_size < sizeof value ? out->struct_size - offsetof(engine_error, message)
                                                        : sizeof value.message;
    if (room > 0 && out->struct_size > offsetof(engine_error, message))
        copy_text(value.message, room, text, std::strlen(text));
    write_sized(out, out->struct_size, value);
}

}  // namespace treadle::api

namespace treadle {

extern "C" {

ENGINE_API const char* engine_version(void) { return ENGINE_VERSION; }

ENGINE_API uint32_t engine_abi_version(void) { return ENGINE_ABI_VERSION; }

ENGINE_API const char* engine_status_name(engine_status status) {
    switch (static_cast<Status>(status)) {
#define TREADLE_STATUS_CASE(number, name, text, aftermath) \
    case Status::name: return "ENGINE_" #name;
        TREADLE_STATUS_LIST(TREADLE_STATUS_CASE)
#undef TREADLE_STATUS_CASE
    }
    return "ENGINE_UNKNOWN";
}

ENGINE_API const char* engine_status_string(engine_status status) {
    return status_text(static_cast<Status>(status));
}

ENGINE_API engine_status engine_error_init(engine_error* error, size_t size) {
    return api::init_struct(error, size, engine_error{});
}

// The public numbers are those of the one list.
#define TREADLE_STATUS_CHECK(number, name, text, aftermath) static_assert(ENGINE_##name == number);
TREADLE_STATUS_LIST(TREADLE_STATUS_CHECK)
#undef TREADLE_STATUS_CHECK

}  // extern "C"

}  // namespace treadle
