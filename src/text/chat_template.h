// Chat templates of the ChatML family, recognised from the file's own template text, and the rendering of messages to typed
// segments. The api renders the chat parts of a prompt with it.
//
// Recognition is strict: the template is read into a short list of statements, and only lists whose every effect is reproduced
// here are accepted. All else is UNSUPPORTED_TEMPLATE, never a wrong prompt. Branches that need tools are skipped over, since no
// tools can be passed; a message that would enter one of them is refused.
//
// Invariant: only the template's own text allows specials. Roles and contents are plain, whatever they spell.
//
//     <|im_start|>role\ncontent<|im_end|>\n …  <|im_start|>assistant\n
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "text/vocabulary.h"

namespace treadle {

struct ChatMessage {
    std::string_view role;
    std::string_view content;
};

// What the prompt holds before the messages.
enum class ChatStart : int32_t {
    fresh,          // nothing: the template's default system message applies
    open_turn,      // tokens whose last turn lacks its end
    closed_turn,    // tokens that end with the end of a turn
    between_turns,  // tokens that end with the end of a turn and the separator
};

class ChatTemplate {
public:
    explicit ChatTemplate(std::pmr::memory_resource* memory) : default_system_(memory) {}

    // Appends the segments of the messages. They are views of the messages, of this template and of constants, so those must
    // outlive them. `generation_prompt` opens the assistant's turn at the end.
    // INVALID_ARGUMENT: no message at all, or a role (named) that is empty, has a line break, or is one that this template
    // treats specially. INVALID_UTF8: a role or content. On failure `out` is as before.
    [[nodiscard]] Status render(std::span<const ChatMessage> messages, ChatStart start,
                                bool generation_prompt, std::pmr::vector<TextSegment>& out,
                                Error* error) const;

    // Where tokens before the messages leave off. No tokens are ChatStart::fresh.
    static ChatStart start_after(const Vocabulary& vocabulary, std::span<const int32_t> tokens);

    // The rule of a prompt: the assistant speaks next unless it spoke last.
    static bool wants_generation_prompt(std::span<const ChatMessage> messages) {
        return !messages.empty() && messages.back().role != "assistant";
    }

    // The system message that a conversation without one gets; empty: none.
    std::string_view default_system() const { return {default_system_.data(), default_system_.size()}; }

private:
    friend class ChatTemplateReader;

    std::pmr::vector<char> default_system_;  // the whole default turn's content
    bool has_default_system_ = false;
    bool known_roles_only_ = false;  // the template branches on the role
};

// UNSUPPORTED_TEMPLATE for a missing template and for each that is not known to be reproduced; `out` is set only on success.
[[nodiscard]] Status make_chat_template(std::string_view text, std::pmr::memory_resource* memory,
                                        Owned<ChatTemplate>* out, Error* error);

}  // namespace treadle
