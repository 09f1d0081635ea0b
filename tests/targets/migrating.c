/*
 * Threads that allocate while others move them between CPUs, while signals interrupt them, and while threads start and end.
 *
 *   `run THREADS COUNT`   that many threads with COUNT allocations each, moved between CPUs all the time
 *   `drop`                frees what they have kept
 *   `alarm HERTZ`         from now on SIGALRM and SIGPROF interrupt, so many times a second; 0 ends this
 *   `load THREADS`        that many threads allocate, without counts, and each starts further threads, until `load 0`: with
 *                         a low priority, because they take all processor time that is left
 *   `rounds [COUNT]`      waits until each of these has done another hundred rounds, or so many
 *   `handled`             waits until a hundred further signals have been handled
 *
 * Counts are the threads' own until they end: shared ones would take longer than the allocator.
 */
#include "protocol.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>

enum { KINDS = 5, KEPT = 256, SHARED = 64, THREADS_MAX = 256 };

static const size_t sizes[KINDS] = {24, 200, 3000, 50000, 1000};

#define COUNTED(name, call)                                                                                            \
    static struct site name##_site __attribute__((section("sites"), used)) = {#name, __LINE__, 0, 0, 0, 0};         \
    NOINLINE static void *name(void *old) {                                                                            \
        (void)old;                                                                                                     \
        void *volatile address = call;                                                                                 \
        return address;                                                                                                \
    }

COUNTED(mallocs_24, malloc(24))
COUNTED(callocs_200, calloc(2, 100))
COUNTED(reallocs_3000, realloc(NULL, 3000))
COUNTED(mallocs_50000, malloc(50000))
COUNTED(grows_to_1000, realloc(old, 1000))

static struct kind {
    void *(*allocate)(void *);
    struct site *site;
} kinds[KINDS] = {{mallocs_24, &mallocs_24_site},
                  {callocs_200, &callocs_200_site},
                  {reallocs_3000, &reallocs_3000_site},
                  {mallocs_50000, &mallocs_50000_site},
                  {grows_to_1000, &grows_to_1000_site}};

/* Blocks are at multiples of 16, which leaves room for their kind. */
typedef uintptr_t tagged;
static tagged shared[SHARED];

struct counts {
    uint64_t allocated[KINDS], freed[KINDS];
};

static tagged make(struct counts *counts, unsigned kind, void *old) {
    void *address = kinds[kind].allocate(old);
    if (address == NULL) give_up("no memory");
    counts->allocated[kind]++;
    return (tagged)address | kind;
}

static void drop(struct counts *counts, tagged block) {
    if (block == 0) return;
    counts->freed[block & 15]++;
    free((void *)(block & ~(tagged)15));
}

static void enter(const struct counts *counts) {
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct site *site = kinds[kind].site;
        __atomic_add_fetch(&site->alloc_count, counts->allocated[kind], __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&site->alloc_bytes, counts->allocated[kind] * sizes[kind], __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&site->free_count, counts->freed[kind], __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&site->free_bytes, counts->freed[kind] * sizes[kind], __ATOMIC_SEQ_CST);
    }
}

static uint32_t next(uint32_t *random) {
    *random = *random * 1664525u + 1013904223u;
    return *random >> 8;
}

/* 60 % of 24 bytes, 25 % of 200, 9 % of 3000, 1 % of 50000, and 5 % that grow from 24 bytes. */
static void round_of(struct counts *counts, uint32_t *random, tagged *kept) {
    uint32_t drawn = next(random) % 100;
    tagged *place = &kept[next(random) % KEPT];
    drop(counts, *place);
    unsigned kind = drawn < 60 ? 0 : drawn < 85 ? 1 : drawn < 94 ? 2 : drawn < 95 ? 3 : 4;
    if (kind == 4) {
        tagged small = make(counts, 0, NULL);
        counts->freed[0]++;
        *place = make(counts, 4, (void *)small);
    } else {
        *place = make(counts, kind, NULL);
    }
    if (drawn % 8 == 0) *place = __atomic_exchange_n(&shared[next(random) % SHARED], *place, __ATOMIC_SEQ_CST);
}

static pthread_barrier_t begin;
static long count_per_thread;
static int running;
static pid_t tids[THREADS_MAX];
static tagged kept[THREADS_MAX][KEPT];

static void *work_of_thread(void *number) {
    intptr_t me = (intptr_t)number;
    struct counts counts = {0};
    uint32_t random = (uint32_t)me * 2654435761u + 1;
    __atomic_store_n(&tids[me], (pid_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    pthread_barrier_wait(&begin);
    for (long i = 0; i < count_per_thread; i++) round_of(&counts, &random, kept[me]);
    enter(&counts);
    __atomic_store_n(&tids[me], 0, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static cpu_set_t allowed;

static void move_to(pid_t tid, int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (tid != 0 && sched_setaffinity(tid, sizeof one, &one) != 0 && errno != ESRCH) give_up("affinity: %d", errno);
}

static void run(int threads, long count) {
    static pthread_t started[THREADS_MAX];
    if (threads < 1 || threads > THREADS_MAX) give_up("%d threads", threads);
    sched_getaffinity(0, sizeof allowed, &allowed);
    pthread_barrier_init(&begin, NULL, (unsigned)threads + 1);
    count_per_thread = count;
    running = threads;
    for (intptr_t i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, work_of_thread, (void *)i) != 0) give_up("no thread");
    pthread_barrier_wait(&begin);
    uint32_t random = 7;
    while (__atomic_load_n(&running, __ATOMIC_SEQ_CST) > 0) {
        int cpu = (int)(next(&random) % CPU_SETSIZE) % CPU_COUNT(&allowed);
        for (int at = 0; at < CPU_SETSIZE; at++)
            if (CPU_ISSET(at, &allowed) && cpu-- == 0)
                move_to(__atomic_load_n(&tids[next(&random) % (unsigned)threads], __ATOMIC_SEQ_CST), at);
        usleep(50);
    }
    for (int i = 0; i < threads; i++) pthread_join(started[i], NULL);
}

static void drop_all(void) {
    struct counts counts = {0};
    for (int thread = 0; thread < THREADS_MAX; thread++)
        for (int i = 0; i < KEPT; i++) {
            drop(&counts, kept[thread][i]);
            kept[thread][i] = 0;
        }
    for (int i = 0; i < SHARED; i++) drop(&counts, __atomic_exchange_n(&shared[i], 0, __ATOMIC_SEQ_CST));
    /* The blocks are of an earlier line: their frees do not count. */
}

static volatile sig_atomic_t handled;

/* Changes every register that the interrupted code may rely on being saved. */
static void handle(int signal) {
    (void)signal;
    volatile unsigned char stack[1024];
    for (size_t i = 0; i < sizeof stack; i++) stack[i] = (unsigned char)i;
    handled = handled + 1;
}

static void interrupt(long hertz) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    sigaction(SIGPROF, &action, NULL);
    long period = hertz == 0 ? 0 : 1000000 / hertz;
    struct itimerval timer = {{0, period}, {0, period}};
    if (setitimer(ITIMER_REAL, &timer, NULL) || setitimer(ITIMER_PROF, &timer, NULL)) give_up("timer");
}

static int loads;
static uint64_t rounds[THREADS_MAX];
static pthread_t loading[THREADS_MAX];

static void *short_life(void *seed) {
    struct counts counts = {0};
    uint32_t random = (uint32_t)(uintptr_t)seed;
    tagged own[KEPT] = {0};
    for (int i = 0; i < 300; i++) round_of(&counts, &random, own);
    for (int i = 0; i < KEPT; i++) drop(&counts, own[i]);
    return NULL;
}

static void *load(void *number) {
    intptr_t me = (intptr_t)number;
    /* Of this thread alone: on Linux, the process with a thread's number is that thread. */
    if (setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10) != 0) give_up("priority");
    while (__atomic_load_n(&loads, __ATOMIC_SEQ_CST)) {
        pthread_t other;
        if (pthread_create(&other, NULL, short_life, (void *)(uintptr_t)(rounds[me] * 64 + (uint64_t)me)) != 0) give_up("no thread");
        short_life((void *)(uintptr_t)(rounds[me] + 5));
        pthread_join(other, NULL);
        __atomic_add_fetch(&rounds[me], 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void change_load(int threads) {
    int before = loads;
    if (threads > THREADS_MAX) give_up("%d threads", threads);
    __atomic_store_n(&loads, 0, __ATOMIC_SEQ_CST);
    for (intptr_t i = 0; i < before; i++) pthread_join(loading[i], NULL);
    __atomic_store_n(&loads, threads, __ATOMIC_SEQ_CST);
    for (intptr_t i = 0; i < threads; i++)
        if (pthread_create(&loading[i], NULL, load, (void *)i) != 0) give_up("no thread");
}

static void await_rounds(uint64_t count) {
    for (int i = 0; i < loads; i++) {
        uint64_t before = __atomic_load_n(&rounds[i], __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&rounds[i], __ATOMIC_SEQ_CST) < before + count) usleep(1000);
    }
}

static void work(const char *line) {
    int threads = 0;
    long count = 0;
    if (sscanf(line, "run %d %ld", &threads, &count) == 2) {
        run(threads, count);
    } else if (strcmp(line, "drop") == 0) {
        drop_all();
    } else if (sscanf(line, "alarm %ld", &count) == 1) {
        interrupt(count);
    } else if (sscanf(line, "load %d", &threads) == 1) {
        change_load(threads);
    } else if (strcmp(line, "rounds") == 0) {
        await_rounds(100);
    } else if (sscanf(line, "rounds %ld", &count) == 1) {
        await_rounds((uint64_t)count);
    } else if (strcmp(line, "handled") == 0) {
        for (sig_atomic_t before = handled; handled < before + 100;) usleep(100);
    } else {
        give_up("unknown: %s", line);
    }
}
