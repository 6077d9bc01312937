// From the typed parts of a prompt to tokens: what engine_tokenize shows and engine_submit does.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <string_view>
#include <vector>

#include "api/handles.h"
#include "base/status.h"

namespace treadle::api {

// Names a field of a caller's array in messages: parts[3].text.
struct FieldName {
    const char* array;
    size_t index;
    const char* field;
};

// A caller's string as a view. INVALID_ARGUMENT names `field` where it is null but not empty.
Status view_of(const FieldName& field, const char* text, size_t bytes, std::string_view* out, Error* error);

// Appends the prompt's tokens to `out`; on failure it is as before. Every message names the part's index.
Status build_prompt(const engine_model& model, const engine_part* parts, size_t part_size, size_t part_count,
                    std::pmr::vector<int32_t>* out, Error* error);

// The same for the beginning of prompts: chat messages are not followed by the opening of an answer.
Status build_prefix(const engine_model& model, const engine_part* parts, size_t part_size, size_t part_count,
                    std::pmr::vector<int32_t>* out, Error* error);

// Reads the messages, all of which must be chat messages, into views of the caller's strings.
Status read_messages(const engine_part* parts, size_t part_size, size_t first, size_t count,
                     std::pmr::vector<ChatMessage>* out, Error* error);

engine_part default_part();

}  // namespace treadle::api
