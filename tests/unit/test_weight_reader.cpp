// Reading of tensors by several threads: the same packed bytes, fingerprint and failures whatever runs the pieces and in
// what order; readers and hooks of the host are called as they were promised.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/load_threads.h"
#include "cpu/weight_store.h"
#include "model_fixture.h"

using namespace treadle;
using namespace treadle::test;

namespace {

constexpr size_t small_pieces = 1000;

GgufWriter mixed_model() {
    TinyLlamaOptions options;
    options.set_all(TensorType::Q4_1);
    options.down = TensorType::Q8_0;
    options.tied_head = false;
    options.output = TensorType::F16;
    return tiny_llama(3, options);
}

// A file that fails in given places, writes down what is read and by whom, and may forbid to be shared.
class WatchedFile final : public FileReader {
public:
    explicit WatchedFile(Bytes bytes, bool shareable = true)
        : bytes_(std::move(bytes)), shareable_(shareable) {}
    uint64_t size() const override { return bytes_.size(); }
    bool is_shareable() const override { return shareable_; }
    Status read(uint64_t offset, void* destination, size_t size, Error* error) override {
        {
            const std::scoped_lock lock(mutex_);
            reads.push_back(offset);
            foreign_reads += std::this_thread::get_id() != home_ ? 1 : 0;
        }
        const bool is_bad = std::any_of(bad.begin(), bad.end(),
                                        [&](uint64_t at) { return at >= offset && at < offset + size; });
        if (is_bad && offset >= good_before)
            return fail(error, Status::IO, "byte %llu can't be read",
                        static_cast<unsigned long long>(offset));
        std::memcpy(destination, bytes_.data() + offset, size);
        return Status::OK;
    }

    std::vector<uint64_t> bad;    // a read of one of these bytes fails,
    uint64_t good_before = 0;     // unless it begins before that one
    std::vector<uint64_t> reads;  // offsets, in order
    int foreign_reads = 0;        // by other threads than the one that made it

private:
    const Bytes bytes_;
    const bool shareable_;
    const std::thread::id home_ = std::this_thread::get_id();
    std::mutex mutex_;
};

// Runs the bodies one after another in an order of its own.
struct OrderedHook {
    enum Order { forward, backward, shuffled } order = forward;
    std::mt19937 random{5};
    int32_t most = 0;  // bodies in a run

    ParallelForHook hook() {
        return {this, [](void* user, void (*body)(void*, int32_t), void* context, int32_t count) {
                    auto* self = static_cast<OrderedHook*>(user);
                    std::vector<int32_t> indices(static_cast<size_t>(count));
                    std::iota(indices.begin(), indices.end(), 0);
                    if (self->order == backward) std::reverse(indices.begin(), indices.end());
                    if (self->order == shuffled) std::shuffle(indices.begin(), indices.end(), self->random);
                    for (const int32_t index : indices) body(context, index);
                    self->most = std::max(self->most, count);
                }};
    }
};

// What a load into the CPU's store made of a file.
struct Loaded {
    Loaded(FileReader& file, LoadHooks hooks) {
        Owned<WeightStore> made;
        REQUIRE(cpu::make_cpu_weight_store(cpu::CpuTier::automatic, memory, &made, &error) == Status::OK);
        store = static_cast<cpu::CpuWeightStore*>(made.get());
        hooks.piece_bytes = small_pieces;
        status = load_model(file, {}, hooks, std::move(made), memory, &model, &error);
    }
    std::string packed() const {  // all weights, one after another
        std::string all;
        for (WeightId id = 0; store->find(id) != nullptr; ++id) {
            const cpu::PackedWeight& weight = store->find(id)->packed;
            all.append(reinterpret_cast<const char*>(weight.planes), weight.bytes);
        }
        return all;
    }

    TestAllocator allocator;
    MemorySet memory{allocator.hooks()};
    Error error;
    cpu::CpuWeightStore* store = nullptr;
    Owned<Model> model;
    Status status = Status::OK;
};

struct WithThreads {
    explicit WithThreads(int32_t count) {
        if (count > 1) REQUIRE(cpu::LoadThreads::create(&memory, count, &threads, nullptr) == Status::OK);
        if (threads != nullptr) hooks.parallel_for = threads->hook();
        hooks.threads = count;
    }
    TestAllocator allocator;
    Memory memory{allocator.hooks(), MemoryKind::scratch};
    Owned<cpu::LoadThreads> threads;
    LoadHooks hooks;
};

// Where each tensor lies in the file.
std::vector<std::pair<uint64_t, uint64_t>> tensor_ranges(const Bytes& bytes) {
    TestAllocator allocator;
    Memory memory(allocator.hooks(), MemoryKind::other);
    const Owned<FileReader> reader = open_memory(bytes.data(), bytes.size(), &memory);
    Owned<GgufFile> file;
    REQUIRE(read_gguf(*reader, {}, &memory, &file, nullptr) == Status::OK);
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (const TensorView& tensor : file->tensors()) ranges.emplace_back(tensor.offset, tensor.bytes);
    return ranges;
}

}  // namespace

TEST_CASE("weight reader: packed bytes and fingerprint are the same for any threads and any order") {
    const Bytes bytes = mixed_model().bytes();
    WatchedFile alone(bytes);
    const Loaded expected(alone, {});
    REQUIRE(expected.status == Status::OK);
    const auto check_same = [&](WatchedFile& file, const LoadHooks& hooks) {
        const Loaded loaded(file, hooks);
        REQUIRE(loaded.status == Status::OK);
        CHECK(loaded.packed() == expected.packed());
        CHECK(loaded.model->facts().fingerprint == expected.model->facts().fingerprint);
        CHECK(loaded.model->facts().packed_bytes == expected.model->facts().packed_bytes);
    };
    for (const int32_t threads : {1, 2, 5}) {
        for (const bool shareable : {true, false}) {
            CAPTURE(threads);
            CAPTURE(shareable);
            const WithThreads with(threads);
            WatchedFile file(bytes, shareable);
            check_same(file, with.hooks);
            if (shareable) continue;
            CHECK(file.foreign_reads == 0);
            CHECK(std::is_sorted(file.reads.begin() + 2, file.reads.end()));  // behind those of the header
        }
    }
    for (const OrderedHook::Order order :
         {OrderedHook::forward, OrderedHook::backward, OrderedHook::shuffled}) {
        OrderedHook ordered{order};
        LoadHooks hooks;
        hooks.parallel_for = ordered.hook();
        hooks.threads = 4;
        WatchedFile file(bytes);
        check_same(file, hooks);
        CHECK(ordered.most > 8);
        CHECK(ordered.most <= 32);
    }
}

TEST_CASE("weight reader: a read that fails in any tensor is told, the first in the file where several do") {
    const Bytes bytes = mixed_model().bytes();
    const auto ranges = tensor_ranges(bytes);
    OrderedHook ordered{OrderedHook::backward};  // the last one fails first
    for (const bool shareable : {true, false}) {
        for (size_t i = 0; i < ranges.size(); ++i) {
            for (const uint64_t within : {uint64_t{0}, ranges[i].second / 2, ranges[i].second - 1}) {
                LoadHooks hooks;
                hooks.threads = 4;
                hooks.parallel_for = ordered.hook();
                WatchedFile file(bytes, shareable);
                file.bad = {ranges[i].first + within};
                file.good_before = ranges.front().first;  // the header is read in stretches that end anywhere
                for (size_t later = i + 1; later < ranges.size(); ++later)
                    file.bad.push_back(ranges[later].first);
                const Loaded loaded(file, hooks);
                CHECK(loaded.status == Status::IO);
                CHECK(loaded.model == nullptr);
                CHECK(loaded.allocator.live() == 0);
                const std::string told = loaded.error.message;
                const uint64_t at = std::stoull(told.substr(told.find(' ')));
                CAPTURE(told);
                CHECK(at <= file.bad.front());  // where the failed read began
                CHECK(at + small_pieces + 16 * 192 > file.bad.front());
                CHECK(at >= ranges[i].first);
            }
        }
    }
}

TEST_CASE("weight reader: progress is asked by the loading thread and rises; each answer can stop") {
    const Bytes bytes = mixed_model().bytes();
    struct Calls {
        std::thread::id home = std::this_thread::get_id();
        int stop_at = INT32_MAX;
        int foreign = 0;
        std::vector<uint64_t> seen;
    };
    const auto report = [](void* user, uint64_t done, uint64_t) {
        auto* calls = static_cast<Calls*>(user);
        calls->foreign += std::this_thread::get_id() != calls->home ? 1 : 0;
        calls->seen.push_back(done);
        return static_cast<int>(calls->seen.size()) != calls->stop_at;
    };
    for (const int32_t threads : {1, 3}) {
        WithThreads with(threads);
        Calls whole;
        with.hooks.progress = {&whole, report};
        WatchedFile file(bytes);
        const Loaded loaded(file, with.hooks);
        REQUIRE(loaded.status == Status::OK);
        REQUIRE(whole.seen.size() > 3);
        CHECK(std::is_sorted(whole.seen.begin(), whole.seen.end()));
        CHECK(whole.seen.front() == 0);
        CHECK(whole.seen.back() == loaded.model->facts().tensor_bytes);
        CHECK(whole.foreign == 0);
        for (int stop_at = 1; stop_at <= static_cast<int>(whole.seen.size()); ++stop_at) {
            Calls calls;
            calls.stop_at = stop_at;
            with.hooks.progress = {&calls, report};
            const Loaded stopped(file, with.hooks);
            CHECK(stopped.status == Status::STOPPED);
            CHECK(static_cast<int>(calls.seen.size()) == stop_at);
            CHECK(stopped.allocator.live() == 0);
        }
    }
}

TEST_CASE("weight reader: memory beyond the packed form is some pieces for each thread") {
    TinyLlamaOptions options;
    options.hidden = 256;
    options.feed_forward = 1024;
    const Bytes bytes = tiny_llama(3, options).bytes();
    for (const int32_t threads : {1, 2, 5}) {
        const WithThreads with(threads);
        WatchedFile file(bytes);
        const Loaded loaded(file, with.hooks);
        REQUIRE(loaded.status == Status::OK);
        const size_t widest = 16 * 1024 * sizeof(float);  // 16 rows of the down matrix
        const size_t staging = std::max(8 * small_pieces * static_cast<size_t>(threads), widest);
        CHECK(loaded.memory.weights.bytes_peak() == loaded.model->facts().packed_bytes);
        CHECK(loaded.memory.scratch.bytes_peak() < staging + (256 << 10));
        CHECK(bytes.size() > 16 * (staging + (256 << 10)));
    }
}
