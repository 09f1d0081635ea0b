/*
 * A library that makes blocks and holds some. Built twice: as `LOADED` with thread-local storage, and as one that can be unloaded.
 */
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))

/* As `truth.h` has it, which is not to be in two places. */
#define MASK 0xa5a5a5a5a5a5a5a5

static void *volatile globals[4];

/* Zeroed, so that nothing of what was there before is a pointer. */
static uintptr_t hidden(void *block) {
    memset(block, 0, malloc_usable_size(block));
    return (uintptr_t)block ^ MASK;
}

#ifdef LOADED
static __thread void *volatile of_thread;

NOINLINE uintptr_t loaded_global(size_t size) {
    uintptr_t block = hidden(malloc(size));
    globals[1] = (void *)(block ^ MASK);
    return block;
}

NOINLINE uintptr_t loaded_tls(size_t size) {
    uintptr_t block = hidden(malloc(size));
    of_thread = (void *)(block ^ MASK);
    return block;
}

NOINLINE uintptr_t loaded_leak(size_t size) { return hidden(malloc(size)); }
#else
NOINLINE uintptr_t unloaded_global(size_t size) {
    uintptr_t block = hidden(malloc(size));
    globals[1] = (void *)(block ^ MASK);
    return block;
}

NOINLINE uintptr_t unloaded_leak(size_t size) { return hidden(malloc(size)); }
#endif
