/*
 * A library with an allocator of its own, to be loaded while a program runs. Linked with `-Bsymbolic`, so that its calls
 * reach what is in it.
 *
 * What the build defines:
 *   WRAPS      its malloc family asks the C library for every block
 *   NO_HEAP    it has no allocator at all, and calls the program's
 *   SHIFT      so many bytes of code stand before everything else: two builds then differ in where everything is
 * `-Dmalloc=je_malloc` and the like give it other names.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa, unused))

#ifdef SHIFT
#define TEXT_(n) #n
#define TEXT(n) TEXT_(n)
__asm__(".text\n.skip " TEXT(SHIFT) ", 0xcc\n");
#endif

#if defined WRAPS
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void __libc_free(void *);
NOINLINE void *malloc(size_t size) { return __libc_malloc(size); }
NOINLINE void *calloc(size_t count, size_t size) { return __libc_calloc(count, size); }
NOINLINE void *realloc(void *block, size_t size) { return __libc_realloc(block, size); }
NOINLINE void free(void *block) { __libc_free(block); }
#elif !defined NO_HEAP
#include "arena.h"
#endif

NOINLINE void *plugin_keeps(size_t size) {
    void *volatile block = malloc(size);
    return block;
}

/* realloc allocates the larger block. */
NOINLINE void *plugin_resizes(void *old, size_t size) {
    void *volatile block = realloc(old, size);
    return block;
}

NOINLINE void plugin_frees(void *block) { free(block); }

/* The C library's malloc, from inside the C library. */
NOINLINE char *plugin_copies(const char *text) {
    char *volatile copy = strdup(text);
    return copy;
}
