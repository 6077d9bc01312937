// Limits on everything that comes from a file or a caller, in one place: unit, and why that much. A value beyond one is
// Status::LIMIT with the field and the number; nothing in the library loops or allocates by a count that was not checked here.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace treadle::limits {

// Model files. Real files stay far below each of these.
constexpr uint64_t metadata_pairs_max = 1 << 16;
constexpr uint64_t tensors_max = 1 << 16;
constexpr uint64_t key_bytes_max = 1 << 16;  // the GGUF specification's own limit
constexpr uint64_t name_bytes_max =
    256;  // tensor names; the specification says 64, files in the wild go a little beyond
constexpr uint64_t string_bytes_max = 1 << 24;  // one string value, such as a chat template
constexpr uint64_t array_values_max = 1 << 24;  // one array value, such as a vocabulary's merges
constexpr int array_depth_max = 4;              // arrays in arrays
constexpr int tensor_dimensions_max = 4;
constexpr uint64_t metadata_bytes_max = 1ull << 30;  // all of the header
constexpr uint32_t alignment_max = 1 << 16;          // bytes; a page of any system
constexpr uint32_t split_files_max = 1024;

// Hyper-parameters.
constexpr uint32_t layers_max = 512;
constexpr uint32_t hidden_max = 1 << 17;
constexpr uint32_t feed_forward_max = 1 << 20;
constexpr uint32_t heads_max = 1024;
constexpr uint32_t head_dim_max = 512;
constexpr uint32_t context_max =
    1 << 24;  // tokens; positions stay exact in float and int32 slots do not wrap

// Vocabulary.
constexpr uint32_t vocabulary_max = 1 << 22;         // tokens
constexpr uint32_t token_bytes_max = 1 << 16;        // text of one token
constexpr uint64_t vocabulary_bytes_max = 1u << 30;  // all tokens together; offsets are 32-bit
constexpr size_t special_bytes_max = 256;     // at each byte of a text a special of this length may begin
constexpr uint64_t text_bytes_max = 1 << 28;  // text handed to tokenize in one call

// Engines and requests.
constexpr int32_t kv_block_tokens = 16;

// The KV cache is made of slabs of consecutive blocks, a power of two of them, which are given back and taken again as one: 32 to
// 64 slabs, the last one perhaps shorter; of a small cache each block is one.
constexpr int32_t kv_slab_shift(int32_t blocks) {
    return std::bit_width(static_cast<uint32_t>(blocks / 32) | 1u) - 1;
}
constexpr int32_t kv_slab_blocks(int32_t blocks) { return 1 << kv_slab_shift(blocks); }
constexpr int32_t kv_slabs(int32_t blocks) { return ((blocks - 1) >> kv_slab_shift(blocks)) + 1; }
constexpr int32_t kv_blocks_of_slab(int32_t slab, int32_t blocks) {
    const int32_t left = blocks - (slab << kv_slab_shift(blocks));
    return left < kv_slab_blocks(blocks) ? left : kv_slab_blocks(blocks);
}
constexpr int32_t kv_slabs_max = 64;

constexpr int32_t requests_max = 1 << 20;
constexpr int32_t samples_max = 128;  // sequences of a request
constexpr int32_t beam_width_max = 32;
constexpr int32_t batch_tokens_max = 1 << 16;
constexpr int32_t sequences_max = 4096;
constexpr int32_t threads_max = 256;
constexpr int32_t logprobs_max = 20;      // n best per token
constexpr int32_t stop_strings_max = 64;  // per request
constexpr uint32_t stop_string_bytes_max = 4096;
constexpr int32_t stop_tokens_max = 256;
constexpr int32_t prompt_parts_max = 1 << 16;
constexpr int32_t event_room_min = 64;    // events a request can hold back before it sits out of passes
constexpr int32_t candidates_kept = 256;  // best tokens a backend reports per row (numerics contract, rule 7)

}  // namespace treadle::limits
