// The scenarios that look inside the library, over a model that computes nothing.
#pragma once

#include "fake_engine.h"
#include "serving/workload.h"

namespace treadle::bench {

Json run_step(const Flags& flags);
Json run_queue(const Flags& flags);
Json run_intake(const Flags& flags);
Json run_heads(const Flags& flags);
Json run_lookup(const Flags& flags);
Json run_blocks(const Flags& flags);

}  // namespace treadle::bench
