/* Allocates and frees blocks on command: `alloc N` allocates N blocks of 64 bytes and keeps them, `free` frees all. Prints "ready"
 * once and "done" after each line. Every call has a stack of five frames. */
#include "outermost.h"

#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS_MAX = 1 << 21 };

static void *blocks[BLOCKS_MAX];
static size_t held;

__attribute__((noinline)) static void make(size_t count) {
    for (size_t i = 0; i < count && held < BLOCKS_MAX; i++) blocks[held++] = malloc(64);
}

__attribute__((noinline)) static void free_all(void) {
    while (held > 0) free(blocks[--held]);
}

__attribute__((noinline)) void level1(void *argument) {
    const char *line = argument;
    size_t count;
    if (sscanf(line, "alloc %zu", &count) == 1) {
        make(count);
    } else {
        free_all();
    }
    __asm__ volatile("");
}
LEVEL(2, 1) LEVEL(3, 2)

int main(void) {
    static char input[4096], output[4096], line[64];
    setvbuf(stdin, input, _IOFBF, sizeof input);
    setvbuf(stdout, output, _IOLBF, sizeof output);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        outermost(line);
        puts("done");
    }
}
