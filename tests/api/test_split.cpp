// Models in several files through engine_model_load_file: the same tokens as in one, and words about the part that is wrong.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "api_fixture.h"

using namespace treadle::test;

namespace {

class Folder {
public:
    Folder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "treadle-XXXXXX").string();
        REQUIRE(mkdtemp(pattern.data()) != nullptr);
        path_ = pattern;
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    std::string path(const std::string& name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

std::string part_name(uint32_t part, uint32_t count) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05u-of-%05u.gguf", part, count);
    return name;
}

void write_file(const std::string& path, const Bytes& bytes) {
    std::ofstream file(path, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    REQUIRE(file.good());
}

// The tensors dealt out in turn; the first part has the metadata, and no tensor where `bare`.
std::vector<GgufWriter> split(const GgufWriter& whole, uint16_t count, bool bare = false) {
    std::vector<GgufWriter> parts(count);
    parts[0].pairs = whole.pairs;
    for (uint16_t i = 0; i < count; i++) {
        parts[i].set("split.no", i);
        parts[i].set("split.count", count);
        parts[i].set("split.tensors.count", static_cast<int32_t>(whole.tensors.size()));
    }
    for (size_t i = 0; i < whole.tensors.size(); i++)
        parts[bare && count > 1 ? 1 + i % (count - 1u) : i % count].tensors.push_back(whole.tensors[i]);
    return parts;
}

std::string write_parts(const Folder& folder, const std::vector<GgufWriter>& parts) {
    const auto count = static_cast<uint32_t>(parts.size());
    for (uint32_t i = 0; i < count; i++) write_file(folder.path(part_name(i + 1, count)), parts[i].bytes());
    return folder.path(part_name(1, count));
}

struct Loaded {
    explicit Loaded(const std::string& path) {
        const engine_model_params params = model_params();
        status = engine_model_load_file(path.c_str(), &params, &model, failure);
    }
    ~Loaded() { engine_model_free(model); }
    Loaded(const Loaded&) = delete;
    Loaded& operator=(const Loaded&) = delete;

    engine_model_info info() const {
        engine_model_info info;
        REQUIRE(engine_model_info_init(&info, sizeof info) == ENGINE_OK);
        REQUIRE(engine_model_get_info(model, &info) == ENGINE_OK);
        return info;
    }
    std::vector<int32_t> tokens() const {
        const engine_params small = small_engine_params();
        engine* e = nullptr;
        REQUIRE(engine_create(model, &small, &e, nullptr) == ENGINE_OK);
        const engine_part part = text_part("the parts of a whole");
        engine_request_params params = request_params(&part, 1);
        params.max_tokens = 20;
        params.ignore_end = params.keep = 1;
        engine_request id = 0;
        REQUIRE(engine_submit(e, &params, &id, nullptr) == ENGINE_OK);
        for (int i = 0; i < 40; i++) REQUIRE(engine_step(e, nullptr, nullptr) == ENGINE_OK);
        std::vector<int32_t> all(200);
        size_t count = 0;
        REQUIRE(engine_sequence_tokens(e, id, 0, all.data(), all.size(), &count) == ENGINE_OK);
        all.resize(count);
        engine_destroy(e);
        return all;
    }

    Failure failure;
    engine_model* model = nullptr;
    engine_status status = ENGINE_OK;
};

}  // namespace

TEST_CASE("a model in parts is the model") {
    const Folder folder;
    TinyLlamaOptions options;
    options.tied_head = false;
    options.down = treadle::TensorType::Q8_0;
    const GgufWriter writer = tiny_llama(5, options);
    write_file(folder.path("whole.gguf"), writer.bytes());
    const Loaded whole(folder.path("whole.gguf"));
    REQUIRE_MESSAGE(whole.status == ENGINE_OK, whole.failure.message());
    for (const uint16_t count : {uint16_t{1}, uint16_t{2}, uint16_t{3}, uint16_t{7}}) {
        for (const bool bare : {false, true}) {
            CAPTURE(count);
            CAPTURE(bare);
            const Loaded parts(write_parts(folder, split(writer, count, bare)));
            REQUIRE_MESSAGE(parts.status == ENGINE_OK, parts.failure.message());
            CHECK(parts.info().tensor_bytes == whole.info().tensor_bytes);
            CHECK(parts.info().weight_bytes == whole.info().weight_bytes);
            CHECK(parts.info().parameters == whole.info().parameters);
            CHECK(parts.tokens() == whole.tokens());
        }
    }
}

TEST_CASE("the fingerprint of a model in parts covers all of them, and is the same each time") {
    const Folder folder;
    const std::vector<GgufWriter> parts = split(tiny_llama(5), 3);
    const std::string path = write_parts(folder, parts);
    const uint64_t fingerprint = Loaded(path).info().fingerprint;
    CHECK(Loaded(path).info().fingerprint == fingerprint);
    for (size_t i = 0; i < parts.size(); i++) {
        CAPTURE(i);
        std::vector<GgufWriter> other = parts;
        other[i].tensors.back().data[5] ^= 1;
        CHECK(Loaded(write_parts(folder, other)).info().fingerprint != fingerprint);
    }
    std::vector<GgufWriter> other = parts;
    other[0].set("general.name", "another");
    CHECK(Loaded(write_parts(folder, other)).info().fingerprint != fingerprint);
}

TEST_CASE("a part that is missing, damaged or of another model is named") {
    const Folder folder;
    const std::vector<GgufWriter> parts = split(tiny_llama(5), 3);
    const auto damage = [&](auto change) {
        std::vector<GgufWriter> other = parts;
        change(other);
        return write_parts(folder, other);
    };
    const std::string path = write_parts(folder, parts);
    std::filesystem::remove(folder.path(part_name(2, 3)));
    {
        const Loaded missing(path);
        CHECK(missing.status == ENGINE_NOT_FOUND);
        CHECK(missing.failure.names("part 2 of 3"));
        CHECK(missing.failure.names(part_name(2, 3).c_str()));
    }
    write_file(folder.path(part_name(2, 3)), {});
    CHECK(Loaded(path).status == ENGINE_TRUNCATED);
    Bytes cut = parts[1].bytes();
    cut.resize(cut.size() - 100);
    write_file(folder.path(part_name(2, 3)), cut);
    {
        const Loaded truncated(path);
        CHECK(truncated.status == ENGINE_TRUNCATED);
        CHECK(truncated.failure.names("part 2 of 3"));
    }
    {
        const Loaded swapped(damage([](auto& all) { std::swap(all[1], all[2]); }));
        CHECK(swapped.status == ENGINE_CORRUPT);
        CHECK(swapped.failure.names("part 2 of 3"));
    }
    CHECK(Loaded(damage([](auto& all) { all[2].set("split.count", uint16_t{4}); })).status == ENGINE_CORRUPT);
    CHECK(Loaded(damage([](auto& all) { all[2].tensors.pop_back(); })).status == ENGINE_CORRUPT);
    CHECK(Loaded(damage([](auto& all) { all[2].tensors.push_back(all[1].tensors[0]); })).status ==
          ENGINE_CORRUPT);
    CHECK(Loaded(damage([](auto& all) { all[0].set("split.count", uint16_t{0}); })).status == ENGINE_CORRUPT);
    CHECK(Loaded(damage([](auto& all) { all[0].set("split.count", uint16_t{60000}); })).status ==
          ENGINE_LIMIT);

    write_parts(folder, parts);
    {
        const Loaded second(folder.path(part_name(2, 3)));
        CHECK(second.status == ENGINE_INVALID_ARGUMENT);
        CHECK(second.failure.names("open its first part"));
    }
    write_file(folder.path("renamed.gguf"), parts[0].bytes());
    {
        const Loaded renamed(folder.path("renamed.gguf"));
        CHECK(renamed.status == ENGINE_INVALID_ARGUMENT);
        CHECK(renamed.failure.names("renamed.gguf"));
    }
    const Bytes first = parts[0].bytes();
    Failure failure;
    engine_model* model = nullptr;
    CHECK(engine_model_load_memory(first.data(), first.size(), nullptr, &model, failure) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(model == nullptr);
    CHECK(failure.names("3 files"));
}
