/*
 * Names that are not UTF-8: `go` allocates in a function of such a name, in a thread of such a name.
 */
#include "protocol.h"

#include <pthread.h>
#include <semaphore.h>

SITE(keeps, (void), malloc(1000), 1000)

static struct block own;

/* "café" in Latin-1. */
NOINLINE void *brew(void) __asm__("caf\xe9");
NOINLINE void *brew(void) {
    own = keeps();
    return own.address;
}

static void *labour(void *argument) {
    pthread_setname_np(pthread_self(), "th\xe9");
    brew();
    sem_wait(argument);
    return NULL;
}

void prepare(void) {}

static void work(const char *line) {
    static sem_t never;
    pthread_t thread;
    if (strcmp(line, "go") != 0) give_up("unknown: %s", line);
    if (sem_init(&never, 0, 0) || pthread_create(&thread, NULL, labour, &never)) give_up("no thread");
    while (!__atomic_load_n(&own.address, __ATOMIC_ACQUIRE)) usleep(1000);
}
