/* Four threads that allocate and free as fast as they can for the number of seconds in the command, each keeping a set of blocks that it
 * turns over. What is left of it at the end is what the ledger has as live. */
#include "protocol.h"

#include "workers.h"

#include <time.h>

#define SIZED(n) SITE(mallocs_##n, (void), malloc(n), n)
SIZED(24)
SIZED(100)
SIZED(700)
SIZED(3000)

enum { SLOTS = 4000, STRETCH = 100 };

static struct block slots[WORKERS][SLOTS];

static struct block (*const allocate[])(void) = {mallocs_24, mallocs_100, mallocs_700, mallocs_3000};

static double seconds_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

NOINLINE static void warm_up(void) { free(malloc(100)); }

NOINLINE static void share(const char *line, int thread) {
    double seconds = strtod(line, NULL), end = seconds_now() + seconds;
    unsigned random = (unsigned)(thread + 1) * 2654435761u;
    while (seconds > 0 && seconds_now() < end)
        for (int i = 0; i < STRETCH; i++) {
            random = random * 1664525u + 1013904223u;
            struct block *slot = &slots[thread][(random >> 8) % SLOTS];
            release(*slot);
            *slot = allocate[random >> 30]();
        }
}

void prepare(void) { start_workers(); }

static void work(const char *line) { work_on_all(line); }
