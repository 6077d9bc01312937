// Every byte the library owns comes through a Memory: a counted std::pmr resource over the host's allocator hooks. Each part
// gets the Memory of its kind handed in; the library never uses the global new or malloc.
//
// Invariant: bytes_in_use returns to zero when the owner is destroyed. Out of memory is std::bad_alloc, which the api layer
// turns into Status::NOMEM; a part that is being built when it is thrown must leave everything else as it was.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <new>
#include <type_traits>
#include <utility>

namespace treadle {

enum class MemoryKind : int32_t { weights = 0, kv = 1, scratch = 2, other = 3 };

// The host's hooks, callable from any thread. alloc returns null when there is no memory.
struct AllocatorHooks {
    void* user = nullptr;
    void* (*alloc)(void* user, size_t size, size_t alignment, int32_t kind) = nullptr;
    void (*free)(void* user, void* pointer, size_t size, size_t alignment, int32_t kind) = nullptr;
    // Null, or told of memory, or a part of some, that will only be read from now on; perhaps more than once. now: it may take
    // its time for it, while others read.
    void (*settle)(void* user, void* pointer, size_t size, int32_t kind, bool now) = nullptr;
};

class Memory final : public std::pmr::memory_resource {
public:
    Memory(const AllocatorHooks& hooks, MemoryKind kind) : hooks_(hooks), kind_(kind) {}
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    bool settles() const { return hooks_.settle != nullptr; }
    void settle(void* pointer, size_t size, bool now) const {
        if (settles()) hooks_.settle(hooks_.user, pointer, size, static_cast<int32_t>(kind_), now);
    }
    size_t bytes_in_use() const { return bytes_in_use_.load(std::memory_order_relaxed); }
    size_t bytes_peak() const { return bytes_peak_.load(std::memory_order_relaxed); }

private:
    void* do_allocate(size_t size, size_t alignment) override;
    void do_deallocate(void* pointer, size_t size, size_t alignment) override;
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        return this == &other;
    }

    AllocatorHooks hooks_;
    MemoryKind kind_;
    std::atomic<size_t> bytes_in_use_{0};
    std::atomic<size_t> bytes_peak_{0};
};

// One Memory per kind, for an owner such as a model or an engine.
struct MemorySet {
    explicit MemorySet(const AllocatorHooks& hooks)
        : weights(hooks, MemoryKind::weights), kv(hooks, MemoryKind::kv), scratch(hooks, MemoryKind::scratch),
          other(hooks, MemoryKind::other) {}
    Memory weights, kv, scratch, other;
};

// A single object that lives in a Memory: unique_ptr with a deleter that knows where to give it back.
template <class T>
struct MemoryDeleter {
    std::pmr::memory_resource* memory = nullptr;
    size_t size = 0;
    size_t alignment = 0;
    MemoryDeleter() = default;
    explicit MemoryDeleter(std::pmr::memory_resource* from)
        : memory(from), size(sizeof(T)), alignment(alignof(T)) {}
    // A base-class pointer remembers the size of what was made. Implicit, as unique_ptr needs it.
    template <class Derived>
    MemoryDeleter(const MemoryDeleter<Derived>& other)  // NOLINT(google-explicit-constructor)
        : memory(other.memory), size(other.size), alignment(other.alignment) {}
    void operator()(T* object) const {
        object->~T();
        memory->deallocate(object, size, alignment);
    }
};

template <class T>
using Owned = std::unique_ptr<T, MemoryDeleter<T>>;

template <class T, class... Arguments>
Owned<T> make_owned(std::pmr::memory_resource* memory, Arguments&&... arguments) {
    void* place = memory->allocate(sizeof(T), alignof(T));
    try {
        return Owned<T>(::new (place) T(std::forward<Arguments>(arguments)...), MemoryDeleter<T>(memory));
    } catch (...) {
        memory->deallocate(place, sizeof(T), alignof(T));
        throw;
    }
}

// A fixed array of plain values on its own alignment (kernels want 64), not initialised unless asked. Never grows.
template <class T>
class AlignedArray {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    static constexpr size_t alignment = alignof(T) > 64 ? alignof(T) : 64;
    static constexpr size_t value_bytes =
        sizeof(T);  // NOLINT(bugprone-sizeof-expression): T may be a pointer
    AlignedArray() = default;
    AlignedArray(std::pmr::memory_resource* memory, size_t count) : memory_(memory), count_(count) {
        if (count > SIZE_MAX / value_bytes) throw std::bad_alloc();
        if (count > 0) data_ = static_cast<T*>(memory->allocate(count * value_bytes, alignment));
    }
    AlignedArray(AlignedArray&& other) noexcept { swap(other); }
    AlignedArray& operator=(AlignedArray&& other) noexcept {
        AlignedArray(std::move(other)).swap(*this);
        return *this;
    }
    ~AlignedArray() {
        if (data_ != nullptr) memory_->deallocate(data_, count_ * value_bytes, alignment);
    }
    void swap(AlignedArray& other) noexcept {
        std::swap(memory_, other.memory_);
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
    }
    T* data() { return data_; }
    const T* data() const { return data_; }
    size_t size() const { return count_; }
    size_t bytes() const { return count_ * sizeof(T); }
    T& operator[](size_t index) { return data_[index]; }
    const T& operator[](size_t index) const { return data_[index]; }
    T* begin() { return data_; }
    T* end() { return data_ + count_; }
    const T* begin() const { return data_; }
    const T* end() const { return data_ + count_; }

private:
    std::pmr::memory_resource* memory_ = nullptr;
    T* data_ = nullptr;
    size_t count_ = 0;
};

}  // namespace treadle
