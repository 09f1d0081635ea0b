// Draws calls of the malloc family, then says which blocks it has: one `ADDRESS SIZE` a line, in hexadecimal, then `done`. Before them, one `t ADDRESS` a line, where threads
// have their control blocks.
// It waits for a line before it begins, and again when it is through: nothing calls the allocator meanwhile.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct { void *block; } *tables[64];
static int threads;
static size_t blocks;
static pthread_barrier_t made, through;
static pthread_t pthreads[64];

static uint64_t drawn(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static size_t size_of(uint64_t *state) {
    uint64_t kind = drawn(state) % 2000;
    return drawn(state) % (1u << (kind == 0 ? 20 : kind < 20 ? 17 : kind < 200 ? 12 : 8));
}

static void *made_of(uint64_t *state, void *old) {
    size_t size = size_of(state);
    uint64_t kind = drawn(state) % 4000, shift = drawn(state);
    if (kind < 2000) {
        free(old);
        return malloc(size);
    }
    if (kind < 3000) {
        void *moved = realloc(old, size);
        return moved ? moved : malloc(size);
    }
    free(old);
    if (kind < 3500) return calloc(1, size);
    void *aligned = NULL;
    // Aligned to 2 MiB at most, and seldom: what is before it may count as the block's.
    shift = kind == 3500 ? 20 + shift % 2 : 4 + shift % 9;
    if (posix_memalign(&aligned, (size_t)1 << shift, size)) abort();
    return aligned;
}

static void *thread(void *number) {
    size_t nth = (size_t)number, count = blocks / threads;
    uint64_t state = 0x9e3779b97f4a7c15u * (nth + 1);
    for (size_t call = 0; call < 3 * count; call++) {
        void **place = &tables[nth][drawn(&state) % count].block;
        if (drawn(&state) % 4 == 0) {
            // Blocks of other threads are freed too: there by whoever comes first.
            size_t other = drawn(&state) % threads;
            free(__atomic_exchange_n(&tables[other][drawn(&state) % count].block, NULL, __ATOMIC_ACQ_REL));
        }
        void *block = made_of(&state, __atomic_exchange_n(place, NULL, __ATOMIC_ACQ_REL));
        if (block) memset(block, 0x5a, malloc_usable_size(block));
        free(__atomic_exchange_n(place, block, __ATOMIC_ACQ_REL));
    }
    pthread_barrier_wait(&made);
    pthread_barrier_wait(&through);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    threads = atoi(arguments[1]);
    blocks = strtoul(arguments[2], NULL, 10);
    static char buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    for (int nth = 0; nth < threads; nth++) tables[nth] = calloc(blocks / threads, sizeof **tables);
    pthread_barrier_init(&made, NULL, threads + 1);
    pthread_barrier_init(&through, NULL, threads + 1);
    // What the library allocates when something is done for the first time is there before the first line.
    printf("ready\n");
    fflush(stdout);
    char line;
    if (read(0, &line, 1) != 1) return 1;
    for (int nth = 0; nth < threads; nth++)
        if (pthread_create(&pthreads[nth], NULL, thread, (void *)(size_t)nth)) return 1;
    pthread_barrier_wait(&made);
    printf("t %lx\n", (long)pthread_self());
    for (int nth = 0; nth < threads; nth++) printf("t %lx\n", (long)pthreads[nth]);
    for (int nth = 0; nth < threads; nth++)
        for (size_t place = 0; place < blocks / threads; place++) {
            void *block = tables[nth][place].block;
            if (block) printf("%lx %lx\n", (long)block, (long)malloc_usable_size(block));
        }
    printf("done\n");
    fflush(stdout);
    if (read(0, &line, 1) != 1) return 1;
    pthread_barrier_wait(&through);
    return 0;
}
