/*
 * Threads that wait in system calls on stacks of several kinds. Its argument is where the first thread waits:
 * `main` on its own stack, `deep` on its own stack, which was far deeper before, `coroutine` on a stack in an array, `local` on one
 * within a frame of its own stack, `alternate` in a signal handler on an alternate stack. With `exited`, it has exited, and another
 * thread answers. Other threads wait on stacks within arrays. Whatever is below and above these stacks belongs to others.
 *
 * `check` answers `done` if that memory is unchanged. `work N` makes N pairs of calls before. All output is by write(2).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define OTHERS 16384
#define STACK 16384

struct area {
    unsigned char below[OTHERS];
    unsigned char stack[STACK];
    unsigned char above[OTHERS];
} __attribute__((aligned(64)));

static struct area in_data;
static struct area *areas[8];
static unsigned count;
static const char *way;
static int never[2];
static int handles;

static void die(int code) { _exit(code); }

static struct area *prepare(struct area *area) {
    memset(area->below, 0x5a, OTHERS);
    memset(area->above, 0xa5, OTHERS);
    areas[__atomic_fetch_add(&count, 1, __ATOMIC_SEQ_CST)] = area;
    return area;
}

static void check(void) {
    for (unsigned at = 0; at < count; at++) {
        for (unsigned byte = 0; byte < OTHERS; byte++) {
            if (areas[at]->below[byte] != 0x5a) die(40 + at);
            if (areas[at]->above[byte] != 0xa5) die(50 + at);
        }
    }
}

__attribute__((noinline)) static void allocates(long pairs) {
    for (long pair = 0; pair < pairs; pair++) {
        volatile char *block = malloc(64);
        *block = 1;
        free((void *)block);
    }
}

/* Leaves so little of its stack that a signal frame does not fit below. */
static void serve(void) {
    /* On an alternate stack, the signal's own frame is above. */
    volatile unsigned char fills[STACK - (handles ? 9216 : 4096)];
    char line[64];
    memset((void *)fills, 1, sizeof fills);
    for (;;) {
        ssize_t length = read(0, line, sizeof line - 1);
        if (length <= 0) die(0);
        line[length] = 0;
        if (!strncmp(line, "work ", 5)) allocates(atol(line + 5));
        else if (!strncmp(line, "exit ", 5)) die(atoi(line + 5));
        check();
        if (write(1, "done\n", 5) != 5) die(1);
    }
}

static void waits(void) {
    volatile unsigned char fills[STACK - 4096];
    char byte;
    memset((void *)fills, 1, sizeof fills);
    (void)!read(never[0], &byte, 1);
}

static void on(struct area *area, void (*body)(void)) {
    ucontext_t here, there;
    getcontext(&there);
    there.uc_stack.ss_sp = area->stack;
    there.uc_stack.ss_size = STACK;
    there.uc_link = &here;
    makecontext(&there, body, 0);
    swapcontext(&here, &there);
}

static void *thread(void *area) {
    on(area, waits);
    return 0;
}

static void handle(int number) { (void)number; serve(); }

static void handle_on(struct area *area) {
    stack_t stack = { .ss_sp = area->stack, .ss_size = STACK };
    struct sigaction action = { .sa_handler = handle, .sa_flags = SA_ONSTACK };
    handles = 1;
    sigaltstack(&stack, 0);
    sigaction(SIGUSR1, &action, 0);
    raise(SIGUSR1);
}

static void *serves(void *none) {
    (void)none;
    struct area *area = prepare(mmap(0, sizeof *area, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    on(area, serve);
    return 0;
}

__attribute__((noinline)) static int deepens(int left) {
    volatile char frame[4096];
    memset((void *)frame, left, sizeof frame);
    return left == 0 ? 0 : deepens(left - 1) + frame[left];
}

int main(int arguments, char **argument) {
    way = arguments > 1 ? argument[1] : "main";
    pthread_t other;
    if (pipe(never)) return 1;
    allocates(10);
    for (int at = 0; at < 3; at++) pthread_create(&other, 0, thread, prepare(malloc(sizeof(struct area))));
    usleep(100000);
    if (!strcmp(way, "exited")) pthread_create(&other, 0, serves, 0);
    if (write(1, "ready\n", 6) != 6) return 1;
    if (!strcmp(way, "exited")) pthread_exit(0);
    if (!strcmp(way, "deep")) deepens(200);
    if (!strcmp(way, "coroutine")) on(prepare(&in_data), serve);
    if (!strcmp(way, "alternate")) handle_on(prepare(malloc(sizeof(struct area))));
    if (!strcmp(way, "local")) {
        struct area local;
        handle_on(prepare(&local));
    }
    serve();
}
