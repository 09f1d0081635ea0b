/* Threads that make system calls without end and check what they return: a call that is interrupted, a register that is changed,
 * a signal that is lost or a child that appears ends the program with an exit code of its own. `check` answers `done` once
 * each thread has made calls since. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 7 };

static volatile unsigned long rounds[THREADS];
static volatile sig_atomic_t alarms;

static void is(int right, int code) {
    if (!right) _exit(code);
}

static void child_ended(int signal) {
    (void)signal;
    _exit(50);
}

static void alarmed(int signal) {
    (void)signal;
    alarms++;
}

static void sleeps(void) {
    struct timespec time = {0, 2000000};
    is(nanosleep(&time, NULL) == 0, 51);
}

static void waits(void) {
    static int word;
    struct timespec time = {0, 2000000};
    is(syscall(SYS_futex, &word, FUTEX_WAIT, 0, &time, 0, 0) == -1 && errno == ETIMEDOUT, 52);
}

static void polls(void) {
    static int queue;
    struct epoll_event event;
    if (queue == 0) is((queue = epoll_create1(0)) > 0, 53);
    int ready = epoll_wait(queue, &event, 1, 2);
#ifdef __aarch64__
    /* A call that begins just before a stop is not made again: see docs/kernel-support.md. */
    if (ready == -1 && errno == EINTR) return;
#endif
    is(ready == 0, 53);
}

static void pipes(void) {
    int ends[2];
    uint64_t sent = 0x1122334455667788, received = 0;
    is(pipe(ends) == 0 && write(ends[1], &sent, sizeof sent) == sizeof sent, 54);
    is(read(ends[0], &received, sizeof received) == sizeof received && received == sent, 54);
    is(close(ends[0]) == 0 && close(ends[1]) == 0, 54);
}

static void allocates(void) {
    unsigned char *block = malloc(3000);
    is(block != NULL, 55);
    memset(block, 0x5a, 3000);
    for (int i = 0; i < 3000; i++) is(block[i] == 0x5a, 55);
    free(block);
}

static void has_no_child(void) {
    int status;
    is(waitpid(-1, &status, __WALL) == -1 && errno == ECHILD, 56);
}

/* Each signal that it sends to itself arrives, once. */
static void signals(void) {
    static int sent;
    is(raise(SIGUSR1) == 0 && alarms == ++sent, 57);
}

static void (*const works[THREADS])(void) = {sleeps, waits, polls, pipes, allocates, has_no_child, signals};

static void *runs(void *number) {
    for (uintptr_t at = (uintptr_t)number;; rounds[at]++) works[at]();
    return NULL;
}

int main(void) {
    char line[64];
    struct sigaction alarm = {.sa_handler = alarmed, .sa_flags = SA_RESTART};
    is(sigaction(SIGUSR1, &alarm, NULL) == 0 && signal(SIGCHLD, child_ended) != SIG_ERR, 58);
    for (uintptr_t at = 0; at < THREADS; at++) {
        pthread_t thread;
        is(pthread_create(&thread, NULL, runs, (void *)at) == 0, 58);
    }
    for (int at = 0; at < THREADS; at++) while (rounds[at] == 0) usleep(1000);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strncmp(line, "exit", 4) == 0) _exit(atoi(line + 4));
        unsigned long before[THREADS];
        for (int at = 0; at < THREADS; at++) before[at] = rounds[at];
        for (int at = 0; at < THREADS; at++) while (rounds[at] < before[at] + 2) usleep(1000);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
