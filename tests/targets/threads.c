/*
 * Threads that allocate, resize and free at once, half of it each other's blocks.
 *
 * What a line of input does:
 *   `go`                   eight threads do the same rounds each time
 *   `go THREADS SECONDS`   that many threads, for that long
 */
#include "protocol.h"

#include <pthread.h>
#include <time.h>

#define THREADS 8
#define THREADS_MAX 256
#define ROUNDS 3000
#define SLOTS 64

SITE(thread_mallocs, (size_t n), malloc(n), n)
SITE(thread_callocs, (size_t n), calloc(3, n), 3 * n)
RESITE(thread_reallocs, (struct block old, size_t n), realloc(old.address, n), n)

/* Blocks on their way to another thread. */
static struct { pthread_mutex_t lock; struct block slots[SLOTS]; } exchange = {.lock = PTHREAD_MUTEX_INITIALIZER};
static pthread_barrier_t start;
/* Seconds of CLOCK_MONOTONIC at which threads stop; 0 to stop after ROUNDS. */
static time_t deadline;

static time_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}

static int goes_on(int round) {
    return deadline == 0 ? round < ROUNDS : now() < deadline;
}

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
    for (int round = 0; goes_on(round); round++) {
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
    int count = THREADS, seconds = 0;
    if (sscanf(line, "go %d %d", &count, &seconds) == 1 || count < 1 || count > THREADS_MAX)
        give_up("`%s` is not `go THREADS SECONDS`", line);
    pthread_t threads[THREADS_MAX];
    pthread_barrier_init(&start, NULL, (unsigned)count);
    deadline = seconds == 0 ? 0 : now() + seconds;
    for (intptr_t i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, thread, (void *)(i + 1)) != 0) give_up("no thread");
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}
