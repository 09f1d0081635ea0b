/*
 * A program whose threads are interrupted by signals in code that heapbpf has mapped, and stay in the handler. `catch COUNT FROM TO`
 * waits until COUNT threads are held at these offsets of functions of that code, or until signals have interrupted it so often
 * that no instruction seems to start there. `release` lets them return there. The threads have a low priority, because they take
 * all processor time that is left.
 */
#include "protocol.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

#define THREADS 8
/* Functions start at multiples of this with an endbr64. */
#define ALIGNMENT 64
/* Interruptions after which offsets count as the inside of an instruction. */
#define INTERRUPTIONS_MAX 300

SITE(keeps, (void), malloc(10), 10)

static volatile uint64_t code_start, code_end, first, last;
static volatile int wanted, held, interruptions;
static volatile uint64_t rounds[THREADS];

static void find_code(void) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    uint64_t start, end;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "heapbpf-stubs") && strstr(line, "r-xp") && sscanf(line, "%lx-%lx", &start, &end) == 2) {
            code_end = end;
            code_start = start;
        }
    fclose(maps);
}

static int take_one(void) {
    int left = wanted;
    while (left > 0 && !__atomic_compare_exchange_n(&wanted, &left, left - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return left > 0;
}

static volatile int let_go;

static void hold(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    uint64_t at = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (at < code_start || at >= code_end) return;
    __atomic_add_fetch(&interruptions, 1, __ATOMIC_SEQ_CST);
    uint64_t offset = at % ALIGNMENT;
    /* The function may be longer. */
    if (memcmp((const void *)(at - offset), "\xf3\x0f\x1e\xfa", 4) != 0) return;
    if (offset < first || offset > last || !take_one()) return;
    __atomic_add_fetch(&held, 1, __ATOMIC_SEQ_CST);
    struct timespec pause = {0, 1000000};
    while (!let_go) nanosleep(&pause, NULL);
    __atomic_sub_fetch(&held, 1, __ATOMIC_SEQ_CST);
}

static void start_timer(long number) {
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGUSR2;
    event._sigev_un._tid = (int)syscall(SYS_gettid);
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer)) give_up("timer_create");
    struct itimerspec period = {{0, 100000}, {0, 100000 + number * 1777}};
    timer_settime(timer, 0, &period, NULL);
}

static void *loop(void *argument) {
    long number = (long)argument;
    unsigned random = (unsigned)number * 7919 + 1;
    if (setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10)) give_up("setpriority");
    start_timer(number);
    for (;;) {
        random = random * 1664525 + 1013904223;
        void *block = malloc(40 + (random >> 26));
        *(volatile char *)block = 1;
        for (unsigned pause = random >> 29; pause; pause--) __asm__ volatile("nop");
        free(block);
        free(NULL);
        free(realloc(malloc(20), 30));
        rounds[number]++;
    }
    return NULL;
}

void prepare(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = hold;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGUSR2, &action, NULL);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    for (long number = 0; number < THREADS; number++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, loop, (void *)number)) give_up("pthread_create");
    }
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
}

static void wait_for_rounds(void) {
    uint64_t before[THREADS];
    for (int i = 0; i < THREADS; i++) before[i] = rounds[i];
    for (int i = 0; i < THREADS; i++)
        while (rounds[i] < before[i] + 100) usleep(1000);
}

static void work(const char *line) {
    int count;
    uint64_t from, to;
    if (sscanf(line, "catch %d %lu %lu", &count, &from, &to) == 3) {
        find_code();
        first = from;
        last = to;
        let_go = interruptions = 0;
        wanted = count;
        while (held < count && interruptions < INTERRUPTIONS_MAX) usleep(1000);
        wanted = 0;
    } else if (strcmp(line, "release") == 0) {
        let_go = 1;
        while (held) usleep(1000);
        wait_for_rounds();
        release(keeps());
    } else {
        give_up("unknown: %s", line);
    }
}
