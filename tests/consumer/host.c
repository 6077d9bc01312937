/* A C program that uses an installed Treadle, built by tests/tools/check_consumers.sh against each library in each way. It
 * defines names that also exist inside the library (PCRE2, mimalloc): a library that lets them out doesn't link, or
 * calls these. */
#include <engine.h>

#include <stdio.h>
#include <stdlib.h>

static int called;

void* mi_malloc(size_t size);
void* mi_malloc(size_t size) {
    (void)size;
    called = 1;
    return NULL;
}

void* pcre2_compile_8(void);
void* pcre2_compile_8(void) {
    called = 1;
    return NULL;
}

int main(void) {
    if (engine_abi_version() != ENGINE_ABI_VERSION) {
        fprintf(stderr, "the header has ABI version %d, the library %d\n", (int)ENGINE_ABI_VERSION,
                (int)engine_abi_version());
        return EXIT_FAILURE;
    }

    engine_error error;
    engine_error_init(&error, sizeof error);
    engine_model* model = NULL;
    if (engine_model_load_file("no such file", NULL, &model, &error) == ENGINE_OK || model != NULL)
        return EXIT_FAILURE;
    if (error.message[0] == '\0' || engine_status_string(error.status) == NULL) return EXIT_FAILURE;

    if (called) {
        fprintf(stderr, "the library called a function of this program\n");
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
