/*
 * A service that leaks slowly, besides memory that only resembles a leak: `run SECONDS` serves 100 requests a second. Blocks are kept
 * in lists of the program's own and never searched.
 *
 * | function          | what it does                                                        |
 * |-------------------|---------------------------------------------------------------------|
 * | loads_tables      | 40 blocks of 100 kB at the beginning, which stay                    |
 * | fills_cache       | blocks of 20 kB in the first fifth of the time, which stay          |
 * | serves            | a block of 8 kB a request, freed 50 requests later                  |
 * | buffers           | more and more blocks of 4 kB each second, all freed in the next one |
 * | forgets           | a block of 2 kB a request, never freed: the leak                    |
 * | forgets_knowingly | a block of 5 kB a request, never freed: a leak that is known        |
 */
#include "protocol.h"

#include <time.h>

enum { REQUESTS_PER_SECOND = 100, SERVED = 50, BUFFERS_MAX = 4000 };

SITE(loads_tables, (void), malloc(100000), 100000)
SITE(fills_cache, (void), malloc(20000), 20000)
SITE(serves, (void), malloc(8000), 8000)
SITE(buffers, (void), malloc(4000), 4000)
SITE(forgets, (void), malloc(2000), 2000)
SITE(forgets_knowingly, (void), malloc(5000), 5000)

static struct block served[SERVED], buffered[BUFFERS_MAX];
static int buffered_count;

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void handle(int request, int requests) {
    int second = request / REQUESTS_PER_SECOND;
    if (request < requests / 5) fills_cache();
    release(served[request % SERVED]);
    served[request % SERVED] = serves();
    if (request % REQUESTS_PER_SECOND == 0) {
        while (buffered_count) release(buffered[--buffered_count]);
        for (int i = 0; i < 20 * second && i < BUFFERS_MAX; i++) buffered[buffered_count++] = buffers();
    }
    forgets();
    forgets_knowingly();
}

static void work(const char *line) {
    int seconds = 0;
    if (sscanf(line, "run %d", &seconds) != 1) give_up("unknown: %s", line);
    for (int i = 0; i < 40; i++) loads_tables();
    int requests = seconds * REQUESTS_PER_SECOND;
    uint64_t began = now_ns();
    for (int request = 0; request < requests; request++) {
        handle(request, requests);
        uint64_t due = began + (uint64_t)(request + 1) * 1000000000 / REQUESTS_PER_SECOND, now = now_ns();
        if (now < due) usleep((useconds_t)((due - now) / 1000));
    }
}
