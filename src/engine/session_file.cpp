// The path forms of saving and restoring.
#include "engine/session_file.h"

#include <cstddef>

#include "base/file_replace.h"
#include "base/platform.h"

namespace treadle {

Status save_session_file(const char* path, const SessionState& state, Memory* memory, Error* error) {
    AlignedArray<std::byte> bytes(memory, session_bytes(state));
    TREADLE_TRY(encode_session(state, {bytes.data(), bytes.size()}, error));
    return replace_file(path, {bytes.data(), bytes.size()}, memory, error);
}

Status load_session_file(const char* path, Memory* memory, SessionState* out, Error* error) {
    Owned<FileReader> file;
    TREADLE_TRY(open_file(path, memory, &file, error));
    if (file->size() > session_bytes_max)
        return fail(error, Status::LIMIT, "%s: the file has %llu bytes, a session at most %llu", path,
                    static_cast<unsigned long long>(file->size()),
                    static_cast<unsigned long long>(session_bytes_max));
    AlignedArray<std::byte> bytes(memory, static_cast<size_t>(file->size()));
    Error why;
    Status status = file->read(0, bytes.data(), bytes.size(), &why);
    if (status == Status::OK) status = decode_session({bytes.data(), bytes.size()}, out, &why);
    return status == Status::OK ? Status::OK : fail(error, status, "%s: %s", path, why.message);
}

}  // namespace treadle
