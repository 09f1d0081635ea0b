/*
 * A process of extraordinary size. `keep N COUNT` keeps COUNT blocks of N bytes; `threads COUNT` starts threads that do
 * nothing; `mappings COUNT` maps pages, each a mapping of its own.
 */
#include "protocol.h"

#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>

SITE(keeps, (size_t n), malloc(n), n)

static void *rest(void *nothing) {
    for (;;) pause();
    return nothing;
}

static void start_threads(size_t count) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    for (size_t i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, rest, NULL)) give_up("thread %zu", i);
    }
}

/* Neighbours of different protection are not merged. */
static void add_mappings(size_t count) {
    char *pages = mmap(NULL, count * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) give_up("mmap");
    for (size_t i = 0; i < count; i += 2)
        if (mprotect(pages + i * 4096, 4096, PROT_READ | PROT_WRITE)) give_up("mapping %zu", i);
}

static void work(const char *line) {
    size_t n = 0, count = 0;
    if (sscanf(line, "keep %zu %zu", &n, &count) == 2) {
        for (size_t i = 0; i < count; i++) keeps(n);
    } else if (sscanf(line, "threads %zu", &count) == 1) {
        start_threads(count);
    } else if (sscanf(line, "mappings %zu", &count) == 1) {
        add_mappings(count);
    } else {
        give_up("unknown: %s", line);
    }
}
