/* A thousand threads that each allocate, and start and end further threads; every hundredth is cancelled. */
#include "attacked.h"

#include <pthread.h>

#ifndef THREADS
#define THREADS 1000
#endif
#define ENDING 20

static pthread_barrier_t begin, end;
static uint64_t sums[THREADS];

static void *work(void *argument) {
    for (uintptr_t number = (uintptr_t)argument;;) {
        pthread_barrier_wait(&begin);
        unsigned char *block = malloc(number + 1);
        memset(block, (int)number, number + 1);
        block = realloc(block, 2 * number + 100);
        sums[number] = mix_bytes(number, block, number + 1);
        free(block);
        pthread_barrier_wait(&end);
    }
    return NULL;
}

static void *until_cancelled(void *argument) {
    uint64_t *cleaned = argument;
    pthread_cleanup_push(free, malloc(100));
    for (;;) {
        void *block = malloc(200);
        *(volatile char *)block = 1;
        free(block);
        ++*cleaned;
        pthread_testcancel();
    }
    pthread_cleanup_pop(1);
    return NULL;
}

static void *short_lived(void *argument) {
    char *text = malloc(300);
    snprintf(text, 300, "thread %zu", (size_t)argument);
    return text;
}

static void prepare(int count, char **arguments) {
    (void)count, (void)arguments;
    pthread_barrier_init(&begin, NULL, THREADS + 1);
    pthread_barrier_init(&end, NULL, THREADS + 1);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (uintptr_t i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, work, (void *)i)) skip("no thousand threads can be started");
    }
}

static uint64_t do_round(void) {
    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&end);
    uint64_t sum = mix_bytes(0, sums, sizeof sums);
    for (uintptr_t i = 0; i < ENDING; i++) {
        pthread_t ends, cancelled;
        uint64_t cleaned = 0;
        void *text, *status;
        if (pthread_create(&ends, NULL, short_lived, (void *)i)) fail("pthread_create");
        if (pthread_create(&cancelled, NULL, until_cancelled, &cleaned)) fail("pthread_create");
        pthread_join(ends, &text);
        sum = mix_bytes(sum, text, strlen(text));
        free(text);
        pthread_cancel(cancelled);
        pthread_join(cancelled, &status);
        sum = mix(sum, status == PTHREAD_CANCELED);
    }
    return sum;
}
