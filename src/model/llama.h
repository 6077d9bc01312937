// The forward of the llama family as a program of operations. Called once per model and engine.
//
// Invariant: the program names every weight of LlamaWeights that the file has, in the order in which a pass
// needs them.
#pragma once

#include "base/memory.h"
#include "base/status.h"
#include "model/hyper_parameters.h"
#include "model/model_weights.h"
#include "ops/program.h"

namespace treadle {

// Replaces *out, whose containers keep the memory they were made with.
void emit_llama(const HyperParameters& model, const LlamaWeights& weights, Program* out);

}  // namespace treadle
