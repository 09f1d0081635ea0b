/*
 * A program that uses the allocator by each of its functions, verifies its blocks, and exits: a block that one allocator made and
 * another freed ends it with a signal.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))

NOINLINE static void *allocates(void) { return malloc(1000); }
NOINLINE static void *zeroes(void) { return calloc(10, 50); }
NOINLINE static void *resizes(void *block) { return realloc(block, 3000); }
NOINLINE static char *copies(void) { return strdup("abcdefghi"); }

static void fail(const char *what) {
    fprintf(stderr, "interposed: %s\n", what);
    exit(99);
}

/* Half of the blocks are used until the end. */
static void use(int round) {
    char *block = allocates();
    memset(block, round, 1000);
    char *zeroed = zeroes();
    for (int i = 0; i < 500; i++)
        if (zeroed[i]) fail("a byte of calloc is not zero");
    char *old = round % 2 ? allocates() : NULL;
    if (old) memset(old, round, 1000);
    char *resized = resizes(old);
    for (int i = 0; old && i < 1000; i++)
        if (resized[i] != (char)round) fail("realloc did not copy");
    char *text = copies();
    if (strcmp(text, "abcdefghi") != 0) fail("strdup did not copy");
    for (int i = 0; i < 1000; i++)
        if (block[i] != (char)round) fail("a block was overwritten");
    if (round % 4) return;
    free(block);
    free(zeroed);
    free(resized);
    free(text);
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 200;
    /* Without an argument, calls go on while heapbpf attaches and chooses its engine. */
    for (int round = 0; round < rounds; round++) {
        use(round);
        usleep(3000);
    }
    printf("interposed: %d rounds\n", rounds);
    return 0;
}
