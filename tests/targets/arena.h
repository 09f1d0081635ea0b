/* An allocator that a program brings along, as an engine or a browser does: the whole family, C23's functions among them,
 * which no C library has that the tests run on. Blocks are cut from one arena and never used again. Nothing is inlined:
 * calls are what is counted. */
#ifndef ARENA_H
#define ARENA_H

#include <errno.h>
#include <sys/mman.h>

enum { HEADER = 16 };
#define ARENA_BYTES ((size_t)4 << 30)

static char *arena;
static size_t arena_used;

/* The size stands in front of the block. */
static void *cut(size_t alignment, size_t size) {
    if (size > ARENA_BYTES) {
        errno = ENOMEM;
        return NULL;
    }
    char *start = __atomic_load_n(&arena, __ATOMIC_ACQUIRE);
    if (start == NULL) {
        /* The first call comes before there are threads. */
        start = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED) _exit(96);
        __atomic_store_n(&arena, start, __ATOMIC_RELEASE);
    }
    if (alignment < HEADER) alignment = HEADER;
    size_t at = __atomic_fetch_add(&arena_used, size + alignment + HEADER, __ATOMIC_SEQ_CST) + HEADER;
    at = (at + alignment - 1) & ~(alignment - 1);
    if (at + size > ARENA_BYTES) _exit(95);
    *(size_t *)(start + at - HEADER) = size;
    return start + at;
}

static size_t *size_of(void *block) { return (size_t *)((char *)block - HEADER); }

NOINLINE void *malloc(size_t size) { return cut(HEADER, size); }
NOINLINE void free(void *block) { (void)block; }
NOINLINE void free_sized(void *block, size_t size) {
    if (*size_of(block) != size) _exit(94);
}
NOINLINE void free_aligned_sized(void *block, size_t alignment, size_t size) {
    if ((uintptr_t)block % alignment || *size_of(block) != size) _exit(93);
}
NOINLINE void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
    return cut(HEADER, bytes);
}
NOINLINE void *realloc(void *block, size_t size) {
    if (block == NULL) return malloc(size);
    if (size <= *size_of(block)) {
        *size_of(block) = size;
        return block;
    }
    void *larger = malloc(size);
    if (larger == NULL) return NULL;
    memcpy(larger, block, *size_of(block));
    free(block);
    return larger;
}
NOINLINE void *aligned_alloc(size_t alignment, size_t size) { return cut(alignment, size); }
NOINLINE void *memalign(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }
NOINLINE void *valloc(size_t size) { return memalign(4096, size); }
NOINLINE int posix_memalign(void **block, size_t alignment, size_t size) {
    if (alignment & (alignment - 1)) return EINVAL;
    void *made = aligned_alloc(alignment, size);
    if (made == NULL) return ENOMEM;
    *block = made;
    return 0;
}

#endif
