// Joins the parts of a model file and answers for its tensors.
#include "gguf/reader.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/limits.h"
#include "gguf/parse.h"
#include "gguf/quoted.h"

namespace treadle {

// Builds a GgufFile part by part.
class GgufOpener {
public:
    GgufOpener(GgufFile* file, const SiblingHook& siblings, Error* error)
        : file_(*file), siblings_(siblings), error_(error) {}

    Status open(FileReader& first) {
        TREADLE_TRY(add_part(first, {}));
        TREADLE_TRY(read_split_count());
        for (uint32_t index = 1; index < count_; ++index) TREADLE_TRY(add_sibling(index));
        if (split_) TREADLE_TRY(check_total());
        return index_names();
    }

private:
    Status add_part(FileReader& reader, Owned<FileReader> owned) {
        const auto index = static_cast<uint32_t>(file_.parts_.size());
        GgufFile::Part part;
        part.reader = &reader;
        part.owned_reader = std::move(owned);
        part.metadata = make_owned<Metadata>(file_.memory_, file_.memory_);
        HeaderParser parser(reader, index, file_.memory_, part.metadata.get(), &file_.tensors_, error_);
        TREADLE_TRY(parser.parse());
        if (index == 0) file_.version_ = parser.version();
        file_.parts_.push_back(std::move(part));
        return Status::OK;
    }

    Status read_split_count() {
        const Metadata& metadata = file_.metadata();
        split_ = metadata.has("split.count");
        if (!split_) return Status::OK;
        TREADLE_TRY(metadata.get("split.count", &count_, error_));
        if (count_ == 0) return fail(error_, Status::CORRUPT, "metadata \"split.count\" is 0");
        if (count_ > limits::split_files_max) {
            return fail(error_, Status::LIMIT, "metadata \"split.count\" is %u, at most %u is allowed",
                        count_, limits::split_files_max);
        }
        uint32_t index;
        TREADLE_TRY(metadata.require("split.no", &index, error_));
        if (index != 0) {
            return fail(error_, Status::INVALID_ARGUMENT,
                        "this is part %u of %u of a split model; open its first part", index + 1, count_);
        }
        if (count_ > 1 && siblings_.open == nullptr) {
            return fail(error_, Status::INVALID_ARGUMENT,
                        "the model is split into %u files, but only the first was given", count_);
        }
        return Status::OK;
    }

    Status add_sibling(uint32_t index) {
        Owned<FileReader> reader;
        Status status = siblings_.open(siblings_.user, index, count_, &reader, error_);
        if (status == Status::OK && reader == nullptr) {
            status = fail(error_, Status::IO, "the host gave no reader");
        }
        if (status == Status::OK) {
            FileReader& opened = *reader;
            status = add_part(opened, std::move(reader));
        }
        if (status == Status::OK) status = check_sibling(index);
        return status == Status::OK ? status : name_part(status, index);
    }

    Status check_sibling(uint32_t index) {
        const Metadata& metadata = *file_.parts_.back().metadata;
        uint32_t own_index, own_count;
        TREADLE_TRY(metadata.require("split.no", &own_index, error_));
        TREADLE_TRY(metadata.require("split.count", &own_count, error_));
        if (own_index == index && own_count == count_) return Status::OK;
        return fail(error_, Status::CORRUPT, "it says to be part %llu of %u", 1ull + own_index, own_count);
    }

    // Puts the part in front of a failure's message.
    Status name_part(Status status, uint32_t index) {
        if (error_ == nullptr) return status;
        char words[error_message_bytes - 40];
        std::snprintf(words, sizeof words, "%.*s", static_cast<int>(sizeof words - 1), error_->message);
        return fail(error_, status, "part %u of %u: %s", index + 1, count_, words);
    }

    Status check_total() {
        uint64_t total;
        TREADLE_TRY(file_.metadata().require("split.tensors.count", &total, error_));
        if (total == file_.tensors_.size()) return Status::OK;
        return fail(error_, Status::CORRUPT,
                    "metadata \"split.tensors.count\" is %llu, but the parts hold %zu tensors",
                    static_cast<unsigned long long>(total), file_.tensors_.size());
    }

    Status index_names() {
        auto& by_name = file_.by_name_;
        const auto& tensors = file_.tensors_;
        by_name.reserve(tensors.size());
        for (size_t i = 0; i < tensors.size(); ++i) {
            by_name.push_back(static_cast<uint32_t>(i));
            file_.tensor_bytes_ += tensors[i].bytes;
        }
        std::sort(by_name.begin(), by_name.end(),
                  [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
        for (size_t i = 1; i < by_name.size(); ++i) {
            if (tensors[by_name[i]].name != tensors[by_name[i - 1]].name) continue;
            return fail(error_, Status::CORRUPT, "tensor %s is there twice",
                        Quoted(tensors[by_name[i]].name).text);
        }
        return Status::OK;
    }

    GgufFile& file_;
    const SiblingHook& siblings_;
    Error* error_;
    bool split_ = false;
    uint32_t count_ = 1;
};

GgufFile::GgufFile(Memory* memory) : memory_(memory), parts_(memory), tensors_(memory), by_name_(memory) {}

uint64_t GgufFile::file_bytes() const {
    uint64_t sum = 0;
    for (const Part& part : parts_) sum += part.reader->size();
    return sum;
}

bool GgufFile::is_shareable() const {
    return std::all_of(parts_.begin(), parts_.end(),
                       [](const Part& part) { return part.reader->is_shareable(); });
}

const TensorView* GgufFile::find_tensor(std::string_view name) const {
    const auto place = std::lower_bound(
        by_name_.begin(), by_name_.end(), name,
        [this](uint32_t index, std::string_view wanted) { return tensors_[index].name < wanted; });
    return place != by_name_.end() && tensors_[*place].name == name ? &tensors_[*place] : nullptr;
}

Status GgufFile::read_tensor(const TensorView& tensor, uint64_t offset, void* destination, size_t size,
                             Error* error) const {
    if (tensor.file_index >= parts_.size() || offset > tensor.bytes || size > tensor.bytes - offset) {
        return fail(error, Status::INVALID_ARGUMENT,
                    "tensor %s has %llu bytes, %zu are wanted from byte %llu", Quoted(tensor.name).text,
                    static_cast<unsigned long long>(tensor.bytes), size,
                    static_cast<unsigned long long>(offset));
    }
    return parts_[tensor.file_index].reader->read(tensor.offset + offset, destination, size, error);
}

Status read_gguf(FileReader& reader, const SiblingHook& siblings, Memory* memory, Owned<GgufFile>* out,
                 Error* error) {
    Owned<GgufFile> file = make_owned<GgufFile>(memory, memory);
    TREADLE_TRY(GgufOpener(file.get(), siblings, error).open(reader));
    *out = std::move(file);
    return Status::OK;
}

bool split_path(std::string_view first_path, uint32_t index, uint32_t count, std::pmr::string* out) {
    char ending[32], wanted[32];
    const int length = std::snprintf(ending, sizeof ending, "-%05u-of-%05u.gguf", 1u, count);
    if (index >= count || length < 0 || !first_path.ends_with(ending)) return false;
    std::snprintf(wanted, sizeof wanted, "-%05u-of-%05u.gguf", index + 1, count);
    out->assign(first_path.substr(0, first_path.size() - static_cast<size_t>(length)));
    out->append(wanted);
    return true;
}

}  // namespace treadle
