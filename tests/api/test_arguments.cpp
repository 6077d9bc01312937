// Every public function with null and absurd arguments: a status or nothing, never a crash. The table at the end is compared with
// the header's list, so that a new function can't be forgotten.
#include <fstream>
#include <set>

#include "api_fixture.h"

using namespace treadle::test;

namespace {

std::set<std::string> tried;

#define TRY(name, ...) (tried.insert(#name), name(__VA_ARGS__))

void try_inits() {
    CHECK(TRY(engine_error_init, nullptr, sizeof(engine_error)) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_model_params_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_model_info_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_part_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_params_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_info_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_request_params_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_request_info_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_step_params_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_step_report_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_pin_params_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_stats_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    uint64_t bytes = 0;
    CHECK(TRY(engine_trim, nullptr, &bytes) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_session_params_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_plan_params_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_plan_init, nullptr, 8) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_version) != nullptr);
    CHECK(TRY(engine_abi_version) == ENGINE_ABI_VERSION);
    CHECK(TRY(engine_status_name, INT32_MIN) != nullptr);
    CHECK(TRY(engine_status_string, INT32_MAX) != nullptr);
}

void try_models(Host& host) {
    engine_model* model = nullptr;
    CHECK(TRY(engine_model_load_file, nullptr, nullptr, &model, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_model_load_file("x", nullptr, nullptr, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_model_load_memory, nullptr, 10, nullptr, &model, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_model_load_memory("GGUF", 4, nullptr, nullptr, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_model_load_memory("GGUF", 0, nullptr, &model, nullptr) == ENGINE_TRUNCATED);
    CHECK(TRY(engine_model_load_callback, nullptr, nullptr, UINT64_MAX, nullptr, &model, nullptr) ==
          ENGINE_INVALID_ARGUMENT);
    const auto fails = [](void*, uint64_t, void*, size_t) -> int32_t { return -1; };
    CHECK(engine_model_load_callback(fails, nullptr, UINT64_MAX, nullptr, &model, nullptr) == ENGINE_IO);
    CHECK(model == nullptr);
    engine_model_info info;
    engine_model_info_init(&info, sizeof info);
    CHECK(TRY(engine_model_get_info, nullptr, &info) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_model_get_info(host.model, nullptr) == ENGINE_INVALID_ARGUMENT);
    info.struct_size = 0;
    CHECK(engine_model_get_info(host.model, &info) == ENGINE_STRUCT_SIZE);
    TRY(engine_model_free, nullptr);
}

void try_text(Host& host) {
    size_t count = 0;
    int32_t tokens[4];
    const engine_part part = text_part("hello");
    CHECK(TRY(engine_tokenize, nullptr, &part, sizeof part, 1, tokens, 4, &count, nullptr) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(engine_tokenize(host.model, nullptr, sizeof part, 1, tokens, 4, &count, nullptr) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(engine_tokenize(host.model, nullptr, 0, 0, nullptr, 0, nullptr, nullptr) == ENGINE_OK);
    CHECK(engine_tokenize(host.model, &part, 1, 1, tokens, 4, &count, nullptr) == ENGINE_STRUCT_SIZE);
    CHECK(engine_tokenize(host.model, &part, sizeof part, 1, nullptr, 0, &count, nullptr) ==
          ENGINE_BUFFER_TOO_SMALL);
    CHECK(count > 0);
    CHECK(engine_tokenize(host.model, &part, sizeof part, 1, nullptr, 100, &count, nullptr) ==
          ENGINE_INVALID_ARGUMENT);
    char bytes[8];
    const int32_t bad[] = {3, -1};
    CHECK(TRY(engine_detokenize, nullptr, tokens, 1, 0, bytes, 8, &count, nullptr) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(engine_detokenize(host.model, nullptr, 1, 0, bytes, 8, &count, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_detokenize(host.model, nullptr, 0, 0, nullptr, 0, &count, nullptr) == ENGINE_OK);
    CHECK(engine_detokenize(host.model, bad, 2, 0, bytes, 8, &count, nullptr) == ENGINE_TOKEN_OUT_OF_RANGE);
    CHECK(engine_detokenize(host.model, bad, SIZE_MAX, 0, bytes, 8, &count, nullptr) == ENGINE_LIMIT);
    const engine_part message = message_part("user", "hi");
    engine_part parts[8];
    char text[512];
    size_t text_bytes = 0;
    CHECK(TRY(engine_apply_chat_template, nullptr, &message, sizeof message, 1, 0, parts, 8, &count, text,
              512, &text_bytes, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_apply_chat_template(host.model, nullptr, sizeof message, 1, 0, parts, 8, &count, text, 512,
                                     &text_bytes, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_apply_chat_template(host.model, &message, sizeof message, 0, 0, parts, 8, &count, text, 512,
                                     &text_bytes, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_apply_chat_template(host.model, &part, sizeof part, 1, 0, parts, 8, &count, text, 512,
                                     &text_bytes, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_apply_chat_template(host.model, &message, sizeof message, 1, 0, nullptr, 0, &count, nullptr,
                                     0, &text_bytes, nullptr) == ENGINE_BUFFER_TOO_SMALL);
    CHECK(count > 1);
    CHECK(engine_apply_chat_template(host.model, &message, sizeof message, 1, 0, parts, 8, &count, text, 512,
                                     &text_bytes, nullptr) == ENGINE_OK);
    const std::vector<int32_t> rendered = host.tokenize(std::vector<engine_part>(parts, parts + count));
    CHECK(rendered == host.tokenize({message}));
}

void try_engines(Host& host) {
    engine* e = nullptr;
    CHECK(TRY(engine_create, nullptr, nullptr, &e, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_create(host.model, nullptr, nullptr, nullptr) == ENGINE_INVALID_ARGUMENT);
    TRY(engine_destroy, nullptr);
    engine_info info;
    engine_info_init(&info, sizeof info);
    CHECK(TRY(engine_get_info, nullptr, &info) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_get_info(host.e, nullptr) == ENGINE_INVALID_ARGUMENT);
    engine_stats stats;
    engine_stats_init(&stats, sizeof stats);
    CHECK(TRY(engine_get_stats, nullptr, &stats) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_get_stats(host.e, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_metrics_text, nullptr, nullptr, 0, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_metrics_text(host.e, nullptr, 1, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_metrics_text(host.e, nullptr, 0, nullptr) == ENGINE_BUFFER_TOO_SMALL);
    CHECK(TRY(engine_trace_write, nullptr, nullptr, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_step, nullptr, nullptr, nullptr) == ENGINE_INVALID_ARGUMENT);
    engine_step_params params;
    engine_step_params_init(&params, sizeof params);
    params.budget_us = -1;
    CHECK(engine_step(host.e, &params, nullptr) == ENGINE_INVALID_ARGUMENT);
    params.budget_us = INT64_MAX;
    params.max_threads = INT32_MAX;
    CHECK(engine_step(host.e, &params, nullptr) == ENGINE_OK);
    params.max_threads = -1;
    CHECK(engine_step(host.e, &params, nullptr) == ENGINE_INVALID_ARGUMENT);
    engine_step_report report = {};
    CHECK(engine_step(host.e, nullptr, &report) == ENGINE_STRUCT_SIZE);
}

void try_requests(Host& host) {
    engine_request id = 0;
    const engine_part part = text_part("x");
    const engine_request_params params = request_params(&part, 1);
    CHECK(TRY(engine_submit, nullptr, &params, &id, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_submit(host.e, nullptr, &id, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_submit(host.e, &params, nullptr, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_fork, nullptr, 1, 0, 1, nullptr, &id, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_fork(host.e, 1, 0, 1, nullptr, nullptr, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_fork(host.e, 1, 0, 1, nullptr, &id, nullptr) == ENGINE_STALE_ID);
    CHECK(TRY(engine_set_priority, nullptr, 1, 0) == ENGINE_INVALID_ARGUMENT);
    for (const int32_t priority : {-1, 4, INT32_MIN, INT32_MAX})
        CHECK(engine_set_priority(host.e, 1, priority) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_set_priority(host.e, 1, ENGINE_PRIORITY_BULK) == ENGINE_STALE_ID);
    CHECK(TRY(engine_cancel, nullptr, 1) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_release, nullptr, 1) == ENGINE_INVALID_ARGUMENT);
    engine_pin_params pin;
    engine_pin_params_init(&pin, sizeof pin);
    CHECK(TRY(engine_pin, nullptr, &pin, &id, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_pin(host.e, nullptr, &id, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_pin(host.e, &pin, nullptr, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_pin(host.e, &pin, &id, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_unpin, nullptr, 1) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_unpin(host.e, 1) == ENGINE_STALE_ID);
    engine_request_info info;
    engine_request_info_init(&info, sizeof info);
    CHECK(TRY(engine_request_get_info, nullptr, 1, &info) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_request_get_info(host.e, 1, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_sequence_tokens, nullptr, 1, 0, nullptr, 0, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_sequence_tokens(host.e, 1, 0, nullptr, 5, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(TRY(engine_poll_tokens, nullptr, nullptr, 0, 0, nullptr, nullptr, 0, nullptr, nullptr) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(engine_poll_tokens(host.e, nullptr, 0, 0, nullptr, nullptr, 0, nullptr, nullptr) == ENGINE_OK);
}

// What the functions of sessions and plans refuse in particular is in test_session_refusals.cpp and test_plan.cpp.
void try_sessions_and_plans(Host& host) {
    size_t size = 0;
    engine_request id = 0;
    char bytes[8] = {};
    const auto writes = [](void*, const void*, size_t) -> int32_t { return 0; };
    const auto fails = [](void*, uint64_t, void*, size_t) -> int32_t { return -1; };
    CHECK(TRY(engine_session_save, nullptr, 1, 0, -1, bytes, 8, &size, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_save(host.e, 1, 0, -1, bytes, 8, &size, nullptr) == ENGINE_STALE_ID);
    CHECK(TRY(engine_session_save_callback, nullptr, 1, 0, -1, writes, nullptr, nullptr) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_save_callback(host.e, 1, 0, -1, writes, nullptr, nullptr) == ENGINE_STALE_ID);
    CHECK(TRY(engine_session_save_file, nullptr, 1, 0, -1, "x", nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_save_file(host.e, 1, 0, -1, "", nullptr) == ENGINE_STALE_ID);
    CHECK(TRY(engine_session_restore, nullptr, bytes, 8, nullptr, &id, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_restore(host.e, bytes, 8, nullptr, &id, nullptr) == ENGINE_BAD_MAGIC);
    CHECK(engine_session_restore(host.e, "TREADLES", SIZE_MAX, nullptr, &id, nullptr) == ENGINE_LIMIT);
    CHECK(TRY(engine_session_restore_callback, nullptr, fails, nullptr, 8, nullptr, &id, nullptr) ==
          ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_restore_callback(host.e, fails, nullptr, 8, nullptr, &id, nullptr) == ENGINE_IO);
    CHECK(TRY(engine_session_restore_file, nullptr, "x", nullptr, &id, nullptr) == ENGINE_INVALID_ARGUMENT);
    CHECK(engine_session_restore_file(host.e, "", nullptr, &id, nullptr) == ENGINE_NOT_FOUND);
    CHECK(TRY(engine_plan_capacity, nullptr, nullptr, nullptr) == ENGINE_INVALID_ARGUMENT);
}

}  // namespace

TEST_CASE("every public function with null and absurd arguments") {
    Host host;
    tried.clear();
    try_inits();
    try_models(host);
    try_text(host);
    try_engines(host);
    try_requests(host);
    try_sessions_and_plans(host);

    std::ifstream header(TREADLE_HEADER);
    REQUIRE(header.good());
    std::set<std::string> declared;
    for (std::string line; std::getline(header, line);) {
        if (line.rfind("ENGINE_API ", 0) != 0) continue;
        const size_t bracket = line.find('(');
        const size_t name = line.find_last_of(" *", bracket) + 1;
        declared.insert(line.substr(name, bracket - name));
    }
    CHECK(declared == tried);
    host.run();
}
