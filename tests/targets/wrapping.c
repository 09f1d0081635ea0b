/*
 * A library to preload that wraps the C library's allocator and puts a header before each block, as debug allocators do: no
 * block may be freed by another allocator than the one that made it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
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

/* Before each block: its size, and what the C library's allocator has returned for it. */
static void *begin(char *block, char *whole, size_t size) {
    memcpy(block - HEADER, &size, sizeof size);
    memcpy(block - HEADER / 2, &whole, sizeof whole);
    return block;
}

static char *whole_of(char *block) {
    char *whole;
    memcpy(&whole, block - HEADER / 2, sizeof whole);
    return whole;
}

void *malloc(size_t size) {
    if (!real_malloc) find();
    if (!real_malloc) {
        char *block = early + used;
        used += (size + HEADER) & ~15UL;
        return block;
    }
    char *whole = real_malloc(size + HEADER);
    return whole ? begin(whole + HEADER, whole, size) : NULL;
}

void free(void *block) {
    char *bytes = block;
    if (!block || (bytes >= early && bytes < early + sizeof early)) return;
    real_free(whole_of(bytes));
}

void *calloc(size_t count, size_t size) {
    void *block = malloc(count * size);
    if (block) memset(block, 0, count * size);
    return block;
}

void *memalign(size_t alignment, size_t size) {
    if (!real_malloc) find();
    char *whole = real_malloc(size + HEADER + alignment);
    if (!whole) return NULL;
    size_t behind = (size_t)(whole + HEADER + alignment - 1);
    return begin(whole + (behind / alignment * alignment - (size_t)whole), whole, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    return memalign(alignment, size);
}

int posix_memalign(void **result, size_t alignment, size_t size) {
    *result = memalign(alignment, size);
    return *result ? 0 : ENOMEM;
}

void *realloc(void *block, size_t size) {
    char *bytes = block;
    if (!block) return malloc(size);
    if (whole_of(bytes) != bytes - HEADER) {
        size_t before;
        memcpy(&before, bytes - HEADER, sizeof before);
        void *moved = malloc(size);
        if (moved) memcpy(moved, block, before < size ? before : size);
        if (moved) free(block);
        return moved;
    }
    char *whole = real_realloc(bytes - HEADER, size + HEADER);
    return whole ? begin(whole + HEADER, whole, size) : NULL;
}
