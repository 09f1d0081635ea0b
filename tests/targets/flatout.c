/* Allocates without end: after `start` a thread allocates and frees flat out, and never stops. `rate` answers with the pairs that
 * it makes in a millisecond of CPU time, as the bytes of `rate`. `keep COUNT` makes it hold as many blocks of 100 bytes more. */
#include "protocol.h"

#include <pthread.h>
#include <time.h>

static struct site rate_site __attribute__((section("sites"), used)) = {"rate", __LINE__, 0, 0, 0, 0};
static volatile uint64_t pairs;
static pthread_t churner;

NOINLINE static void churns(void) {
    void *volatile block = malloc(100);
    free(block);
    pairs++;
}

static void *churn(void *nothing) {
    for (;;) churns();
    return nothing;
}

static uint64_t cpu_ns(void) {
    clockid_t clock;
    struct timespec time;
    if (pthread_getcpuclockid(churner, &clock) != 0 || clock_gettime(clock, &time) != 0) give_up("no clock");
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

SITE(keeps, (void), malloc(100), 100)

static void work(const char *line) {
    size_t count = 0;
    if (strcmp(line, "start") == 0) {
        if (pthread_create(&churner, NULL, churn, NULL) != 0) give_up("no thread");
    } else if (strcmp(line, "rate") == 0) {
        uint64_t began = cpu_ns(), before = pairs;
        while (cpu_ns() - began < 200000000) usleep(1000);
        uint64_t ms = (cpu_ns() - began) / 1000000;
        rate_site.alloc_bytes += (pairs - before) / ms;
    } else if (sscanf(line, "keep %zu", &count) == 1) {
        while (count--) keeps();
    } else {
        give_up("unknown: %s", line);
    }
}
