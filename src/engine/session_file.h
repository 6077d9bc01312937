// Sessions by path, over the bytes of session.h: the api layer calls it for the path forms of save and restore.
//
// Invariant: a file on disk is a whole session, the old or the new one; *out changes only with OK.
#pragma once

#include "base/memory.h"
#include "base/status.h"
#include "engine/session.h"

namespace treadle {

// Replaces the file (base/file_replace.h). Statuses are encode_session's and replace_file's.
[[nodiscard]] Status save_session_file(const char* path, const SessionState& state, Memory* memory,
                                       Error* error);

// Reads the whole file, of at most session_bytes_max. Statuses are open_file's and decode_session's, LIMIT for a larger one;
// messages begin with the path.
[[nodiscard]] Status load_session_file(const char* path, Memory* memory, SessionState* out, Error* error);

}  // namespace treadle
