// Reads the text of a Jinja chat template into a flat list of items, in one spelling for each meaning: what
// is put out, and which tags stand around it. Internal to chat_template.cpp, which compares such lists with
// those it knows.
//
//     {% if x['role'] == "user" %}{{ 'a' + x.content }}b{% endif %}
//     tag "if x.role == 'user'" · literal "a" · expression "x.content" · literal "b" · tag "endif"
//
// Invariant: two templates with equal lists render equally. White space is handled as the libraries that use
// such templates set Jinja up (trim_blocks and lstrip_blocks on). Nothing is evaluated, nothing nests.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace treadle {

struct TemplateItem {
    enum class Kind : uint8_t {
        literal,     // text; neighbours are joined
        expression,  // a name with members, put out
        tag,         // a statement
        opaque,      // some other thing put out
    };
    Kind kind;
    std::pmr::string text;
};

// UNSUPPORTED_TEMPLATE names the byte at which the text can't be read.
[[nodiscard]] Status read_template_items(std::string_view source, std::pmr::memory_resource* memory,
                                         std::pmr::vector<TemplateItem>& items, Error* error);

}  // namespace treadle
