/*
 * A program that calls the allocator through function pointers in its own data as often as through its slots. `direct` makes
 * and frees 20,000 blocks of 100 bytes, `indirect` 10,000 of 200 bytes, and `last` keeps 250 of 300 bytes.
 */
#include <stdlib.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))

static void *(*volatile allocate)(size_t);
static void (*volatile release)(void *);

NOINLINE static void *direct(void) { return malloc(100); }
NOINLINE static void *indirect(void) { return allocate(200); }
NOINLINE static void *last(void) { return malloc(300); }

int main(void) {
    allocate = malloc;
    release = free;
    for (int i = 0; i < 20000; i++) {
        void *block = direct();
        if (i % 2) release(indirect());
        free(block);
        /* Calls must go on while heapbpf decides about its engine. */
        if (i % 5 == 0) usleep(1000);
        if (i >= 10000 && i % 40 == 0) last();
    }
    return 0;
}
