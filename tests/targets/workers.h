/* Four threads for targets that do the same work on each at once. They are started, and have allocated, before `ready`,
 * so that allocations for starting threads are not in the ledger. Include after `protocol.h`. */
#ifndef WORKERS_H
#define WORKERS_H

#include <pthread.h>

enum { WORKERS = 4 };

static pthread_barrier_t workers_begin, workers_are_done;
static const char *workers_line;

/* One thread's share of the work for a line of input; threads are numbered from 0. */
NOINLINE static void share(const char *line, int thread);

/* Makes the allocator set up its data for the thread. */
NOINLINE static void warm_up(void);

static void *worker(void *number) {
    warm_up();
    for (;;) {
        pthread_barrier_wait(&workers_begin);
        share(workers_line, (int)(intptr_t)number);
        pthread_barrier_wait(&workers_are_done);
    }
    return NULL;
}

static void start_workers(void) {
    warm_up();
    pthread_barrier_init(&workers_begin, NULL, WORKERS + 1);
    pthread_barrier_init(&workers_are_done, NULL, WORKERS + 1);
    for (intptr_t number = 0; number < WORKERS; number++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, (void *)number) != 0) give_up("no thread");
        pthread_detach(thread);
    }
    /* One round without work, after which all have warmed up. */
    workers_line = "";
    pthread_barrier_wait(&workers_begin);
    pthread_barrier_wait(&workers_are_done);
}

/* Runs the work on all four threads at once. */
NOINLINE static void work_on_all(const char *line) {
    workers_line = line;
    pthread_barrier_wait(&workers_begin);
    pthread_barrier_wait(&workers_are_done);
}

#endif
