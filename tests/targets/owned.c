/* Has memory of eight kinds, of which it knows how much: on a line "all" it allocates small blocks and frees most of them, allocates large
   ones and frees half of them, maps memory of its own between blocks of the same size, writes to stacks of threads and to variables, and
   leaves a block of 600 MiB untouched. On a line "stacks N" it starts N more threads. Prints `ready`, then `done` after each line. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    MIB = 1 << 20,
    SMALL = 400,
    SMALL_COUNT = 40000,
    SMALL_KEPT = 20,
    LARGE = 100000,
    LARGE_COUNT = 300,
    MAPPED = 24,
    BLOCKS = 8,
    STACK = 1 << 20,
    STACK_USED = 400 << 10,
    THREADS = 10,
    VARIABLES = 3 * MIB,
};

static char variables[VARIABLES];
static char *smalls[SMALL_COUNT], *larges[LARGE_COUNT], *blocks[BLOCKS], *untouched;
static pthread_barrier_t started;

static char *filled(char *memory, size_t bytes) {
    if (memory == NULL || memory == MAP_FAILED) exit(1);
    return memset(memory, 1, bytes);
}

static char *mapped(void) {
    return filled(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), MIB);
}

static void *use_stack(void *bytes) {
    volatile char used[(size_t)bytes];
    memset((char *)used, 1, sizeof used);
    pthread_barrier_wait(&started);
    pause();
    return NULL;
}

static void start(long count, size_t stack, size_t used) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack);
    pthread_barrier_init(&started, NULL, (unsigned)count + 1);
    for (long at = 0; at < count; at++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, use_stack, (void *)used)) exit(1);
    }
    pthread_barrier_wait(&started);
}

static void all(void) {
    untouched = malloc(600ul * MIB);
    if (untouched == NULL) exit(1);
    for (int at = 0; at < SMALL_COUNT; at++) smalls[at] = filled(malloc(SMALL), SMALL);
    for (int at = 0; at < LARGE_COUNT; at++) larges[at] = filled(malloc(LARGE), LARGE);
    for (int at = 0; at < MAPPED; at++) {
        mapped();
        if (at < BLOCKS) blocks[at] = filled(malloc(MIB), MIB);
    }
    start(THREADS, STACK, STACK_USED);
    filled(variables, VARIABLES);
    for (int at = 0; at < SMALL_COUNT; at++)
        if (at % SMALL_KEPT) free(smalls[at]);
    for (int at = 1; at < LARGE_COUNT; at += 2) free(larges[at]);
}

int main(void) {
    char line[64];
    long count;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "all\n")) all();
        if (sscanf(line, "stacks %ld", &count) == 1) start(count, 64 << 10, 16 << 10);
        puts("done");
    }
    return 0;
}
