/* Four threads for targets that do the same work on each at once. They are started, and have allocated, before `ready`:
 * what starting a thread allocates is nobody's business here. Include after `protocol.h`. */
#ifndef CREW_H
#define CREW_H

#include <pthread.h>

enum { CREW = 4 };

static pthread_barrier_t crew_begins, crew_is_done;
static const char *crew_line;

/* One thread's share of the work for a line of input; threads are numbered from 0. */
NOINLINE static void share(const char *line, int thread);

/* Has the allocator set up what it keeps for a thread. */
NOINLINE static void warm_up(void);

static void *crew_member(void *number) {
    warm_up();
    for (;;) {
        pthread_barrier_wait(&crew_begins);
        share(crew_line, (int)(intptr_t)number);
        pthread_barrier_wait(&crew_is_done);
    }
    return NULL;
}

static void start_crew(void) {
    warm_up();
    pthread_barrier_init(&crew_begins, NULL, CREW + 1);
    pthread_barrier_init(&crew_is_done, NULL, CREW + 1);
    for (intptr_t number = 0; number < CREW; number++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, crew_member, (void *)number) != 0) give_up("no thread");
        pthread_detach(thread);
    }
    /* Once around without work: then all have warmed up. */
    crew_line = "";
    pthread_barrier_wait(&crew_begins);
    pthread_barrier_wait(&crew_is_done);
}

/* Has all four do their share of the work, at once. */
NOINLINE static void work_as_crew(const char *line) {
    crew_line = line;
    pthread_barrier_wait(&crew_begins);
    pthread_barrier_wait(&crew_is_done);
}

#endif
