/*
 * Coroutines of one thread that allocate from a pool, whose functions yield: their returns are on other stacks than the last
 * calls. Prints what it has counted.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#define NOINLINE __attribute__((noinline, noclone))

enum { COROUTINES = 4, BLOCKS = 500, KEPT_OF = 5, STACK_BYTES = 64 << 10 };

static ucontext_t scheduler, coroutines[COROUTINES];
static char stacks[COROUTINES][STACK_BYTES];
static int current, finished;

static void yields(void) {
    int mine = current;
    if (swapcontext(&coroutines[mine], &scheduler) != 0) abort();
}

NOINLINE void pool_report(size_t size, void *block) {
    yields();
    __asm__ volatile("" ::"r"(size), "r"(block) : "memory");
}

NOINLINE void *pool_alloc(size_t size) {
    void *block = malloc(size);
    pool_report(size, block);
    __asm__ volatile("" ::: "memory");
    return block;
}

NOINLINE void pool_free(void *block) {
    yields();
    free(block);
    __asm__ volatile("" ::: "memory");
}

static void works(void) {
    for (int i = 0; i < BLOCKS; i++) {
        void *block = pool_alloc(100);
        if (block == NULL) abort();
        if (i % KEPT_OF != 0) pool_free(block);
    }
    finished++;
    for (;;) yields();
}

/* A function of its own, because `getcontext` can return twice. */
NOINLINE static void prepare(ucontext_t *coroutine, char *stack) {
    if (getcontext(coroutine) != 0) abort();
    coroutine->uc_stack.ss_sp = stack;
    coroutine->uc_stack.ss_size = STACK_BYTES;
    makecontext(coroutine, works, 0);
}

int main(void) {
    for (int i = 0; i < COROUTINES; i++) prepare(&coroutines[i], stacks[i]);
    while (finished < COROUTINES) {
        current = (current + 1) % COROUTINES;
        if (swapcontext(&scheduler, &coroutines[current]) != 0) abort();
    }
    printf("done %d\n", finished);
    return 0;
}
