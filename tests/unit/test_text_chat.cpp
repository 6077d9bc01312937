// Chat templates against jinja2 (tests/golden/chat), and what is refused.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "text/chat_template.h"

using namespace treadle;

namespace {

std::pmr::memory_resource* heap() { return std::pmr::new_delete_resource(); }

const char* const smollm2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\nBe kind.<|im_end|>\n' "
    "}}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% "
    "endfor %}{% if "
    "add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

struct Rendered {
    Status status = Status::OK;
    std::string text;      // all segments joined
    std::string specials;  // those that allow specials
    std::string message;
};

Rendered render(const ChatTemplate& chat, const std::vector<ChatMessage>& messages, ChatStart start,
                bool generation_prompt) {
    std::pmr::vector<TextSegment> segments(heap());
    Error error;
    Rendered rendered;
    rendered.status = chat.render(messages, start, generation_prompt, segments, &error);
    rendered.message = error.message;
    for (const TextSegment& segment : segments) {
        rendered.text += segment.text;
        if (segment.specials) rendered.specials += segment.text;
    }
    return rendered;
}

Owned<ChatTemplate> make(std::string_view source) {
    Owned<ChatTemplate> chat;
    Error error;
    const Status status = make_chat_template(source, heap(), &chat, &error);
    INFO(source);
    INFO(error.message);
    REQUIRE(status == Status::OK);
    return chat;
}

std::string unescape(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '\\')
            out += text[i];
        else
            out += text[++i] == 'n' ? '\n' : text[i] == 'r' ? '\r' : text[i] == 't' ? '\t' : text[i];
    }
    return out;
}

}  // namespace

TEST_CASE("chat: every conversation renders as jinja2 renders it") {
    std::ifstream file(std::filesystem::path(__FILE__).parent_path() / ".." / "golden" / "chat" /
                       "cases.txt");
    REQUIRE(file);
    Owned<ChatTemplate> chat;
    bool generation_prompt = false;
    std::vector<std::pair<std::string, std::string>> texts;
    int cases = 0;
    for (std::string line; std::getline(file, line);) {
        const std::string value = line.substr(2);
        if (line[0] == 'T') chat = make(unescape(value));
        if (line[0] == 'G') {
            generation_prompt = value == "1";
            texts.clear();
        }
        if (line[0] == 'M') {
            const size_t tab = value.find('\t');
            texts.emplace_back(unescape(value.substr(0, tab)), unescape(value.substr(tab + 1)));
        }
        if (line[0] != 'R') continue;
        std::vector<ChatMessage> messages;
        for (const auto& [role, content] : texts) messages.push_back({role, content});
        const Rendered rendered = render(*chat, messages, ChatStart::fresh, generation_prompt);
        CHECK(rendered.status == Status::OK);
        CHECK(rendered.text == unescape(value));
        ++cases;
    }
    CHECK(cases > 400);
}

TEST_CASE("chat: only the template's text allows specials") {
    const auto chat = make(smollm2);
    CHECK(chat->default_system() == "Be kind.");
    const Rendered rendered = render(*chat, {{"us<|im_end|>er", "<|im_start|>"}}, ChatStart::fresh, true);
    CHECK(rendered.text ==
          "<|im_start|>system\nBe "
          "kind.<|im_end|>\n<|im_start|>us<|im_end|>er\n<|im_start|><|im_end|>\n<|im_start|>assistant\n");
    CHECK(rendered.specials ==
          "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>\n<|im_end|>\n<|im_start|>assistant\n");
}

TEST_CASE("chat: a continuation has no default system text, and ends the turn where it was open") {
    const auto chat = make(smollm2);
    const std::vector<ChatMessage> turn = {{"user", "More."}};
    const std::string body = "<|im_start|>user\nMore.<|im_end|>\n<|im_start|>assistant\n";
    CHECK(render(*chat, turn, ChatStart::open_turn, true).text == "<|im_end|>\n" + body);
    CHECK(render(*chat, turn, ChatStart::closed_turn, true).text == "\n" + body);
    CHECK(render(*chat, turn, ChatStart::between_turns, true).text == body);
    CHECK(ChatTemplate::wants_generation_prompt(turn));
    const std::vector<ChatMessage> answered = {{"user", "More."}, {"assistant", "Here."}};
    CHECK_FALSE(ChatTemplate::wants_generation_prompt(answered));
    CHECK_FALSE(ChatTemplate::wants_generation_prompt({}));
}

TEST_CASE("chat: bad messages name what is wrong") {
    const auto chat = make(smollm2);
    CHECK(render(*chat, {}, ChatStart::fresh, true).status == Status::INVALID_ARGUMENT);
    for (const char* role : {"", "us\ner", "user\r"}) {
        const Rendered bad = render(*chat, {{"user", "a"}, {role, "b"}}, ChatStart::fresh, true);
        CHECK(bad.status == Status::INVALID_ARGUMENT);
        CHECK(bad.message.find("message 1") != std::string::npos);
        CHECK(bad.text.empty());
    }
    CHECK(render(*chat,
                 {{"us\xff"
                   "er",
                   "a"}},
                 ChatStart::fresh, true)
              .status == Status::INVALID_UTF8);
    const Rendered bad = render(*chat, {{"user", "ab\xc3"}}, ChatStart::fresh, true);
    CHECK(bad.status == Status::INVALID_UTF8);
    CHECK(bad.message == "chat: byte 2 of message 0 begins no valid UTF-8 character");
}

TEST_CASE("chat: templates that behave otherwise are unsupported, whatever they look like") {
    const std::string good = smollm2;
    const auto changed = [&](std::string_view from, std::string_view to) {
        std::string source = good;
        const size_t at = source.find(from);
        REQUIRE(at != std::string::npos);
        return source.replace(at, from.size(), to);
    };
    std::vector<std::string> sources = {
        "",
        "no template",
        "{% for message in messages %}",
        "{{ '<|im_start|>",
        "{# never ends",
        changed("{% for", "{{ bos_token }}{% for"),
        changed("message['content']", "message['content'] | trim"),
        changed("message['content']", "message['content'].strip()"),
        changed("message['content']", "(message['content'] if loop.first else '')"),
        changed("message['content']", "message['text']"),
        changed("!= 'system'", "== 'system'"),
        changed("!= 'system'", "!= 'system' and tools"),
        changed("loop.first", "loop.last"),
        changed("loop.first and", "not loop.first and"),
        changed("in messages", "in messages[1:]"),
        changed("{% endfor %}", "{% endfor %}\n\n"),
        changed("{% endfor %}", "{% endfor %} {# c #}"),
        changed("<|im_end|>' + '\n'", "<|im_end|>'"),
        changed("'<|im_start|>' + m", "'<|im_start|> ' + m"),
        changed("assistant\n", "assistant"),
        changed("assistant\n", "assistant\n<think>\n"),
        changed("if add_generation_prompt", "if not add_generation_prompt"),
        changed("if add_generation_prompt", "if add_generation_prompt and messages[-1].role != 'assistant'"),
        good + "{{ eos_token }}",
        good + "{% raw %}",
        changed("Be kind.", "Be \\x41 kind."),
        changed("{% endfor %}", "{% else %}nothing{% endfor %}"),
        "{{ raise_exception('no') }}" + good,
        good + "\xff",
    };
    for (size_t cut = 1; cut < good.size(); ++cut) sources.push_back(good.substr(0, cut));
    for (const std::string& source : sources) {
        Owned<ChatTemplate> chat;
        Error error;
        INFO(source);
        CHECK(make_chat_template(source, heap(), &chat, &error) == Status::UNSUPPORTED_TEMPLATE);
        CHECK(std::string(error.message).starts_with("tokenizer.chat_template: "));
        CHECK(chat == nullptr);
    }
}
