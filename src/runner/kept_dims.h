// Which dimensions of the keys tbq4x keeps apart: of each layer and KV head the eighth of the rotary pairs that carry most energy
// in one pass over 64 tokens, drawn from the vocabulary. A pair's energy doesn't change with its position, so the choice holds at
// every one. The api layer asks once per model, when an engine with such keys is first made.
//
// Invariant: a function of the model and its numerics_id, by bytes.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "base/hooks.h"
#include "model/rope_tables.h"
#include "ops/backend.h"

namespace treadle {

constexpr int32_t kept_sample_tokens = 64;

// `backend` is fresh and `program` has f16 keys; both serve this call only. *out: as Program::kept_dims. STOPPED: by `progress`,
// which counts tokens. Other statuses come from the backend; memory for the backend and for the call is freed by its end.
[[nodiscard]] Status choose_kept_dims(const Program& program, const RopeTable& rope, Backend& backend,
                                      const ProgressHook& progress, std::pmr::vector<uint16_t>* out,
                                      Error* error);

}  // namespace treadle
