// How the C ABI's structs cross the border (engine.h, first rule): a struct_size says how much of it the caller knows. Shorter
// ones get defaults for what they lack, longer ones need a zero tail; what the library fills gets a zero tail.
//
// Invariant: nothing beyond the caller's size is ever read or written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>

#include "base/status.h"
#include "engine.h"

namespace treadle::api {

constexpr size_t struct_bytes_min = 8;
constexpr size_t struct_bytes_max = 1 << 16;

inline bool zero_tail(const void* bytes, size_t from, size_t to) {
    const auto* tail = static_cast<const unsigned char*>(bytes);
    for (size_t i = from; i < to; i++)
        if (tail[i] != 0) return false;
    return true;
}

// engine_*_init: defaults for what both sides know, zeros beyond.
template <class T>
engine_status init_struct(T* out, size_t size, T defaults) {
    if (out == nullptr) return ENGINE_INVALID_ARGUMENT;
    if (size < struct_bytes_min || size > struct_bytes_max) return ENGINE_STRUCT_SIZE;
    std::memset(static_cast<void*>(out), 0, size);
    std::memcpy(static_cast<void*>(out), &defaults, size < sizeof(T) ? size : sizeof(T));
    if constexpr (requires { out->struct_size; }) out->struct_size = static_cast<uint32_t>(size);
    return ENGINE_OK;
}

inline Status check_size(const char* name, size_t size, Error* error) {
    if (size >= struct_bytes_min && size <= struct_bytes_max) return Status::OK;
    return fail(error, Status::STRUCT_SIZE,
                "%s has a struct_size of %zu; initialise it with its init function", name, size);
}

// `size` bytes of the caller's struct over the defaults that *out holds.
template <class T>
Status read_sized(const char* name, const T* in, size_t size, T* out, Error* error) {
    TREADLE_TRY(check_size(name, size, error));
    if (size > sizeof(T) && !zero_tail(in, sizeof(T), size))
        return fail(error, Status::STRUCT_SIZE,
                    "%s has %zu bytes with fields that this library, which knows %zu, lacks", name, size,
                    sizeof(T));
    std::memcpy(static_cast<void*>(out), in, size < sizeof(T) ? size : sizeof(T));
    return Status::OK;
}

// A null pointer leaves the defaults.
template <class T>
Status read_struct(const char* name, const T* in, T* out, Error* error) {
    return in == nullptr ? Status::OK : read_sized(name, in, in->struct_size, out, error);
}

// Element `index` of a caller's array whose elements are `stride` bytes apart.
template <class T>
Status read_element(const char* name, const T* array, size_t stride, size_t index, T* out, Error* error) {
    const auto* element = reinterpret_cast<const T*>(reinterpret_cast<const char*>(array) + stride * index);
    return read_sized(name, element, stride, out, error);
}

// Fills a caller's struct of `size` bytes.
template <class T>
void write_sized(void* out, size_t size, const T& value) {
    std::memcpy(out, &value, size < sizeof(T) ? size : sizeof(T));
    if (size > sizeof(T)) std::memset(static_cast<char*>(out) + sizeof(T), 0, size - sizeof(T));
}

template <class T>
Status write_struct(const char* name, T* out, T value, Error* error) {
    const size_t size = out->struct_size;
    TREADLE_TRY(check_size(name, size, error));
    value.struct_size = static_cast<uint32_t>(size);
    write_sized(out, size, value);
    return Status::OK;
}

// Whole characters of the text, as many as fit, and zeros after them.
inline void copy_text(char* out, size_t capacity, const char* text, size_t bytes) {
    size_t copied = bytes < capacity - 1 ? bytes : capacity - 1;
    while (copied > 0 && copied < bytes && (static_cast<unsigned char>(text[copied]) & 0xc0) == 0x80)
        copied--;
    std::memcpy(out, text, copied);
    std::memset(out + copied, 0, capacity - copied);
}

// Gives the caller what went wrong.
void write_error(engine_error* out, Status status, const Error& error);

// Runs the body of a public function: no exception leaves, and the words of a failure reach the caller.
template <class Body>
engine_status guarded(engine_error* out, Body body) noexcept {
    Error error;
    Status status = Status::INTERNAL;
    try {
        status = body(&error);
    } catch (const std::bad_alloc&) {
        status = fail(&error, Status::NOMEM, "the allocator returned no memory");
    } catch (const std::length_error&) {
        status = fail(&error, Status::NOMEM, "a size is beyond what can be allocated");
    } catch (...) {
        status = fail(&error, Status::INTERNAL, "an exception that should not exist");
    }
    if (status != Status::OK) write_error(out, status, error);
    return static_cast<engine_status>(status);
}

// For arguments that must not be null.
#define TREADLE_REQUIRE(pointer)                                                                     \
    do {                                                                                             \
        if ((pointer) == nullptr) return fail(error, Status::INVALID_ARGUMENT, #pointer " is null"); \
    } while (0)

}  // namespace treadle::api
