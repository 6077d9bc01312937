// Writes a whole file so that whoever reads it, now or after a crash, finds the old content or the new, never a mixture: into a
// temporary file beside it, synced, renamed over it, the folder synced. Called for sessions that the host saves by path.
//
// Invariant: on a failure the old file is as it was and the temporary one is gone. Only the last step, syncing the folder, may
// fail when the new file is there already; its message says so.
#pragma once

#include <cstddef>
#include <span>

#include "base/memory.h"
#include "base/status.h"

namespace treadle {

// A new file is readable by its owner only, an old one keeps its mode. A symbolic link is replaced, not followed. NOT_FOUND: the
// folder doesn't exist. IO: anything else of the system's, with its error number; INVALID_ARGUMENT: the path is empty or ends in
// a slash. `memory` is used during the call only.
[[nodiscard]] Status replace_file(const char* path, std::span<const std::byte> bytes, Memory* memory,
                                  Error* error);

}  // namespace treadle
