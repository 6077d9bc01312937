// Tokenizing, detokenizing and chat templates.
#include "api/handles.h"
#include "api/prompt.h"
#include "api/structs.h"
#include "base/limits.h"

namespace treadle {

namespace {

// Writes a result of counted elements: all of it, or nothing and BUFFER_TOO_SMALL.
template <class T>
Status deliver(const char* what, const T* from, size_t size, T* to, size_t capacity, size_t* count,
               Error* error) {
    if (count != nullptr) *count = size;
    if (size > capacity)
        return fail(error, Status::BUFFER_TOO_SMALL, "there are %zu %s, the buffer has room for %zu", size,
                    what, capacity);
    if (size > 0 && to == nullptr)
        return fail(error, Status::INVALID_ARGUMENT, "the buffer for %zu %s is null", size, what);
    if (size > 0) std::memcpy(to, from, size * sizeof(T));
    return Status::OK;
}

}  // namespace

extern "C" {

ENGINE_API engine_status engine_part_init(engine_part* part, size_t size) {
    return api::init_struct(part, size, api::default_part());
}

ENGINE_API engine_status engine_tokenize(const engine_model* model, const engine_part* parts,
                                         size_t part_size, size_t part_count, int32_t* tokens,
                                         size_t capacity, size_t* count, engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(model);
        std::pmr::vector<int32_t> ids(&model->memory.scratch);
        TREADLE_TRY(api::build_prompt(*model, parts, part_size, part_count, &ids, error));
        return deliver("tokens", ids.data(), ids.size(), tokens, capacity, count, error);
    });
}

ENGINE_API engine_status engine_detokenize(const engine_model* model, const int32_t* tokens,
                                           size_t token_count, int32_t specials, char* bytes, size_t capacity,
                                           size_t* count, engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(model);
        if (token_count > 0) TREADLE_REQUIRE(tokens);
        if (token_count > limits::text_bytes_max)
            return fail(error, Status::LIMIT, "token_count is %zu, at most %llu are taken", token_count,
                        static_cast<unsigned long long>(limits::text_bytes_max));
        std::pmr::vector<char> text(&model->memory.scratch);
        TREADLE_TRY(model->model->vocabulary().detokenize({tokens, token_count}, specials != 0, text, error));
        return deliver("bytes", text.data(), text.size(), bytes, capacity, count, error);
    });
}

ENGINE_API engine_status engine_apply_chat_template(const engine_model* model, const engine_part* messages,
                                                    size_t part_size, size_t message_count,
                                                    int32_t continuation, engine_part* parts,
                                                    size_t part_capacity, size_t* part_count, char* bytes,
                                                    size_t byte_capacity, size_t* byte_count,
                                                    engine_error* error_out) {
    return api::guarded(error_out, [&](Error* error) {
        TREADLE_REQUIRE(model);
        if (message_count > 0) TREADLE_REQUIRE(messages);
        if (message_count > static_cast<size_t>(limits::prompt_parts_max))
            return fail(error, Status::LIMIT, "message_count is %zu, at most %d are taken", message_count,
                        limits::prompt_parts_max);
        if (model->chat_template == nullptr)
            return fail(error, model->chat_error.status, "%s", model->chat_error.message);
        std::pmr::vector<ChatMessage> views(&model->memory.scratch);
        TREADLE_TRY(api::read_messages(messages, part_size, 0, message_count, &views, error));
        std::pmr::vector<TextSegment> segments(&model->memory.scratch);
        const ChatStart start = continuation != 0 ? ChatStart::closed_turn : ChatStart::fresh;
        TREADLE_TRY(model->chat_template->render(views, start, ChatTemplate::wants_generation_prompt(views),
                                                 segments, error));

        size_t text_bytes = 0;
        for (const TextSegment& segment : segments) text_bytes += segment.text.size();
        if (part_count != nullptr) *part_count = segments.size();
        if (byte_count != nullptr) *byte_count = text_bytes;
        if (segments.size() > part_capacity || text_bytes > byte_capacity)
            return fail(error, Status::BUFFER_TOO_SMALL,
                        "the template gives %zu parts with %zu bytes, there is room for %zu and %zu",
                        segments.size(), text_bytes, part_capacity, byte_capacity);
        TREADLE_REQUIRE(parts);
        TREADLE_REQUIRE(bytes);
        for (size_t i = 0; i < segments.size(); i++) {
            const std::string_view text = segments[i].text;
            if (!text.empty()) std::memcpy(bytes, text.data(), text.size());
            engine_part part = api::default_part();
            part.kind = segments[i].specials ? ENGINE_PART_TEXT_SPECIALS : ENGINE_PART_TEXT;
            part.text = bytes;
            part.text_bytes = text.size();
            api::write_sized(reinterpret_cast<char*>(parts) + i * part_size, part_size, part);
            bytes += text.size();
        }
        return Status::OK;
    });
}

}  // extern "C"

}  // namespace treadle
