/*
 * Two threads that allocate on command, one at a time: `baker COUNT BYTES`, `smith COUNT BYTES`. `names` sets their final
 * names; until then both have another one.
 */
#include "protocol.h"

#include <pthread.h>

SITE(take, (size_t n), malloc(n), n)

static struct worker {
    const char *called, *name;
    pthread_t thread;
    size_t count, bytes;
    int has_work;
} workers[] = {{.called = "baker", .name = "baker"}, {.called = "smith", .name = "smith; <1>"}};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void *labour(void *argument) {
    struct worker *worker = argument;
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!worker->has_work) pthread_cond_wait(&changed, &mutex);
        for (size_t i = 0; i < worker->count; i++) take(worker->bytes);
        worker->has_work = 0;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

void prepare(void) {
    for (size_t i = 0; i < 2; i++) {
        if (pthread_create(&workers[i].thread, NULL, labour, &workers[i])) give_up("no thread");
        pthread_setname_np(workers[i].thread, "early");
    }
}

static void work(const char *line) {
    char called[16];
    size_t count, bytes;
    if (strcmp(line, "names") == 0) {
        for (size_t i = 0; i < 2; i++) pthread_setname_np(workers[i].thread, workers[i].name);
    } else if (sscanf(line, "%15s %zu %zu", called, &count, &bytes) == 3) {
        for (size_t i = 0; i < 2; i++) {
            struct worker *worker = &workers[i];
            if (strcmp(called, worker->called)) continue;
            pthread_mutex_lock(&mutex);
            worker->count = count, worker->bytes = bytes, worker->has_work = 1;
            pthread_cond_broadcast(&changed);
            while (worker->has_work) pthread_cond_wait(&changed, &mutex);
            pthread_mutex_unlock(&mutex);
        }
    } else {
        give_up("unknown: %s", line);
    }
}
