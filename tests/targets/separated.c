/*
 * A library that allocates, frees and copies through slots of its own: linked with an allocator and loaded with RTLD_DEEPBIND,
 * or loaded into a namespace of its own, it has another allocator than the program.
 */
#include <stdlib.h>
#include <string.h>

void *separate_keeps(size_t size) {
    void *block = malloc(size);
    memset(block, 1, size);
    return block;
}

void separate_frees(void *block) { free(block); }

/* The C library's strdup would take the block from the C library's allocator. */
char *separate_copies(const char *text) {
    size_t size = strlen(text) + 1;
    return memcpy(malloc(size), text, size);
}
