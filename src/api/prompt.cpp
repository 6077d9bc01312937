// Walks the parts once: tokens are copied, runs of text are tokenized as one string, runs of chat messages are rendered first.
#include "api/prompt.h"

#include "api/structs.h"
#include "base/limits.h"

namespace treadle::api {
namespace {

class PromptBuilder {
public:
    PromptBuilder(const engine_model& model, bool opens_answer, std::pmr::vector<int32_t>* out, Error* error)
        : model_(model), vocabulary_(model.model->vocabulary()), opens_answer_(opens_answer), out_(out),
          error_(error), segments_(&model.memory.scratch), messages_(&model.memory.scratch) {}

    Status add(const engine_part* parts, size_t part_size, size_t part_count) {
        for (size_t i = 0; i < part_count;) {
            engine_part part = default_part();
            TREADLE_TRY(read_element("engine_part", parts, part_size, i, &part, error_));
            if (i == 0 && part.kind != ENGINE_PART_TOKENS && vocabulary_.add_bos() && vocabulary_.bos() >= 0)
                out_->push_back(vocabulary_.bos());
            size_t taken = 1;
            switch (part.kind) {
                case ENGINE_PART_TEXT:
                case ENGINE_PART_TEXT_SPECIALS: TREADLE_TRY(add_text(part, i)); break;
                case ENGINE_PART_TOKENS: TREADLE_TRY(add_tokens(part, i)); break;
                case ENGINE_PART_CHAT_MESSAGE:
                    TREADLE_TRY(add_chat(parts, part_size, i, part_count, &taken));
                    break;
                default:
                    return fail(error_, Status::INVALID_ARGUMENT,
                                "parts[%zu].kind is %d, which is no kind of part", i, part.kind);
            }
            i += taken;
        }
        return flush_text();
    }

private:
    Status add_text(const engine_part& part, size_t index) {
        std::string_view text;
        TREADLE_TRY(view_of({"parts", index, "text"}, part.text, part.text_bytes, &text, error_));
        segments_.push_back({text, part.kind == ENGINE_PART_TEXT_SPECIALS});
        after_tokens_ = false;
        return Status::OK;
    }

    Status add_tokens(const engine_part& part, size_t index) {
        TREADLE_TRY(flush_text());
        if (part.token_count < 0 || (part.token_count > 0 && part.tokens == nullptr))
            return fail(error_, Status::INVALID_ARGUMENT, "parts[%zu] has %d tokens at %s", index,
                        part.token_count, part.tokens == nullptr ? "a null pointer" : "an address");
        for (int32_t i = 0; i < part.token_count; i++)
            if (part.tokens[i] < 0 || part.tokens[i] >= vocabulary_.size())
                return fail(error_, Status::TOKEN_OUT_OF_RANGE,
                            "parts[%zu].tokens[%d] is %d, the vocabulary has %d tokens", index, i,
                            part.tokens[i], vocabulary_.size());
        if (part.token_count > 0) out_->insert(out_->end(), part.tokens, part.tokens + part.token_count);
        after_tokens_ = true;
        return Status::OK;
    }

    Status add_chat(const engine_part* parts, size_t part_size, size_t first, size_t part_count,
                    size_t* taken) {
        if (model_.chat_template == nullptr)
            return fail(error_, model_.chat_error.status, "%s", model_.chat_error.message);
        if (first > 0 && !after_tokens_)
            return fail(error_, Status::INVALID_ARGUMENT,
                        "parts[%zu] is a chat message after a text part; chat messages come first or follow "
                        "a tokens part",
                        first);
        while (first + *taken < part_count) {
            engine_part part = default_part();
            TREADLE_TRY(read_element("engine_part", parts, part_size, first + *taken, &part, error_));
            if (part.kind != ENGINE_PART_CHAT_MESSAGE) break;
            ++*taken;
        }
        messages_.clear();
        TREADLE_TRY(read_messages(parts, part_size, first, *taken, &messages_, error_));
        const ChatStart start =
            ChatTemplate::start_after(vocabulary_, first == 0 ? std::span<const int32_t>() : *out_);
        const bool opens = opens_answer_ && ChatTemplate::wants_generation_prompt(messages_);
        TREADLE_TRY(model_.chat_template->render(messages_, start, opens, segments_, error_));
        after_tokens_ = false;
        return Status::OK;
    }

    Status flush_text() {
        TREADLE_TRY(vocabulary_.tokenize(segments_, *out_, &model_.memory.scratch, error_));
        segments_.clear();
        return Status::OK;
    }

    const engine_model& model_;
    const Vocabulary& vocabulary_;
    const bool opens_answer_;
    std::pmr::vector<int32_t>* out_;
    Error* error_;
    std::pmr::vector<TextSegment> segments_;
    std::pmr::vector<ChatMessage> messages_;
    bool after_tokens_ = false;  // the part before is a tokens part: chat messages may follow
};

}  // namespace

engine_part default_part() {
    engine_part part = {};
    part.text_bytes = ENGINE_ZERO_TERMINATED;
    return part;
}

Status view_of(const FieldName& field, const char* text, size_t bytes, std::string_view* out, Error* error) {
    if (text == nullptr && bytes != 0)
        return fail(error, Status::INVALID_ARGUMENT, "%s[%zu].%s is null", field.array, field.index,
                    field.field);
    if (bytes == ENGINE_ZERO_TERMINATED) bytes = std::strlen(text);
    if (bytes > limits::text_bytes_max)
        return fail(error, Status::LIMIT, "%s[%zu].%s has %zu bytes, at most %llu are taken", field.array,
                    field.index, field.field, bytes, static_cast<unsigned long long>(limits::text_bytes_max));
    *out = bytes == 0 ? std::string_view() : std::string_view(text, bytes);
    return Status::OK;
}

Status read_messages(const engine_part* parts, size_t part_size, size_t first, size_t count,
                     std::pmr::vector<ChatMessage>* out, Error* error) {
    for (size_t i = first; i < first + count; i++) {
        engine_part part = default_part();
        TREADLE_TRY(read_element("engine_part", parts, part_size, i, &part, error));
        if (part.kind != ENGINE_PART_CHAT_MESSAGE)
            return fail(error, Status::INVALID_ARGUMENT, "parts[%zu].kind is %d, not a chat message", i,
                        part.kind);
        ChatMessage message;
        TREADLE_TRY(view_of({"parts", i, "role"}, part.role, ENGINE_ZERO_TERMINATED, &message.role, error));
        TREADLE_TRY(view_of({"parts", i, "text"}, part.text, part.text_bytes, &message.content, error));
        out->push_back(message);
    }
    return Status::OK;
}

namespace {

Status build(const engine_model& model, bool opens_answer, const engine_part* parts, size_t part_size,
             size_t part_count, std::pmr::vector<int32_t>* out, Error* error) {
    if (part_count > 0 && parts == nullptr)
        return fail(error, Status::INVALID_ARGUMENT, "parts is null, part_count is %zu", part_count);
    if (part_count > static_cast<size_t>(limits::prompt_parts_max))
        return fail(error, Status::LIMIT, "part_count is %zu, at most %d are taken", part_count,
                    limits::prompt_parts_max);
    const size_t before = out->size();
    const Status status = PromptBuilder(model, opens_answer, out, error).add(parts, part_size, part_count);
    if (status != Status::OK) out->resize(before);
    return status;
}

}  // namespace

Status build_prompt(const engine_model& model, const engine_part* parts, size_t part_size, size_t part_count,
                    std::pmr::vector<int32_t>* out, Error* error) {
    return build(model, true, parts, part_size, part_count, out, error);
}

Status build_prefix(const engine_model& model, const engine_part* parts, size_t part_size, size_t part_count,
                    std::pmr::vector<int32_t>* out, Error* error) {
    return build(model, false, parts, part_size, part_count, out, error);
}

}  // namespace treadle::api
