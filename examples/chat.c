/* chat: a conversation with a GGUF model in the terminal.   chat [options] MODEL.gguf
 *
 * Read it from top to bottom as a manual of the library: a model is loaded, an engine is made from it, and
 * each line typed becomes a request. A turn's prompt is [all tokens so far, the new message]: what the model
 * wrote is never tokenized again. The engine is stepped in slices of 30 ms, so that Ctrl-C is noticed soon.
 */
#define _POSIX_C_SOURCE 200809L
#include <editline/readline.h>
#include <engine.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

static const char usage[] =
    "usage: chat [options] MODEL.gguf\n"
    "  -t NUMBER  temperature; 0 is always the likeliest token (default 0.2)\n"
    "  -s NUMBER  seed: the same seed and the same words give the same answers (default 1)\n"
    "  -n NUMBER  longest answer in tokens (default 1024)\n"
    "  -c NUMBER  longest conversation in tokens (default: the model's context)\n";
static const char help[] =
    "/reset forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C stops an answer or clears the line.\n";

typedef struct chat {
    engine_model* model;
    engine* engine;
    engine_request_params request; /* the sampling parameters of every turn */
    int32_t* tokens;               /* the conversation so far, as the model read and wrote it */
    size_t token_count;
    size_t token_capacity;
    int interactive; /* lines are edited, with a prompt */
} chat;

/* Ctrl-C sets a flag; whoever is waiting looks at it. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int failed(const char* message) {
    fprintf(stderr, "chat: %s\n", message);
    return 1;
}

/* Around what is about the conversation and not part of it; empty when the output isn't a terminal. */
static const char *dim = "", *normal = "";

/* ---- Loading ------------------------------------------------------------------------------------------ */

/* Called by the library while it loads; returning 0 stops it. */
static int32_t show_progress(void* user, uint64_t done_bytes, uint64_t total_bytes) {
    static const char bar[] = "##############################";
    (void)user;
    const double part = total_bytes > 0 ? (double)done_bytes / (double)total_bytes : 1;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\rloading [%-30.*s] %3.0f%%", (int)(30 * part), bar, 100 * part);
    return !interrupted;
}

static int open_chat(chat* c, const char* path, int32_t context_length) {
    engine_error error;
    engine_error_init(&error, sizeof error);
    engine_model_params model_params;
    engine_model_params_init(&model_params, sizeof model_params);
    model_params.progress = show_progress;
    const engine_status status = engine_model_load_file(path, &model_params, &c->model, &error);
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K"); /* wipes the bar */
    if (status) return failed(error.message);
    engine_model_info model;
    engine_model_info_init(&model, sizeof model);
    engine_model_get_info(c->model, &model);
    if (!model.has_chat_template) return failed("this model has no chat template that the library knows");
    engine_params params;
    engine_params_init(&params, sizeof params);
    params.context_length = context_length;
    if (engine_create(c->model, &params, &c->engine, &error)) return failed(error.message);
    engine_info info;
    engine_info_init(&info, sizeof info);
    engine_get_info(c->engine, &info);
    c->token_capacity = (size_t)info.context_length;
    c->tokens = malloc(c->token_capacity * sizeof c->tokens[0]);
    if (!c->tokens) return failed("out of memory");

    if (c->interactive)
        printf("%s%s: context of %d tokens, /help for help%s\n", dim, model.name, info.context_length,
               normal);
    return 0;
}

/* ---- One turn ----------------------------------------------------------------------------------------- */

static engine_status submit_turn(chat* c, const char* message, engine_request* request, engine_error* error) {
    engine_part parts[2];
    engine_part_init(&parts[0], sizeof parts[0]);
    parts[0].kind = ENGINE_PART_TOKENS;
    parts[0].tokens = c->tokens;
    parts[0].token_count = (int32_t)c->token_count;
    engine_part_init(&parts[1], sizeof parts[1]);
    parts[1].kind = ENGINE_PART_CHAT_MESSAGE;
    parts[1].role = "user";
    parts[1].text = message;
    c->request.part_count = c->token_count > 0 ? 2 : 1; /* the first turn begins as the template says */
    c->request.parts = parts + 2 - c->request.part_count;
    c->request.keep = 1; /* until its tokens were asked for */
    return engine_submit(c->engine, &c->request, request, error);
}

/* Steps and polls until the request has finished; *first is when its first token came. */
static engine_status stream_answer(chat* c, engine_request request, engine_event* last, double* first) {
    engine_step_params step;
    engine_step_params_init(&step, sizeof step);
    step.budget_us = 30000;
    for (;;) {
        engine_event events[16];
        _Alignas(8) static char bytes[1 << 17]; /* longer than any token */
        size_t count;
        if (interrupted) engine_cancel(c->engine, request); /* its last event comes with the next step */
        engine_status status = engine_step(c->engine, &step, NULL);
        if (!status)
            status = engine_poll_tokens(c->engine, events, sizeof events[0], 16, &count, bytes, sizeof bytes,
                                        NULL, NULL);
        if (status) return status;
        for (size_t i = 0; i < count; i++) {
            if (events[i].kind == ENGINE_EVENT_TOKEN && *first == 0) *first = seconds();
            fwrite(bytes + events[i].text_offset, 1, events[i].text_bytes, stdout);
            *last = events[i];
            if (last->kind == ENGINE_EVENT_FINISHED) return ENGINE_OK;
        }
        fflush(stdout);
    }
}

static void print_summary(const chat* c, const engine_event* last, double begin, double first, double end) {
    const char* why = "";
    if (last->finish_reason == ENGINE_FINISH_CANCELLED) why = ", stopped";
    if (last->finish_reason == ENGINE_FINISH_LENGTH) why = ", cut at the -n limit";
    if (c->token_count >= c->token_capacity) why = ", the context is full: /reset starts anew";
    const double rate = last->generated_tokens > 1 ? (last->generated_tokens - 1) / (end - first) : 0;
    printf("%s[%d tokens, %.1f tokens/s, first after %.2f s%s]%s\n", dim, last->generated_tokens, rate,
           (first > 0 ? first : end) - begin, why, normal);
}

static int turn(chat* c, const char* message) {
    engine_error error;
    engine_error_init(&error, sizeof error);
    engine_request request;
    const double begin = seconds();
    engine_status status = submit_turn(c, message, &request, &error);
    if (status) failed(error.message);
    if (status == ENGINE_PROMPT_TOO_LONG) failed("the context is full: /reset starts a new conversation");
    if (status) return 1;
    engine_event last;
    double first = 0;
    interrupted = 0;
    status = stream_answer(c, request, &last, &first);
    interrupted = 0;
    printf("\n");
    if (status || (status = last.status)) failed(engine_status_string(status));
    engine_sequence_tokens(c->engine, request, 0, c->tokens, c->token_capacity, &c->token_count);
    engine_release(c->engine, request);
    if (!status) print_summary(c, &last, begin, first, seconds());
    return status != ENGINE_OK;
}

/* ---- Lines from a terminal or a pipe ------------------------------------------------------------------ */

/* One key for the line editor, which takes Ctrl-C for the end of the input; read_line knows better. */
static int read_key(FILE* stream) {
    const wint_t key = fgetwc(stream);
    if (key == WEOF) clearerr(stream);
    return key == WEOF ? -1 : (int)key;
}

/* The next line, to be freed, or NULL at the end of the input. */
static char* read_line(const chat* c) {
    char* line = NULL;
    size_t capacity = 0;
    while (c->interactive) {
        interrupted = 0;
        line = readline("> ");
        if (line && line[0]) add_history(line);
        if (!line) printf("\n");
        if (line || !interrupted) return line;
    }
    const ssize_t length = getline(&line, &capacity, stdin);
    if (length > 0) line[strcspn(line, "\r\n")] = '\0';
    if (length > 0) return line;
    free(line);
    return NULL;
}

static int converse(chat* c) {
    int status = 0, quit = 0;
    for (char* line; !quit && (line = read_line(c)) != NULL; free(line)) {
        quit = strcmp(line, "/quit") == 0;
        if (strcmp(line, "/reset") == 0)
            c->token_count = 0;
        else if (line[0] == '/' && !quit)
            printf("%s", help);
        if (line[0] != '/' && line[strspn(line, " \t")] != '\0') status |= turn(c, line);
        fflush(stdout);
    }
    return status;
}

int main(int argc, char** argv) {
    chat c = {.interactive = isatty(STDIN_FILENO)};
    engine_request_params_init(&c.request, sizeof c.request);
    c.request.temperature = 0.2f; /* with top_p 0.9, what the makers of SmolLM2 recommend */
    c.request.top_p = 0.9f;
    c.request.max_tokens = 1024;
    c.request.seed = 1;
    int32_t context_length = 0;
    for (int option; (option = getopt(argc, argv, "t:s:n:c:")) != -1;) {
        char* end = optarg;
        const long number = option == '?' ? 0 : strtol(optarg, &end, 10);
        if (option == 't') c.request.temperature = strtof(optarg, &end);
        if (option == 's') c.request.seed = strtoull(optarg, &end, 10);
        if (option == 'n') c.request.max_tokens = (int32_t)number;
        if (option == 'c') context_length = (int32_t)number;
        const int wrapped = (option == 'n' || option == 'c') && number != (int32_t)number;
        if (wrapped || option == '?' || end == optarg || *end) return fprintf(stderr, "%s", usage), 2;
    }
    if (optind + 1 != argc) return fprintf(stderr, "%s", usage), 2;

    const struct sigaction action = {.sa_handler = on_interrupt}; /* no SA_RESTART: reads end with EINTR */
    sigaction(SIGINT, &action, NULL);
    setlocale(LC_CTYPE, "C.UTF-8"); /* the line editor's characters */
    rl_getc_function = read_key;
    rl_outstream = isatty(STDOUT_FILENO) ? stdout : stderr; /* redirected output holds no prompts */
    if (isatty(STDOUT_FILENO)) dim = "\033[2m", normal = "\033[0m";
    const int status = open_chat(&c, argv[optind], context_length) || converse(&c);
    engine_destroy(c.engine);
    engine_model_free(c.model);
    free(c.tokens);
    return status;
}
