/* The shortest complete program: answers one question.   minimal MODEL.gguf ["Why is the sky blue?"] */
#include <engine.h>
#include <stdio.h>

static engine_status answer(engine* e, const char* question, engine_error* error) {
    engine_part part;
    engine_part_init(&part, sizeof part);
    part.kind = ENGINE_PART_CHAT_MESSAGE;
    part.role = "user";
    part.text = question;

    engine_request_params params;
    engine_request_params_init(&params, sizeof params);
    params.parts = &part;
    params.part_count = 1;
    engine_request request;
    engine_status status = engine_submit(e, &params, &request, error);

    int finished = 0;
    while (!status && !finished) {
        engine_event events[16];
        _Alignas(8) static char text[1 << 17]; /* longer than any token */
        size_t count = 0;
        status = engine_step(e, NULL, NULL); /* one pass: first the prompt, then a token each time */
        engine_poll_tokens(e, events, sizeof events[0], 16, &count, text, sizeof text, NULL, NULL);
        for (size_t i = 0; i < count; i++) {
            fwrite(text + events[i].text_offset, 1, events[i].text_bytes, stdout);
            if (events[i].kind != ENGINE_EVENT_FINISHED) continue;
            finished = 1;
            status = events[i].status;
        }
        fflush(stdout);
    }
    return status;
}

int main(int argc, char** argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: minimal MODEL.gguf [QUESTION]\n");
        return 2;
    }
    engine_model* model = NULL; /* weights and vocabulary */
    engine* e = NULL;           /* a KV cache, a scheduler and their threads */
    engine_error error;
    engine_error_init(&error, sizeof error);
    engine_status status = engine_model_load_file(argv[1], NULL, &model, &error);
    if (!status) status = engine_create(model, NULL, &e, &error);
    if (!status) status = answer(e, argc > 2 ? argv[2] : "Why is the sky blue?", &error);
    engine_destroy(e);
    engine_model_free(model);
    puts("");
    const char* message = error.message[0] ? error.message : engine_status_string(status);
    if (status) fprintf(stderr, "minimal: %s\n", message);
    return status != 0;
}
