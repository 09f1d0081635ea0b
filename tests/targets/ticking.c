/*
 * Allocates a block every 10 ms on a thread of its own, and frees it 5 ms later, whatever the profiler does.
 *
 * `size N` has blocks of N bytes from then on, with none of the former size left; `pause` has none. `ticks N` answers after N
 * more blocks were freed. `leak N COUNT` answers at once: from then on a block of N bytes is kept every millisecond, and after
 * COUNT of them the program ends with 0.
 */
#include "protocol.h"

#include <pthread.h>
#include <time.h>

SITE(ticks, (size_t n), malloc(n), n)
SITE(leaks, (size_t n), malloc(n), n)

static size_t tick_bytes, leak_bytes, ticking_bytes;
static long ticked, leak_count;

static void sleep_ms(long ms) {
    struct timespec time = {0, ms * 1000000};
    nanosleep(&time, NULL);
}

static void *tick(void *argument) {
    for (;;) {
        size_t size = __atomic_load_n(&tick_bytes, __ATOMIC_SEQ_CST);
        __atomic_store_n(&ticking_bytes, size, __ATOMIC_SEQ_CST);
        if (size > 0) {
            struct block block = ticks(size);
            sleep_ms(5);
            release(block);
            __atomic_add_fetch(&ticked, 1, __ATOMIC_SEQ_CST);
        }
        sleep_ms(5);
    }
    return argument;
}

static void *leak(void *argument) {
    for (long i = 0; i < leak_count; i++) {
        leaks(leak_bytes);
        sleep_ms(1);
    }
    exit(0);
    return argument;
}

static void start(void *(*function)(void *)) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, NULL)) give_up("thread");
}

void prepare(void) {
    start(tick);
}

/* The thread may just have read the former size. */
static void set_size(size_t size) {
    __atomic_store_n(&tick_bytes, size, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&ticking_bytes, __ATOMIC_SEQ_CST) != size) sleep_ms(1);
}

static void work(const char *line) {
    size_t size = 0;
    long count = 0;
    if (sscanf(line, "size %zu", &size) == 1) {
        set_size(size);
    } else if (strcmp(line, "pause") == 0) {
        set_size(0);
    } else if (sscanf(line, "ticks %ld", &count) == 1) {
        long end = __atomic_load_n(&ticked, __ATOMIC_SEQ_CST) + count;
        while (__atomic_load_n(&ticked, __ATOMIC_SEQ_CST) < end) sleep_ms(1);
    } else if (sscanf(line, "leak %zu %ld", &leak_bytes, &leak_count) == 2) {
        start(leak);
    } else {
        give_up("unknown: %s", line);
    }
}
