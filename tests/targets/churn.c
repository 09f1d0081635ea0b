/* Calls the allocator continuously and times itself: `churn OPERATION [THREADS]`. Prints "ready CALLS", and then for each
 * batch of CALLS when it began and ended (nanoseconds of CLOCK_MONOTONIC) and how much CPU time its thread took for it,
 * so that the reader can select the batches between two points in time. Every call has a stack of five frames. */
#include "outermost.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 10000 };

static uint64_t now_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* 64 to 1087 bytes, in no order that an allocator could learn. */
static size_t size_of_call(unsigned i) { return 64 + i * 37 % 1024; }

static void give_up(const char *what) {
    perror(what);
    exit(1);
}

__attribute__((noinline)) static void malloc_batch(void) {
    for (unsigned i = 0; i < CALLS; i++) {
        void *volatile block = malloc(size_of_call(i));
        free(block);
    }
}

__attribute__((noinline)) static void calloc_batch(void) {
    for (unsigned i = 0; i < CALLS; i++) {
        void *volatile block = calloc(1, size_of_call(i));
        free(block);
    }
}

__attribute__((noinline)) static void realloc_batch(void) {
    static _Thread_local void *volatile block;
    for (unsigned i = 0; i < CALLS; i++) {
        block = realloc(block, size_of_call(i));
    }
}

__attribute__((noinline)) static void posix_memalign_batch(void) {
    for (unsigned i = 0; i < CALLS; i++) {
        void *block;
        if (posix_memalign(&block, 64, size_of_call(i)) != 0) give_up("posix_memalign");
        free(block);
    }
}

static const struct operation {
    const char *name;
    void (*batch)(void);
} operations[] = {
    {"malloc", malloc_batch},
    {"calloc", calloc_batch},
    {"realloc", realloc_batch},
    {"posix_memalign", posix_memalign_batch},
};

/* One thread's batches. Calls the batch here, so that it is the second frame and the loop of calls the first. */
__attribute__((noinline)) void level1(void *argument) {
    const struct operation *operation = argument;
    for (;;) {
        uint64_t began = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_THREAD_CPUTIME_ID);
        operation->batch();
        cpu = now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
        char line[96];
        int length = snprintf(line, sizeof line, "%llu %llu %llu\n", (unsigned long long)began,
                              (unsigned long long)now_ns(CLOCK_MONOTONIC), (unsigned long long)cpu);
        if (write(STDOUT_FILENO, line, (size_t)length) != length) exit(0);
    }
}
LEVEL(2, 1) LEVEL(3, 2)

static void *work(void *argument) {
    outermost(argument);
    return NULL;
}

int main(int count, char **words) {
    const struct operation *operation = NULL;
    for (size_t i = 0; count > 1 && i < sizeof operations / sizeof *operations; i++) {
        if (strcmp(operations[i].name, words[1]) == 0) operation = &operations[i];
    }
    if (operation == NULL) give_up("no such operation");
    char line[32];
    int length = snprintf(line, sizeof line, "ready %d\n", CALLS);
    if (write(STDOUT_FILENO, line, (size_t)length) != length) return 1;
    for (int i = 1; i < (count > 2 ? atoi(words[2]) : 1); i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)operation) != 0) give_up("pthread_create");
    }
    outermost((void *)operation);
}
