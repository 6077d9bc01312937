// The bytes of session.h. One list of fields writes and counts them; another, in the same order, reads them back.
#include "engine/session.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "model/fingerprint.h"

namespace treadle {

namespace {

using Number = unsigned long long;  // what a format takes for a uint64_t

constexpr char magic[] = {'T', 'R', 'E', 'A', 'D', 'L', 'E', 'S'};
constexpr size_t length_offset = sizeof magic + 4;
constexpr size_t header_bytes = length_offset + 8;
constexpr size_t checksum_bytes = 8;
constexpr size_t token_bytes_most = 4;  // LEB128 of a 22-bit id
static_assert(limits::vocabulary_max <= 1u << 22);

uint64_t checksum_of(std::span<const std::byte> bytes) {
    Fingerprint sum;
    sum.update(bytes.data(), bytes.size());
    return sum.value();
}

// Writes, or only counts where there is nothing to write to.
class Writer {
public:
    explicit Writer(std::byte* out) : out_(out) {}
    size_t size() const { return size_; }

    void raw(const void* bytes, size_t count) {
        if (out_ != nullptr && count > 0) std::memcpy(out_ + size_, bytes, count);
        size_ += count;
    }
    template <class T>
    void integer(T value) {
        auto bits = static_cast<std::make_unsigned_t<T>>(value);
        for (size_t i = 0; i < sizeof(T); i++) {
            const auto byte = static_cast<uint8_t>(bits >> (8 * i));
            raw(&byte, 1);
        }
    }
    void number(float value) { integer(std::bit_cast<uint32_t>(value)); }
    void variable(uint32_t value) {
        while (value >= 0x80) {
            const auto byte = static_cast<uint8_t>(value | 0x80);
            raw(&byte, 1);
            value >>= 7;
        }
        const auto last = static_cast<uint8_t>(value);
        raw(&last, 1);
    }

private:
    std::byte* out_;
    size_t size_ = 0;
};

// Reads what Writer wrote. After the first read past the end everything is zero, and ok() is false.
class Reader {
public:
    explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
    bool ok() const { return ok_; }
    size_t left() const { return bytes_.size(); }

    std::span<const std::byte> raw(size_t count) {
        if (count > bytes_.size()) {
            ok_ = false;
            bytes_ = {};
            return {};
        }
        const auto taken = bytes_.first(count);
        bytes_ = bytes_.subspan(count);
        return taken;
    }
    template <class T>
    T integer() {
        std::make_unsigned_t<T> bits = 0;
        const auto bytes = raw(sizeof(T));
        for (size_t i = 0; i < bytes.size(); i++)
            bits |= static_cast<std::make_unsigned_t<T>>(std::to_integer<std::make_unsigned_t<T>>(bytes[i])
                                                         << (8 * i));
        return static_cast<T>(bits);
    }
    float number() { return std::bit_cast<float>(integer<uint32_t>()); }
    // False for one that is too long, or longer than it need be: each value has one form only.
    bool variable(uint32_t* out) {
        uint32_t value = 0;
        for (size_t i = 0; i < token_bytes_most; i++) {
            const auto byte = integer<uint8_t>();
            value |= static_cast<uint32_t>(byte & 0x7f) << (7 * i);
            if (byte >= 0x80) continue;
            *out = value;
            return ok_ && (byte != 0 || i == 0);
        }
        return false;
    }

private:
    std::span<const std::byte> bytes_;
    bool ok_ = true;
};

void write_fields(const SessionState& state, uint64_t total_bytes, Writer* out) {
    out->raw(magic, sizeof magic);
    out->integer(session_version);
    out->integer(total_bytes);
    out->integer(state.model_fingerprint);
    out->raw(state.numerics_id, numerics_id_bytes);
    out->integer(state.sample_index);
    out->integer(state.forks);
    out->integer(state.sampling.seed);
    out->number(state.sampling.temperature);
    out->integer(state.sampling.top_k);
    out->number(state.sampling.top_p);
    out->number(state.sampling.min_p);
    out->integer(state.sampling.logprobs);
    out->integer(state.max_tokens);
    out->integer(state.prompt_tokens);
    out->integer(state.delivered_bytes);
    out->integer(state.finish_reason);
    out->integer(static_cast<uint8_t>(state.ignore_end ? 1 : 0));
    out->integer(static_cast<uint32_t>(state.tokens.size()));
    for (const int32_t token : state.tokens) out->variable(static_cast<uint32_t>(token));
    out->integer(static_cast<uint32_t>(state.stop_tokens.size()));
    for (const int32_t token : state.stop_tokens) out->integer(token);
    out->integer(static_cast<uint32_t>(state.stop_strings.size()));
    for (const std::pmr::string& text : state.stop_strings) {
        out->integer(static_cast<uint32_t>(text.size()));
        out->raw(text.data(), text.size());
    }
}

// ---- Reading ------------------------------------------------------------------------------------------------------------------

// The frame: magic, version, length, checksum. On success *fields is what lies between header and checksum.
Status open_frame(std::span<const std::byte> bytes, std::span<const std::byte>* fields, Error* error) {
    if (std::memcmp(bytes.data(), magic, std::min(bytes.size(), sizeof magic)) != 0)
        return fail(error, Status::BAD_MAGIC, "this is no saved session: it doesn't begin with TREADLES");
    if (bytes.size() < header_bytes + checksum_bytes)
        return fail(error, Status::TRUNCATED, "the session has %zu bytes, its header and checksum %zu",
                    bytes.size(), header_bytes + checksum_bytes);
    Reader header(bytes.subspan(sizeof magic));
    const auto version = header.integer<uint32_t>();
    if (version != session_version)
        return fail(error, Status::BAD_VERSION, "the session has version %u, this library reads version %u",
                    version, session_version);
    const auto total_bytes = header.integer<uint64_t>();
    if (total_bytes > bytes.size())
        return fail(error, Status::TRUNCATED, "the session has %zu bytes of %llu", bytes.size(),
                    static_cast<Number>(total_bytes));
    if (total_bytes < bytes.size())
        return fail(error, Status::CORRUPT, "the session announces %llu bytes, but %zu are there",
                    static_cast<Number>(total_bytes), bytes.size());
    const auto content = bytes.first(bytes.size() - checksum_bytes);
    Reader tail(bytes.last(checksum_bytes));
    if (tail.integer<uint64_t>() != checksum_of(content))
        return fail(error, Status::CORRUPT, "the session's checksum is wrong: its bytes are damaged");
    *fields = content.subspan(header_bytes);
    return Status::OK;
}

Status count_beyond(const char* field, uint64_t count, uint64_t most, Error* error) {
    return fail(error, Status::LIMIT, "the session has %llu %s, at most %llu are taken",
                static_cast<Number>(count), field, static_cast<Number>(most));
}

Status ends_in(const char* field, Error* error) {
    return fail(error, Status::CORRUPT, "the session's fields end within %s", field);
}

Status read_tokens(Reader* in, SessionState* out, Error* error) {
    const auto count = in->integer<uint32_t>();
    if (count > limits::context_max) return count_beyond("tokens", count, limits::context_max, error);
    if (count > in->left()) return ends_in("the tokens", error);
    out->tokens.reserve(count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t token = 0;
        if (!in->variable(&token))
            return fail(error, Status::CORRUPT, "the session's token %u is not encoded as it must be", i);
        out->tokens.push_back(static_cast<int32_t>(token));
    }
    return Status::OK;
}

Status read_stops(Reader* in, SessionState* out, Error* error) {
    const auto token_count = in->integer<uint32_t>();
    if (token_count > static_cast<uint32_t>(limits::stop_tokens_max))
        return count_beyond("stop tokens", token_count, limits::stop_tokens_max, error);
    if (token_count > in->left() / 4) return ends_in("the stop tokens", error);
    out->stop_tokens.reserve(token_count);
    for (uint32_t i = 0; i < token_count; i++) out->stop_tokens.push_back(in->integer<int32_t>());

    const auto string_count = in->integer<uint32_t>();
    if (string_count > static_cast<uint32_t>(limits::stop_strings_max))
        return count_beyond("stop strings", string_count, limits::stop_strings_max, error);
    if (string_count > in->left() / 4) return ends_in("the stop strings", error);
    out->stop_strings.reserve(string_count);
    for (uint32_t i = 0; i < string_count; i++) {
        const auto size = in->integer<uint32_t>();
        if (size > limits::stop_string_bytes_max)
            return fail(error, Status::LIMIT,
                        "the session's stop string %u has %u bytes, at most %u are taken", i, size,
                        limits::stop_string_bytes_max);
        const auto text = in->raw(size);
        out->stop_strings.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
    }
    return Status::OK;
}

Status read_fields(Reader* in, SessionState* out, Error* error) {
    out->model_fingerprint = in->integer<uint64_t>();
    const auto id = in->raw(numerics_id_bytes);
    if (id.empty()) return ends_in("the numerics id", error);
    std::memcpy(out->numerics_id, id.data(), numerics_id_bytes);
    out->sample_index = in->integer<uint64_t>();
    out->forks = in->integer<uint64_t>();
    out->sampling.seed = in->integer<uint64_t>();
    out->sampling.temperature = in->number();
    out->sampling.top_k = in->integer<int32_t>();
    out->sampling.top_p = in->number();
    out->sampling.min_p = in->number();
    out->sampling.logprobs = in->integer<int32_t>();
    out->max_tokens = in->integer<int32_t>();
    out->prompt_tokens = in->integer<int32_t>();
    out->delivered_bytes = in->integer<uint64_t>();
    out->finish_reason = in->integer<int32_t>();
    const auto ignore_end = in->integer<uint8_t>();
    if (ignore_end > 1)
        return fail(error, Status::CORRUPT, "the session's ignore_end is %u, must be 0 or 1", ignore_end);
    out->ignore_end = ignore_end != 0;
    TREADLE_TRY(read_tokens(in, out, error));
    TREADLE_TRY(read_stops(in, out, error));
    if (!in->ok()) return ends_in("the list", error);
    if (in->left() > 0)
        return fail(error, Status::CORRUPT, "the session has %zu bytes after its last field", in->left());
    return Status::OK;
}

// ---- What a state must be, before it is written and after it was read --------------------------------------------------------

bool is_token(int32_t token) { return token >= 0 && token < static_cast<int32_t>(limits::vocabulary_max); }

Status check_numerics_id(const SessionState& state, Error* error) {
    const auto* end = static_cast<const char*>(std::memchr(state.numerics_id, 0, numerics_id_bytes));
    if (end == nullptr) return fail(error, Status::CORRUPT, "the session's numerics_id doesn't end");
    const auto printable = [](char byte) { return byte > ' ' && byte < 0x7f; };
    if (!std::all_of(state.numerics_id, end, printable))
        return fail(error, Status::CORRUPT, "the session's numerics_id isn't printable");
    if (!std::all_of(end, state.numerics_id + numerics_id_bytes, [](char byte) { return byte == 0; }))
        return fail(error, Status::CORRUPT, "the session's numerics_id has bytes after its end");
    return Status::OK;
}

Status check_tokens(const SessionState& state, Error* error) {
    if (state.tokens.size() > limits::context_max)
        return count_beyond("tokens", state.tokens.size(), limits::context_max, error);
    const auto count = static_cast<int32_t>(state.tokens.size());
    if (state.prompt_tokens < 1 || state.prompt_tokens > count)
        return fail(error, Status::CORRUPT, "the session's prompt_tokens is %d, it has %d tokens",
                    state.prompt_tokens, count);
    for (int32_t i = 0; i < count; i++)
        if (!is_token(state.tokens[static_cast<size_t>(i)]))
            return fail(error, Status::CORRUPT, "the session's token %d is %d", i,
                        state.tokens[static_cast<size_t>(i)]);
    if (state.max_tokens == 0 || state.max_tokens < -1)
        return fail(error, Status::CORRUPT, "the session's max_tokens is %d, must be at least 1, or -1",
                    state.max_tokens);
    // An invalid byte becomes three; the prompt's last token may begin a character that is delivered with the answer.
    const uint64_t delivered_max =
        (static_cast<uint64_t>(count - state.prompt_tokens) + 1) * 3 * limits::token_bytes_max;
    if (state.delivered_bytes > delivered_max)
        return fail(error, Status::CORRUPT,
                    "the session's delivered_bytes is %llu, its tokens can't have that many",
                    static_cast<Number>(state.delivered_bytes));
    return Status::OK;
}

Status check_stops(const SessionState& state, Error* error) {
    if (state.stop_tokens.size() > static_cast<size_t>(limits::stop_tokens_max))
        return count_beyond("stop tokens", state.stop_tokens.size(), limits::stop_tokens_max, error);
    for (const int32_t token : state.stop_tokens)
        if (!is_token(token)) return fail(error, Status::CORRUPT, "a stop token of the session is %d", token);
    if (state.stop_strings.size() > static_cast<size_t>(limits::stop_strings_max))
        return count_beyond("stop strings", state.stop_strings.size(), limits::stop_strings_max, error);
    for (const std::pmr::string& text : state.stop_strings) {
        if (text.empty()) return fail(error, Status::CORRUPT, "a stop string of the session is empty");
        if (text.size() > limits::stop_string_bytes_max)
            return fail(error, Status::LIMIT,
                        "a stop string of the session has %zu bytes, at most %u are taken", text.size(),
                        limits::stop_string_bytes_max);
    }
    return Status::OK;
}

Status check_state(const SessionState& state, Error* error) {
    TREADLE_TRY(check_numerics_id(state, error));
    Error why;
    if (check_sampling(state.sampling, &why) != Status::OK)
        return fail(error, Status::CORRUPT, "the session's %s", why.message);
    if (state.finish_reason < 0 || state.finish_reason > session_finish_reason_max ||
        state.finish_reason == session_finish_reason_error)
        return fail(error, Status::CORRUPT, "the session's finish_reason is %d", state.finish_reason);
    TREADLE_TRY(check_tokens(state, error));
    return check_stops(state, error);
}

}  // namespace

size_t session_bytes(const SessionState& state) {
    Writer counted(nullptr);
    write_fields(state, 0, &counted);
    return counted.size() + checksum_bytes;
}

Status encode_session(const SessionState& state, std::span<std::byte> out, Error* error) {
    TREADLE_TRY(check_state(state, error));
    const size_t bytes = session_bytes(state);
    if (out.size() < bytes)
        return fail(error, Status::BUFFER_TOO_SMALL, "the session takes %zu bytes, the buffer has %zu", bytes,
                    out.size());
    Writer writer(out.data());
    write_fields(state, bytes, &writer);
    writer.integer(checksum_of(out.first(writer.size())));
    return Status::OK;
}

Status decode_session(std::span<const std::byte> bytes, SessionState* out, Error* error) {
    if (bytes.empty()) return fail(error, Status::TRUNCATED, "the session is empty");
    if (bytes.size() > session_bytes_max)
        return fail(error, Status::LIMIT, "the session has %zu bytes, at most %llu are read", bytes.size(),
                    static_cast<Number>(session_bytes_max));
    std::span<const std::byte> fields;
    TREADLE_TRY(open_frame(bytes, &fields, error));
    SessionState state(static_cast<Memory*>(out->tokens.get_allocator().resource()));
    Reader reader(fields);
    TREADLE_TRY(read_fields(&reader, &state, error));
    TREADLE_TRY(check_state(state, error));
    *out = std::move(state);  // the same memory: nothing is copied, nothing can fail
    return Status::OK;
}

Status check_session(const SessionState& state, uint64_t model_fingerprint, const char* numerics_id,
                     int32_t vocabulary, Error* error) {
    if (state.model_fingerprint != model_fingerprint)
        return fail(
            error, Status::WRONG_MODEL,
            "the session was saved with another model: its fingerprint is %016llx, this model's %016llx",
            static_cast<Number>(state.model_fingerprint), static_cast<Number>(model_fingerprint));
    if (std::strncmp(state.numerics_id, numerics_id, numerics_id_bytes) != 0)
        return fail(
            error, Status::WRONG_MODEL,
            "the session was saved with the numerics_id '%.31s', this engine has '%.31s': it would not go on "
            "exactly",
            state.numerics_id, numerics_id);
    for (const std::pmr::vector<int32_t>* list : {&state.tokens, &state.stop_tokens})
        for (const int32_t token : *list)
            if (token >= vocabulary)
                return fail(error, Status::TOKEN_OUT_OF_RANGE,
                            "the session has the token %d, the vocabulary has %d tokens", token, vocabulary);
    return Status::OK;
}

}  // namespace treadle
