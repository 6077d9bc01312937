// The way from a file's tokenizer keys to a Vocabulary. Called once by the model loader.
#pragma once

#include "base/memory.h"
#include "base/status.h"
#include "gguf/metadata.h"
#include "text/vocabulary.h"

namespace treadle {

// CORRUPT: a key is missing or has the wrong type; otherwise what make_vocabulary says. The vocabulary lives
// in `memory` and keeps nothing of the metadata.
[[nodiscard]] Status load_vocabulary(const Metadata& metadata, Memory* scratch, Memory* memory,
                                     Owned<Vocabulary>* out, Error* error);

}  // namespace treadle
