// The lists of items that are known, and the rendering that they all share.
#include "text/chat_template.h"

#include <cstring>

#include "base/limits.h"
#include "text/template_items.h"
#include "text/utf8.h"

namespace treadle {
namespace {

constexpr std::string_view turn_start = "<|im_start|>";
constexpr std::string_view turn_end = "<|im_end|>";
constexpr std::string_view turn_end_and_separator = "<|im_end|>\n";
constexpr std::string_view separator = "\n";
constexpr std::string_view system_start = "<|im_start|>system\n";
constexpr std::string_view assistant_start = "<|im_start|>assistant\n";

constexpr std::string_view first_is_not_system = "if loop.first and messages.0.role != 'system'";
constexpr std::string_view first_is_system = "if messages.0.role == 'system'";
constexpr std::string_view plain_turn =
    "if ( message.role == 'user' ) or ( message.role == 'system' and not loop.first ) or ( message.role == "
    "'assistant' and "
    "not message.tool_calls )";

}  // namespace

// Walks the list of items from front to back; each read_ function consumes what it names or leaves it.
class ChatTemplateReader {
public:
    ChatTemplateReader(const std::pmr::vector<TemplateItem>& items, ChatTemplate* made)
        : items_(items), made_(made) {}

    bool read() {
        if (is_tag("if not add_generation_prompt is defined")) {
            if (!tag("if not add_generation_prompt is defined") ||
                !tag("set add_generation_prompt = false") || !tag("endif")) {
                return false;
            }
        }
        bool system_before_loop = false;
        if (tag("if tools")) {  // no tools are passed, so the other branch is taken
            skip_branch();
            if (!tag("else") || !read_system() || !tag("endif")) return false;
            system_before_loop = true;
        } else if (is_tag(first_is_system)) {
            if (!read_system()) return false;
            system_before_loop = true;
        }
        return read_loop(system_before_loop) && tag("if add_generation_prompt") && literal(assistant_start) &&
               tag("endif") && next_ == items_.size();
    }

private:
    bool is(TemplateItem::Kind kind, std::string_view text) const {
        return next_ < items_.size() && items_[next_].kind == kind && items_[next_].text == text;
    }
    bool take(TemplateItem::Kind kind, std::string_view text) {
        if (!is(kind, text)) return false;
        ++next_;
        return true;
    }
    bool is_tag(std::string_view text) const { return is(TemplateItem::Kind::tag, text); }
    bool tag(std::string_view text) { return take(TemplateItem::Kind::tag, text); }
    bool literal(std::string_view text) { return take(TemplateItem::Kind::literal, text); }
    bool expression(std::string_view text) { return take(TemplateItem::Kind::expression, text); }

    // To the elif, else or endif of the branch that has just begun.
    void skip_branch() {
        size_t depth = 0;
        for (; next_ < items_.size(); ++next_) {
            if (items_[next_].kind != TemplateItem::Kind::tag) continue;
            const std::string_view text = items_[next_].text;
            if (depth == 0 && (text == "else" || text == "endif" || text.starts_with("elif "))) return;
            if (text.starts_with("if ") || text.starts_with("for "))
                ++depth;
            else if (text == "endif" || text == "endfor")
                --depth;
        }
    }

    // A whole turn of the system in one literal.
    bool read_default_turn() {
        if (next_ >= items_.size() || items_[next_].kind != TemplateItem::Kind::literal) return false;
        std::string_view text = items_[next_].text;
        if (!text.starts_with(system_start) || !text.ends_with(turn_end_and_separator)) return false;
        text.remove_prefix(system_start.size());
        text.remove_suffix(turn_end_and_separator.size());
        made_->default_system_.assign(text.begin(), text.end());
        made_->has_default_system_ = true;
        ++next_;
        return true;
    }

    // The first system message before the loop, or the default one.
    bool read_system() {
        return tag(first_is_system) && literal(system_start) && expression("messages.0.content") &&
               literal(turn_end_and_separator) && tag("else") && read_default_turn() && tag("endif");
    }

    bool read_turn() {
        return literal(turn_start) && expression("message.role") && literal("\n") &&
               expression("message.content") && literal(turn_end_and_separator);
    }

    bool read_loop(bool system_before_loop) {
        if (!tag("for message in messages")) return false;
        if (system_before_loop) {
            made_->known_roles_only_ = true;
            if (!tag(plain_turn) || !read_turn()) return false;
            // These are for calls of tools and their answers; no message has such, and their role is refused.
            if (!tag("elif message.role == 'assistant'")) return false;
            skip_branch();
            if (!tag("elif message.role == 'tool'")) return false;
            skip_branch();
            return tag("endif") && tag("endfor");
        }
        if (is_tag(first_is_not_system) && !(tag(first_is_not_system) && read_default_turn() && tag("endif")))
            return false;
        return read_turn() && tag("endfor");
    }

    const std::pmr::vector<TemplateItem>& items_;
    ChatTemplate* made_;
    size_t next_ = 0;
};

Status make_chat_template(std::string_view text, std::pmr::memory_resource* memory, Owned<ChatTemplate>* out,
                          Error* error) {
    if (text.empty())
        return fail(error, Status::UNSUPPORTED_TEMPLATE, "tokenizer.chat_template: the file has none");
    if (text.size() > limits::string_bytes_max) {
        return fail(error, Status::LIMIT, "tokenizer.chat_template: %zu bytes, the most is %llu", text.size(),
                    static_cast<unsigned long long>(limits::string_bytes_max));
    }
    if (const size_t offset = find_invalid_utf8(text); offset != utf8_valid) {
        return fail(error, Status::UNSUPPORTED_TEMPLATE,
                    "tokenizer.chat_template: byte %zu is not valid UTF-8", offset);
    }
    std::pmr::vector<TemplateItem> items(memory);
    TREADLE_TRY(read_template_items(text, memory, items, error));
    Owned<ChatTemplate> made = make_owned<ChatTemplate>(memory, memory);
    if (!ChatTemplateReader(items, made.get()).read()) {
        return fail(
            error, Status::UNSUPPORTED_TEMPLATE,
            "tokenizer.chat_template: it is not one of the ChatML templates that this version renders");
    }
    *out = std::move(made);
    return Status::OK;
}

Status ChatTemplate::render(std::span<const ChatMessage> messages, ChatStart start, bool generation_prompt,
                            std::pmr::vector<TextSegment>& out, Error* error) const {
    if (messages.empty()) return fail(error, Status::INVALID_ARGUMENT, "chat: there are no messages");
    for (size_t i = 0; i < messages.size(); ++i) {
        const std::string_view role = messages[i].role;
        const int shown = static_cast<int>(role.size() < 80 ? role.size() : 80);
        if (find_invalid_utf8(role) != utf8_valid)
            return fail(error, Status::INVALID_UTF8, "chat: the role of message %zu is not valid UTF-8", i);
        const bool unknown = role != "system" && role != "user" && role != "assistant";
        if (role.empty() || role.find_first_of("\n\r") != std::string_view::npos ||
            (known_roles_only_ && unknown)) {
            return fail(error, Status::INVALID_ARGUMENT,
                        "chat: message %zu has the role \"%.*s\", which this template does not take", i,
                        shown, role.data());
        }
        if (const size_t offset = find_invalid_utf8(messages[i].content); offset != utf8_valid) {
            return fail(error, Status::INVALID_UTF8,
                        "chat: byte %zu of message %zu begins no valid UTF-8 character", offset, i);
        }
    }
    out.reserve(out.size() + 5 * messages.size() + 4);
    switch (start) {
        case ChatStart::fresh:
            if (has_default_system_ && messages[0].role != "system") {
                out.push_back({system_start, true});
                out.push_back({default_system(), true});
                out.push_back({turn_end_and_separator, true});
            }
            break;
        case ChatStart::open_turn: out.push_back({turn_end_and_separator, true}); break;
        case ChatStart::closed_turn: out.push_back({separator, true}); break;
        case ChatStart::between_turns: break;
    }
    for (const ChatMessage& message : messages) {
        out.push_back({turn_start, true});
        out.push_back({message.role, false});
        out.push_back({separator, true});
        out.push_back({message.content, false});
        out.push_back({turn_end_and_separator, true});
    }
    if (generation_prompt) out.push_back({assistant_start, true});
    return Status::OK;
}

ChatStart ChatTemplate::start_after(const Vocabulary& vocabulary, std::span<const int32_t> tokens) {
    if (tokens.empty()) return ChatStart::fresh;
    const auto bytes_from_end = [&](size_t back) -> std::string_view {
        const int32_t id = back <= tokens.size() ? tokens[tokens.size() - back] : -1;
        return id >= 0 && id < vocabulary.size() ? vocabulary.token_bytes(id) : std::string_view();
    };
    if (const int32_t end = vocabulary.find_special(turn_end); end >= 0) {
        if (tokens.back() == end) return ChatStart::closed_turn;
        const bool after_end = tokens.size() >= 2 && tokens[tokens.size() - 2] == end;
        return after_end && bytes_from_end(1) == separator ? ChatStart::between_turns : ChatStart::open_turn;
    }
    // The vocabulary has no token for the end of a turn, so it is spelled with ordinary ones: look at the last bytes.
    char tail[turn_end_and_separator.size()];
    size_t count = 0;
    for (size_t back = 1; back <= tokens.size() && back <= sizeof tail && count < sizeof tail; ++back) {
        const std::string_view bytes = bytes_from_end(back);
        const size_t taken = bytes.size() < sizeof tail - count ? bytes.size() : sizeof tail - count;
        std::memcpy(tail + sizeof tail - count - taken, bytes.data() + bytes.size() - taken, taken);
        count += taken;
    }
    const std::string_view last(tail + sizeof tail - count, count);
    if (last.ends_with(turn_end_and_separator)) return ChatStart::between_turns;
    return last.ends_with(turn_end) ? ChatStart::closed_turn : ChatStart::open_turn;
}

}  // namespace treadle
