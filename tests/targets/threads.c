/* Eight threads that allocate, resize and free at once, half of it each other's blocks. */
#include "protocol.h"

#include <pthread.h>

#define THREADS 8
#define ROUNDS 3000
#define SLOTS 64

SITE(thread_mallocs, (size_t n), malloc(n), n)
SITE(thread_callocs, (size_t n), calloc(3, n), 3 * n)
RESITE(thread_reallocs, (struct block old, size_t n), realloc(old.address, n), n)

/* Blocks on their way to another thread. */
static struct { pthread_mutex_t lock; struct block slots[SLOTS]; } exchange = {.lock = PTHREAD_MUTEX_INITIALIZER};
static pthread_barrier_t start;

/* Puts a block in and takes out whatever lay there: most likely another thread's. */
static struct block swap(struct block block, unsigned slot) {
    pthread_mutex_lock(&exchange.lock);
    struct block other = exchange.slots[slot % SLOTS];
    exchange.slots[slot % SLOTS] = block;
    pthread_mutex_unlock(&exchange.lock);
    return other;
}

static void *thread(void *argument) {
    unsigned random = (unsigned)(uintptr_t)argument * 2654435761u;
    pthread_barrier_wait(&start);
    for (int round = 0; round < ROUNDS; round++) {
        random = random * 1664525u + 1013904223u;
        size_t n = random >> 20;
        struct block block = round % 3 ? thread_mallocs(n) : thread_callocs(n);
        /* Moves between size classes: the old address is another thread's before this call returns. */
        if (round % 2) block = thread_reallocs(block, n * 4 + 1);
        release(swap(block, random >> 8));
    }
    return NULL;
}

static void work(const char *line) {
    (void)line;
    pthread_t threads[THREADS];
    pthread_barrier_init(&start, NULL, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, thread, (void *)(i + 1)) != 0) give_up("no thread");
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}
