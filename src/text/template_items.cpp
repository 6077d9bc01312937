// A lexer for the outside of Jinja (text and tags) and one for the inside of tags.
#include "text/template_items.h"

#include <algorithm>

namespace treadle {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c); }

struct Token {
    enum class Kind : uint8_t { name, number, string, operation };
    Kind kind;
    std::pmr::string text;  // of a string: its value
};

class Reader {
public:
    Reader(std::string_view source, std::pmr::memory_resource* memory, std::pmr::vector<TemplateItem>& items)
        : source_(memory), tokens_(memory), memory_(memory), items_(items) {
        source_.reserve(source.size());
        for (size_t i = 0; i < source.size(); ++i) {  // line ends are \n, and a last one doesn't count
            if (source[i] != '\r')
                source_.push_back(source[i]);
            else if (i + 1 == source.size() || source[i + 1] != '\n')
                source_.push_back('\n');
        }
        if (!source_.empty() && source_.back() == '\n') source_.pop_back();
    }

    Status read(Error* error) {
        while (at_ < source_.size()) {
            const size_t open = find_open();
            add_text(open);
            if (open == source_.size()) break;
            const char kind = source_[open + 1];
            at_ = open + 2;
            if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
            if (kind == '#') {
                TREADLE_TRY(skip_comment(open, error));
                continue;
            }
            TREADLE_TRY(read_tag(kind == '{' ? '}' : '%', error));
            if (kind == '{')
                add_output();
            else
                items_.push_back({TemplateItem::Kind::tag, join(0, tokens_.size())});
        }
        return Status::OK;
    }

private:
    Status unreadable(size_t byte, const char* what, Error* error) const {
        return fail(error, Status::UNSUPPORTED_TEMPLATE, "tokenizer.chat_template: byte %zu: %s", byte, what);
    }

    size_t find_open() const {
        for (size_t i = at_; i + 1 < source_.size(); ++i) {
            if (source_[i] == '{' &&
                (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
                return i;
        }
        return source_.size();
    }

    // The text from at_ to the tag at `open`, without the white space that the tag takes away.
    void add_text(size_t open) {
        size_t end = open;
        if (open + 2 < source_.size()) {
            const char mark = source_[open + 2];
            if (mark == '-') {
                while (end > at_ && is_space(source_[end - 1])) --end;
            } else if (source_[open + 1] != '{' && mark != '+') {
                size_t line = end;
                while (line > at_ && source_[line - 1] != '\n' && is_space(source_[line - 1])) --line;
                const bool at_line_start = line == 0 || source_[line - 1] == '\n';
                if (at_line_start) end = line;
            }
        }
        if (end > at_) add_literal(std::string_view(source_).substr(at_, end - at_));
        at_ = open;
    }

    void add_literal(std::string_view text) {
        if (text.empty()) return;
        if (items_.empty() || items_.back().kind != TemplateItem::Kind::literal) {
            items_.push_back({TemplateItem::Kind::literal, std::pmr::string(memory_)});
        }
        items_.back().text.append(text);
    }

    // After a closing mark: what it takes away of the text that follows.
    void close(bool strip, bool keep, bool block) {
        if (strip) {
            while (at_ < source_.size() && is_space(source_[at_])) ++at_;
        } else if (block && !keep && at_ < source_.size() && source_[at_] == '\n') {
            ++at_;
        }
    }

    Status skip_comment(size_t open, Error* error) {
        const size_t end = source_.find("#}", at_);
        if (end == std::string::npos) return unreadable(open, "a comment has no end", error);
        const char mark = end > at_ ? source_[end - 1] : ' ';
        at_ = end + 2;
        close(mark == '-', mark == '+', true);
        return Status::OK;
    }

    // Fills tokens_ up to the closing mark, `last` and }.
    Status read_tag(char last, Error* error) {
        const size_t open = at_;
        tokens_.clear();
        while (true) {
            while (at_ < source_.size() && is_space(source_[at_])) ++at_;
            if (at_ >= source_.size()) return unreadable(open, "a tag has no end", error);
            const char c = source_[at_];
            const size_t mark = at_ + (c == '-' || c == '+' ? 1 : 0);
            if (source_.compare(mark, 2, last == '%' ? "%}" : "}}") == 0) {
                at_ = mark + 2;
                close(c == '-', c == '+', last == '%');
                return Status::OK;
            }
            TREADLE_TRY(c == '\'' || c == '"' ? read_string(c, error) : read_word(c, error));
        }
    }

    Status read_word(char c, Error* error) {
        const size_t start = at_;
        Token::Kind kind = Token::Kind::operation;
        if (is_name(c)) {
            kind = is_digit(c) ? Token::Kind::number : Token::Kind::name;
            while (at_ < source_.size() && is_name(source_[at_])) ++at_;
        } else if (c < ' ' || c > '~') {
            return unreadable(at_, "a character that no tag has", error);
        } else {
            static constexpr std::string_view two[] = {"==", "!=", "<=", ">=", "//", "**"};
            const std::string_view next = std::string_view(source_).substr(at_, 2);
            at_ += std::find(std::begin(two), std::end(two), next) != std::end(two) ? 2 : 1;
        }
        tokens_.push_back(
            {kind, std::pmr::string(std::string_view(source_).substr(start, at_ - start), memory_)});
        return Status::OK;
    }

    Status read_string(char quote, Error* error) {
        const size_t start = at_++;
        std::pmr::string value(memory_);
        for (; at_ < source_.size() && source_[at_] != quote; ++at_) {
            if (source_[at_] != '\\') {
                value.push_back(source_[at_]);
                continue;
            }
            const char escaped = at_ + 1 < source_.size() ? source_[++at_] : '\0';
            switch (escaped) {
                case 'n': value.push_back('\n'); break;
                case 't': value.push_back('\t'); break;
                case 'r': value.push_back('\r'); break;
                case '\\':
                case '\'':
                case '"': value.push_back(escaped); break;
                default: return unreadable(at_, "an escape in a string that is not supported", error);
            }
        }
        if (at_ == source_.size()) return unreadable(start, "a string has no end", error);
        ++at_;
        tokens_.push_back({Token::Kind::string, std::move(value)});
        return Status::OK;
    }

    bool is_operation(size_t index, std::string_view text) const {
        return index < tokens_.size() && tokens_[index].kind == Token::Kind::operation &&
               tokens_[index].text == text;
    }

    // One spelling: a.b for a.b and a['b'], a.0 for a[0]; strings in single quotes; one space between all else.
    std::pmr::string join(size_t first, size_t last) const {
        std::pmr::string text(memory_);
        for (size_t i = first; i < last; ++i) {
            const Token& token = tokens_[i];
            if (i > first && is_operation(i, ".") && i + 1 < last &&
                tokens_[i + 1].kind == Token::Kind::name) {
                text.append(".").append(tokens_[++i].text);
                continue;
            }
            if (i > first && is_operation(i, "[") && is_operation(i + 2, "]") && i + 2 < last &&
                is_member(tokens_[i + 1])) {
                text.append(".").append(tokens_[i + 1].text);
                i += 2;
                continue;
            }
            if (i > first) text.push_back(' ');
            if (token.kind == Token::Kind::string)
                append_quoted(token.text, text);
            else
                text.append(token.text);
        }
        return text;
    }

    static void append_quoted(std::string_view value, std::pmr::string& text) {
        text.push_back('\'');
        for (const char c : value) {
            if (c == '\'' || c == '\\') text.push_back('\\');
            text.push_back(c);
        }
        text.push_back('\'');
    }

    static bool is_member(const Token& token) {
        if (token.kind == Token::Kind::number) return true;
        return token.kind == Token::Kind::string && !token.text.empty() && !is_digit(token.text[0]) &&
               std::all_of(token.text.begin(), token.text.end(), is_name);
    }

    // Puts out each operand of a sum of strings.
    void add_output() {
        size_t first = 0;
        while (first < tokens_.size()) {
            size_t last = first;
            size_t depth = 0;
            for (; last < tokens_.size(); ++last) {
                if (is_operation(last, "(") || is_operation(last, "[") || is_operation(last, "{")) ++depth;
                if (depth > 0 &&
                    (is_operation(last, ")") || is_operation(last, "]") || is_operation(last, "}")))
                    --depth;
                if (depth == 0 && (is_operation(last, "+") || is_operation(last, "~"))) break;
            }
            if (last == first + 1 && tokens_[first].kind == Token::Kind::string) {
                add_literal(tokens_[first].text);
            } else {
                std::pmr::string text = join(first, last);
                const bool plain =
                    last > first && tokens_[first].kind == Token::Kind::name &&
                    std::all_of(text.begin(), text.end(), [](char c) { return is_name(c) || c == '.'; });
                items_.push_back(
                    {plain ? TemplateItem::Kind::expression : TemplateItem::Kind::opaque, std::move(text)});
            }
            first = last + 1;
        }
        // `{{ }}` and a sum without its last operand are errors in Jinja.
        if (tokens_.empty() || is_operation(tokens_.size() - 1, "+") ||
            is_operation(tokens_.size() - 1, "~")) {
            items_.push_back({TemplateItem::Kind::opaque, std::pmr::string(memory_)});
        }
    }

    std::pmr::string source_;
    size_t at_ = 0;
    std::pmr::vector<Token> tokens_;  // of the tag under way
    std::pmr::memory_resource* memory_;
    std::pmr::vector<TemplateItem>& items_;
};

}  // namespace

Status read_template_items(std::string_view source, std::pmr::memory_resource* memory,
                           std::pmr::vector<TemplateItem>& items, Error* error) {
    items.clear();
    return Reader(source, memory, items).read(error);
}

}  // namespace treadle
