/* plan: what a batch yields on a machine, and how many tokens and sequences fit its KV cache.   plan [MODEL.gguf] [options]
 *
 * Without a model it plans for one whose figures are given; what is not given are those of the table in README.md: 17 GB of
 * weights on a card with 1,008 GB/s and 82.5 TFLOP/s, of whose memory 7 GiB are left for a cache of 64 KiB per token.
 */
#include <engine.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: plan [MODEL.gguf] [options]\n"
    "A model gives its weights, its operations per token and the shape of its cache.\n"
    "  --weights NUMBER          bytes that a pass reads (default 17G)\n"
    "  --bandwidth NUMBER        bytes per second of the memory they lie in (default 1008G)\n"
    "  --flops-per-token NUMBER  operations for one token (default 54G)\n"
    "  --flops NUMBER            operations per second that the machine really reaches (default 82.5T)\n"
    "  --kv-bytes NUMBER         memory for the KV cache (default 7Gi)\n"
    "  --kv-token-bytes NUMBER   of a token's keys and values in f16 (default 64Ki)\n"
    "  --head-dim NUMBER         (default 128)\n"
    "  --context NUMBER          tokens that each sequence reads, in the table's second half (default 8192)\n"
    "Numbers may end in k, M, G, T, or Ki, Mi, Gi, Ti: 17G, 17e9 and 17000000000 are the same.\n";

static int failed(const char* message) {
    fprintf(stderr, "plan: %s\n", message);
    return 1;
}

/* 1 where `text` is a number, with a suffix or without. */
static int parse_number(const char* text, double* number) {
    static const char suffixes[] = "kMGT";
    char* end = NULL;
    *number = strtod(text, &end);
    if (end == text || !isfinite(*number) || *number < 0) return 0;
    const char* suffix = *end ? strchr(suffixes, *end == 'K' ? 'k' : *end) : NULL;
    if (suffix) {
        const double base = end[1] == 'i' ? 1024 : 1000;
        for (const char* step = suffixes; step <= suffix; step++) *number *= base;
        end += end[1] == 'i' ? 2 : 1;
    }
    return *end == '\0' && *number < 1.8e19;
}

/* The model's own figures. */
static engine_status read_model(const char* path, engine_plan_params* params, engine_error* error) {
    engine_model* model = NULL;
    engine_status status = engine_model_load_file(path, NULL, &model, error);
    if (status) return status;
    engine_model_info info;
    engine_model_info_init(&info, sizeof info);
    status = engine_model_get_info(model, &info);
    printf("%s: %s, %d layers, %d KV heads of %d, %.1f M weights\n\n", path, info.name, (int)info.layers,
           (int)info.kv_heads, (int)info.head_dim, 1e-6 * (double)info.parameters);
    params->layers = info.layers;
    params->kv_heads = info.kv_heads;
    params->head_dim = info.head_dim;
    params->kv_token_bytes_f16 = 0;
    params->weight_bytes = info.weight_bytes;
    params->token_flops = 2 * info.parameters;
    engine_model_free(model);
    return status;
}

/* Reads the arguments; 0, or the exit status of a program that has said why it ends. */
static int read_arguments(int argc, char** argv, engine_plan_params* params, int32_t* context) {
    const struct {
        const char* name;
        uint64_t* large;
        int32_t* small;
    } options[] = {
        {"--weights", &params->weight_bytes, NULL},
        {"--bandwidth", &params->bandwidth, NULL},
        {"--flops-per-token", &params->token_flops, NULL},
        {"--flops", &params->usable_flops, NULL},
        {"--kv-bytes", &params->kv_bytes, NULL},
        {"--kv-token-bytes", &params->kv_token_bytes_f16, NULL},
        {"--head-dim", NULL, &params->head_dim},
        {"--context", NULL, context},
    };
    const size_t option_count = sizeof options / sizeof options[0];
    int first = 1;
    if (argc > 1 && argv[1][0] != '-') {
        engine_error error;
        engine_error_init(&error, sizeof error);
        if (read_model(argv[1], params, &error)) return failed(error.message);
        first = 2;
    }
    for (int i = first; i < argc; i += 2) {
        double number = 0;
        size_t at = 0;
        while (at < option_count && strcmp(argv[i], options[at].name) != 0) at++;
        if (at == option_count || i + 1 == argc || !parse_number(argv[i + 1], &number) ||
            (options[at].small && number > INT32_MAX)) {
            fputs(usage, stderr);
            return 2;
        }
        if (options[at].large)
            *options[at].large = (uint64_t)number;
        else
            *options[at].small = (int32_t)number;
    }
    return 0;
}

static int print_throughput(engine_plan_params params, int32_t context) {
    engine_error error;
    engine_error_init(&error, sizeof error);
    engine_plan alone, reading;
    engine_plan_init(&alone, sizeof alone);
    engine_plan_init(&reading, sizeof reading);
    if (engine_plan_capacity(&params, &alone, &error)) return failed(error.message);
    const int64_t crossover = alone.crossover_batch;

    printf("                 without context         %6d tokens each\n", (int)context);
    printf("     batch   pass, ms   tokens/s      pass, ms   tokens/s\n");
    static const int64_t usual[] = {1, 8, 16, 32, 64};
    int crossover_printed = crossover > 4096;
    for (size_t i = 0; i < sizeof usual / sizeof usual[0] || !crossover_printed;) {
        int64_t batch = i < sizeof usual / sizeof usual[0] ? usual[i] : INT64_MAX;
        if (!crossover_printed && crossover <= batch) {
            crossover_printed = 1;
            if (crossover == batch) i++;
            batch = crossover;
        } else {
            i++;
        }
        params.batch = (int32_t)batch;
        params.context_tokens = 0;
        if (engine_plan_capacity(&params, &alone, &error)) return failed(error.message);
        params.context_tokens = context;
        if (engine_plan_capacity(&params, &reading, &error)) return failed(error.message);
        printf("%10lld %10.1f %10.0f    %10.1f %10.0f\n", (long long)batch, alone.pass_us / 1000,
               alone.tokens_per_second, reading.pass_us / 1000, reading.tokens_per_second);
    }
    printf(
        "\nA pass takes %.1f ms to read the weights. From a batch of %lld on computing takes longer; with "
        "the KV reads\n"
        "of %d tokens each, a batch of %lld already costs as much again. No batch exceeds %.0f and %.0f "
        "tokens/s.\n\n",
        alone.weights_us / 1000, (long long)crossover, (int)context,
        (long long)reading.crossover_batch_context, alone.tokens_per_second_max,
        reading.tokens_per_second_max);
    return 0;
}

static int print_cache(engine_plan_params params) {
    static const struct {
        const char* name;
        int32_t keys, values;
    } types[] = {
        {"f16", ENGINE_KV_F16, ENGINE_KV_F16},
        {"q8_0", ENGINE_KV_Q8_0, ENGINE_KV_Q8_0},
        {"q8_0 keys, tbq4 values", ENGINE_KV_Q8_0, ENGINE_KV_TBQ4},
        {"tbq4x keys, tbq4 values", ENGINE_KV_TBQ4X, ENGINE_KV_TBQ4},
        {"tbq4", ENGINE_KV_TBQ4, ENGINE_KV_TBQ4},
    };
    printf("KV types                 bytes/token     tokens  sequences of 8K  of 32K\n");
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        engine_error error;
        engine_error_init(&error, sizeof error);
        engine_plan shorter, longer;
        engine_plan_init(&shorter, sizeof shorter);
        engine_plan_init(&longer, sizeof longer);
        params.key_type = types[i].keys;
        params.value_type = types[i].values;
        params.sequence_tokens = 8192;
        engine_status status = engine_plan_capacity(&params, &shorter, &error);
        params.sequence_tokens = 32768;
        if (!status) status = engine_plan_capacity(&params, &longer, &error);
        if (status)
            printf("%-23s  %s\n", types[i].name, error.message);
        else
            printf("%-23s %12llu %10llu %16llu %7llu\n", types[i].name,
                   (unsigned long long)shorter.kv_token_bytes, (unsigned long long)shorter.kv_tokens,
                   (unsigned long long)shorter.sequences, (unsigned long long)longer.sequences);
    }
    return 0;
}

int main(int argc, char** argv) {
    engine_plan_params params;
    engine_plan_params_init(&params, sizeof params);
    params.weight_bytes = 17000000000;
    params.bandwidth = 1008000000000;
    params.token_flops = 54000000000;
    params.usable_flops = 82500000000000;
    params.kv_bytes = (uint64_t)7 << 30;
    params.kv_token_bytes_f16 = 64 << 10;
    int32_t context = 8192;
    const int ended = read_arguments(argc, argv, &params, &context);
    if (ended) return ended;
    const int unplanned = print_throughput(params, context);
    return unplanned ? unplanned : print_cache(params);
}
