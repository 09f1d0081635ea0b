/*
 * A program with many callsites: `callsites COUNT RATE` has COUNT stacks of up to 20 functions, each of which keeps one block.
 * RATE times a second, one of them in turn replaces its block by one of another size. Prints `ready` when each has a block, and
 * exits then if RATE is 0.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LEVELS = 17, COUNT_MAX = 1 << LEVELS, TURNS_PER_SECOND = 100 };

static void *kept[COUNT_MAX];

__attribute__((noinline)) static void *odd(unsigned levels, unsigned path, size_t size);

/* Each bit of the path is one of two callers. */
__attribute__((noinline)) static void *even(unsigned levels, unsigned path, size_t size) {
    void *block = levels == 0 ? malloc(size) : (path & 1 ? odd : even)(levels - 1, path >> 1, size);
    __asm__ volatile("" : "+r"(block));
    return block;
}

__attribute__((noinline)) static void *odd(unsigned levels, unsigned path, size_t size) {
    void *block = levels == 0 ? malloc(size) : (path & 1 ? odd : even)(levels - 1, path >> 1, size);
    __asm__ volatile("# odd" : "+r"(block));
    return block;
}

static void replace(unsigned callsite, unsigned turn) {
    free(kept[callsite]);
    kept[callsite] = even(LEVELS, callsite, 16 + (callsite * 7919u + turn * 104729u) % 4096);
}

int main(int argc, char **argv) {
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 10000, rate = argc > 2 ? (unsigned)atoi(argv[2]) : 5000;
    if (count == 0 || count > COUNT_MAX) return 2;
    for (unsigned i = 0; i < count; i++) replace(i, 0);
    puts("ready");
    fflush(stdout);
    if (rate == 0) return 0;
    for (unsigned long number = 0;;) {
        for (unsigned i = 0; i < rate / TURNS_PER_SECOND; i++, number++)
            replace((unsigned)(number % count), (unsigned)(number / count) + 1);
        usleep(1000000 / TURNS_PER_SECOND);
    }
}
