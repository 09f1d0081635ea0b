/*
 * A library to preload that wraps the C library's allocator and puts a header before each block, as debug allocators do: no
 * block may be freed by another allocator than the one that made it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define HEADER 32

static void *(*real_malloc)(size_t);
static void (*real_free)(void *);
static void *(*real_realloc)(void *, size_t);
/* For blocks that dlsym allocates. */
static char early[4096];
static size_t used;

static void find(void) {
    static int finding;
    if (finding) return;
    finding = 1;
    *(void **)&real_free = dlsym(RTLD_NEXT, "free");
    *(void **)&real_realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc");
}

void *malloc(size_t size) {
    if (!real_malloc) find();
    if (!real_malloc) {
        char *block = early + used;
        used += (size + HEADER) & ~15UL;
        return block;
    }
    char *block = real_malloc(size + HEADER);
    if (!block) return NULL;
    memcpy(block, &size, sizeof size);
    return block + HEADER;
}

void free(void *block) {
    char *bytes = block;
    if (!block || (bytes >= early && bytes < early + sizeof early)) return;
    real_free(bytes - HEADER);
}

void *calloc(size_t count, size_t size) {
    void *block = malloc(count * size);
    if (block) memset(block, 0, count * size);
    return block;
}

void *realloc(void *block, size_t size) {
    if (!block) return malloc(size);
    char *moved = real_realloc((char *)block - HEADER, size + HEADER);
    if (!moved) return NULL;
    memcpy(moved, &size, sizeof size);
    return moved + HEADER;
}
