/* Uses all functions of the allocator from four threads, and verifies each block. */
#include "attacked.h"

#include <malloc.h>
#include <pthread.h>

#define THREADS 4
#define SLOTS 64
#define STEPS 400

static pthread_barrier_t begin, end;
static uint64_t sums[THREADS];

static void *allocate(unsigned kind, size_t size) {
    void *block = NULL;
    switch (kind % 5) {
    case 0: return calloc(1, size);
    case 1: return posix_memalign(&block, 64, size) ? NULL : block;
    case 2: return aligned_alloc(32, (size + 31) & ~(size_t)31);
    case 3: return realloc(NULL, size);
    default: return malloc(size);
    }
}

FUNCTION uint64_t churn(unsigned number) {
    unsigned char *blocks[SLOTS] = {0};
    size_t sizes[SLOTS] = {0};
    uint64_t sum = number;
    unsigned random = number * 7919 + 1;
    for (int i = 0; i < STEPS; i++) {
        random = random * 1664525 + 1013904223;
        unsigned slot = random >> 26;
        size_t size = (random >> 13) % (random % 16 ? 500 : 20000) + 1;
        if (blocks[slot] && random % 3 == 0) {
            size_t old = sizes[slot] < size ? sizes[slot] : size;
            blocks[slot] = realloc(blocks[slot], size);
            sum = mix_bytes(sum, blocks[slot], old < 32 ? old : 32);
        } else {
            if (blocks[slot]) sum = mix_bytes(sum, blocks[slot], sizes[slot] < 32 ? sizes[slot] : 32);
            free(blocks[slot]);
            blocks[slot] = allocate(random >> 7, size);
        }
        if (!blocks[slot]) fail("no memory");
        sizes[slot] = size;
        memset(blocks[slot], (int)slot + i, size);
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        if (blocks[slot]) sum = mix_bytes(sum, blocks[slot], sizes[slot] < 32 ? sizes[slot] : 32);
        free(blocks[slot]);
    }
    char *text = strdup("a text to copy");
    sum = mix_bytes(sum, text, strlen(text));
    free(text);
    return sum;
}

static void *work(void *argument) {
    for (unsigned number = (unsigned)(uintptr_t)argument;;) {
        pthread_barrier_wait(&begin);
        sums[number] = churn(number);
        pthread_barrier_wait(&end);
    }
    return NULL;
}

static void prepare(int count, char **arguments) {
    (void)count, (void)arguments;
    pthread_barrier_init(&begin, NULL, THREADS + 1);
    pthread_barrier_init(&end, NULL, THREADS + 1);
    for (uintptr_t i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)i)) fail("pthread_create");
    }
}

static uint64_t do_round(void) {
    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&end);
    return mix_bytes(0, sums, sizeof sums);
}
