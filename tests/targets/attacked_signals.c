/*
 * Threads that allocate are interrupted by signals at 1 kHz each; with the argument `alternate` the handler runs on a stack of its
 * own. The handler verifies that nothing writes to its frame.
 */
#include "attacked.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

#define THREADS 4
#define ROUND 3000

static pthread_barrier_t begin, end;
static uint64_t sums[THREADS];
static volatile int wrong;
static volatile unsigned long handled;
static int alternate;

static void handle(int signal) {
    volatile unsigned char frame[2000];
    (void)signal;
    for (size_t i = 0; i < sizeof frame; i++) frame[i] = (unsigned char)i;
    for (size_t i = 0; i < sizeof frame; i++)
        if (frame[i] != (unsigned char)i) wrong = 1;
    handled++;
}

static void start_timer(long number) {
    if (alternate) {
        stack_t stack = {.ss_sp = malloc(64 << 10), .ss_size = 64 << 10};
        sigaltstack(&stack, NULL);
    }
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGUSR2;
    event._sigev_un._tid = (int)syscall(SYS_gettid);
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer)) fail("timer_create");
    struct itimerspec period = {{0, 1000000}, {0, 1000000 + number * 17777}};
    timer_settime(timer, 0, &period, NULL);
}

static void *work(void *argument) {
    long number = (long)argument;
    start_timer(number);
    for (;;) {
        pthread_barrier_wait(&begin);
        uint64_t sum = (uint64_t)number;
        for (size_t i = 0; i < ROUND; i++) {
            unsigned char *block = malloc(i % 300 + 1);
            *block = (unsigned char)i;
            block = realloc(block, i % 500 + 20);
            sum = mix(sum, *block);
            free(block);
        }
        sums[number] = sum;
        pthread_barrier_wait(&end);
    }
    return NULL;
}

static void prepare(int count, char **arguments) {
    alternate = count > 1 && strcmp(arguments[1], "alternate") == 0;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART | (alternate ? SA_ONSTACK : 0);
    sigaction(SIGUSR2, &action, NULL);
    pthread_barrier_init(&begin, NULL, THREADS + 1);
    pthread_barrier_init(&end, NULL, THREADS + 1);
    for (long i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)i)) fail("pthread_create");
    }
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
}

static uint64_t do_round(void) {
    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&end);
    return mix(mix_bytes(0, sums, sizeof sums), (uint64_t)wrong);
}
