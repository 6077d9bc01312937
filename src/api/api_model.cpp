// Loading, describing and dropping models.
#include <algorithm>
#include <string>

#include "api/handles.h"
#include "api/structs.h"
#include "base/float_mode.h"
#include "base/limits.h"
#include "base/platform.h"
#include "cpu/cpu_backend.h"
#include "cpu/load_threads.h"
#include "model/model.h"

namespace treadle::api {
namespace {

// What a load needs beside the file.
struct LoadParams {
    AllocatorHooks allocator;
    LogHook log;
    ParallelForHook parallel_for;
    engine_progress_fn progress = nullptr;
    void* progress_user = nullptr;
    int32_t threads = 1;
    cpu::CpuTier tier = cpu::CpuTier::automatic;
};

Status read_params(const engine_model_params* in, LoadParams* out, Error* error) {
    engine_model_params params = {};
    TREADLE_TRY(read_struct("engine_model_params", in, &params, error));
    if ((params.alloc == nullptr) != (params.free == nullptr))
        return fail(error, Status::INVALID_ARGUMENT, "alloc and free: one is null, the other is not");
    if (params.threads < 0 || params.threads > limits::threads_max)
        return fail(error, Status::INVALID_ARGUMENT, "threads is %d, must be 0 to %d", params.threads,
                    limits::threads_max);
    switch (params.cpu_code) {
        case ENGINE_CPU_AUTOMATIC: out->tier = cpu::CpuTier::automatic; break;
        case ENGINE_CPU_SCALAR: out->tier = cpu::CpuTier::scalar; break;
        case ENGINE_CPU_AVX2: out->tier = cpu::CpuTier::avx2; break;
        case ENGINE_CPU_AVX512: out->tier = cpu::CpuTier::avx512; break;
        case ENGINE_CPU_SSE41: out->tier = cpu::CpuTier::sse41; break;
        case ENGINE_CPU_AVX2_VNNI: out->tier = cpu::CpuTier::avx2_vnni; break;
        default:
            return fail(error, Status::INVALID_ARGUMENT, "cpu_code is %d, which names no code",
                        params.cpu_code);
    }
    out->allocator = params.alloc == nullptr ? default_allocator()
                                             : AllocatorHooks{params.alloc_user, params.alloc, params.free};
    out->log = {params.log_user, params.log};
    out->parallel_for = {params.parallel_for_user, params.parallel_for};
    out->progress = params.progress;
    out->progress_user = params.progress_user;
    out->threads = params.threads > 0 ? params.threads : std::max(1, core_count() - 1);
    return Status::OK;
}

bool report_progress(void* user, uint64_t done, uint64_t total) {
    const auto* params = static_cast<const LoadParams*>(user);
    return params->progress(params->progress_user, done, total) != 0;
}

// Drops a half-made handle unless the load succeeds.
struct HandleOwner {
    engine_model* handle;
    ~HandleOwner() {
        if (handle != nullptr) end_handle(handle);
    }
};

// The template is made at load, so that info can tell whether chat messages work; a missing one is no failure of the load.
void make_template(engine_model* handle) {
    const Status status = make_chat_template(handle->model->chat_template(), &handle->memory.other,
                                             &handle->chat_template, &handle->chat_error);
    if (status != Status::OK)
        log_line(handle->log, LogLevel::info, "chat template: %s", handle->chat_error.message);
}

Status load(FileReader& reader, const SiblingHook& siblings, LoadParams& params, engine_model* handle,
            Error* error) {
    Owned<WeightStore> store;
    TREADLE_TRY(cpu::make_cpu_weight_store(params.tier, handle->memory, &store, error));
    LoadHooks hooks;
    hooks.log = params.log;
    hooks.threads = params.threads;
    hooks.parallel_for = params.parallel_for;
    Owned<cpu::LoadThreads> threads;
    if (params.threads > 1 && params.parallel_for.run == nullptr) {
        TREADLE_TRY(cpu::LoadThreads::create(&handle->memory.scratch, params.threads, &threads, error));
        hooks.parallel_for = threads->hook();
    }
    hooks.progress = {&params, params.progress == nullptr ? nullptr : report_progress};
    TREADLE_TRY(load_model(reader, siblings, hooks, std::move(store), handle->memory, &handle->model, error));
    handle->model->emit(&handle->program);
    handle->tokenizer_bytes = handle->memory.other.bytes_in_use();
    make_template(handle);
    return Status::OK;
}

// open(memory, &reader) supplies the file; it and the siblings live in the handle's memory.
template <class Open>
Status load_with(const engine_model_params* in, engine_model** out, const char* path, Open open,
                 Error* error) {
    LoadParams params;
    TREADLE_TRY(read_params(in, &params, error));
    const FloatMode float_mode;
    HandleOwner owner{make_handle<engine_model>(params.allocator)};
    if (owner.handle == nullptr) throw std::bad_alloc();
    owner.handle->log = params.log;
    owner.handle->parallel_for = params.parallel_for;
    owner.handle->threads = params.threads;

    struct Siblings {
        const char* path;
        Memory* memory;
        static Status open(void* user, uint32_t index, uint32_t count, Owned<FileReader>* reader,
                           Error* failure) {
            auto* self = static_cast<Siblings*>(user);
            std::pmr::string name(self->memory);
            if (!split_path(self->path, index, count, &name))
                return fail(failure, Status::INVALID_ARGUMENT,
                            "%s is a part of a split model of %u files, but is not named so", self->path,
                            count);
            return open_file(name.c_str(), self->memory, reader, failure);
        }
    } siblings{path, &owner.handle->memory.scratch};

    {
        Owned<FileReader> reader;
        TREADLE_TRY(open(&owner.handle->memory.scratch, &reader));
        const SiblingHook hook = {&siblings, path == nullptr ? nullptr : Siblings::open};
        TREADLE_TRY(load(*reader, hook, params, owner.handle, error));
    }
    *out = std::exchange(owner.handle, nullptr);
    return Status::OK;
}

// The host's read callback as a file.
class CallbackFile final : public FileReader {
public:
    CallbackFile(engine_read_fn hook, void* user, uint64_t size) : hook_(hook), user_(user), size_(size) {}
    uint64_t size() const override { return size_; }
    Status read(uint64_t offset, void* destination, size_t size, Error* error) override {
        if (offset > size_ || size > size_ - offset)
            return fail(error, Status::TRUNCATED,
                        "the file ends at byte %llu, but %zu bytes are needed from byte %llu",
                        static_cast<unsigned long long>(size_), size,
                        static_cast<unsigned long long>(offset));
        const int32_t answer = size == 0 ? 0 : hook_(user_, offset, destination, size);
        if (answer == 0) return Status::OK;
        return fail(error, Status::IO, "the read callback answered %d for %zu bytes at byte %llu", answer,
                    size, static_cast<unsigned long long>(offset));
    }

private:
    engine_read_fn hook_;
    void* user_;
    uint64_t size_;
};

}  // namespace

void retain(engine_model* model) { model->references.fetch_add(1, std::memory_order_relaxed); }

}  // namespace treadle::api

namespace treadle {

extern "C" {

ENGINE_API engine_status engine_model_params_init(engine_model_params* params, size_t size) {
    return api::init_struct(params, size, engine_model_params{});
}

ENGINE_API engine_status engine_model_load_file(const char* path, const engine_model_params* params,
                                                engine_model** model, engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(model);
        *model = nullptr;
        TREADLE_REQUIRE(path);
        const auto open = [&](Memory* memory, Owned<FileReader>* reader) {
            return open_file(path, memory, reader, error);
        };
        return api::load_with(params, model, path, open, error);
    });
}

ENGINE_API engine_status engine_model_load_memory(const void* bytes, uint64_t size,
                                                  const engine_model_params* params, engine_model** model,
                                                  engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(model);
        *model = nullptr;
        if (size > 0) TREADLE_REQUIRE(bytes);
        const auto open = [&](Memory* memory, Owned<FileReader>* reader) {
            *reader = open_memory(bytes, size, memory);
            return Status::OK;
        };
        return api::load_with(params, model, nullptr, open, error);
    });
}

ENGINE_API engine_status engine_model_load_callback(engine_read_fn read, void* user, uint64_t size,
                                                    const engine_model_params* params, engine_model** model,
                                                    engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(model);
        *model = nullptr;
        TREADLE_REQUIRE(read);
        const auto open = [&](Memory* memory, Owned<FileReader>* reader) {
            *reader = make_owned<api::CallbackFile>(memory, read, user, size);
            return Status::OK;
        };
        return api::load_with(params, model, nullptr, open, error);
    });
}

ENGINE_API void engine_model_free(engine_model* model) {
    if (model != nullptr && model->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
        api::end_handle(model);
}

ENGINE_API engine_status engine_model_info_init(engine_model_info* info, size_t size) {
    return api::init_struct(info, size, engine_model_info{});
}

ENGINE_API engine_status engine_model_get_info(const engine_model* model, engine_model_info* info) {
    return api::guarded(nullptr, [&](Error* error) {
        TREADLE_REQUIRE(model);
        TREADLE_REQUIRE(info);
        const Model& loaded = *model->model;
        const HyperParameters& sizes = loaded.hyper_parameters();
        const Vocabulary& vocabulary = loaded.vocabulary();
        engine_model_info value = {};
        value.vocabulary = sizes.vocabulary;
        value.context_length = sizes.context;
        value.layers = sizes.layers;
        value.hidden = sizes.hidden;
        value.heads = sizes.heads;
        value.kv_heads = sizes.kv_heads;
        value.head_dim = sizes.head_dim;
        value.bos_token = vocabulary.bos();
        value.eos_token = vocabulary.eos();
        value.has_chat_template = model->chat_template != nullptr;
        value.token_bytes_max = static_cast<int32_t>(vocabulary.max_token_bytes());
        value.parameters = loaded.facts().parameters;
        value.fingerprint = loaded.facts().fingerprint;
        value.tensor_bytes = loaded.facts().tensor_bytes;
        value.weight_bytes = loaded.facts().packed_bytes;
        value.tokenizer_bytes = model->tokenizer_bytes;
        value.load_bytes_peak = loaded.facts().load_peak_bytes;
        const char* architecture = architecture_name(sizes.architecture);
        api::copy_text(value.architecture, sizeof value.architecture, architecture,
                       std::strlen(architecture));
        api::copy_text(value.name, sizeof value.name, loaded.name().data(), loaded.name().size());
        const char* numerics_id = loaded.weight_store().numerics_id();
        api::copy_text(value.numerics_id, sizeof value.numerics_id, numerics_id, std::strlen(numerics_id));
        const char* tier = loaded.weight_store().tier();
        api::copy_text(value.cpu_code, sizeof value.cpu_code, tier, std::strlen(tier));
        return api::write_struct("engine_model_info", info, value, error);
    });
}

}  // extern "C"

}  // namespace treadle
