/*
 * Coroutines on small stacks of their own (ucontext), and jumps over frames that have allocated (longjmp). Each stack is filled
 * with a pattern, which must be intact below what its coroutine uses.
 */
#include "attacked.h"

#include <setjmp.h>
#include <ucontext.h>

#define COROUTINES 16
#define STACK_BYTES (16 << 10)
#define STEPS 20

static ucontext_t caller, contexts[COROUTINES];
static unsigned char stacks[COROUTINES][STACK_BYTES];
static uint64_t sums[COROUTINES];
static jmp_buf back;

static void coroutine(int number) {
    for (;;) {
        unsigned char *block = malloc((size_t)number * 40 + 10);
        memset(block, number, (size_t)number * 40 + 10);
        swapcontext(&contexts[number], &caller);
        block = realloc(block, (size_t)number * 100 + 50);
        sums[number] = mix_bytes(sums[number], block, (size_t)number * 40 + 10);
        free(block);
        swapcontext(&contexts[number], &caller);
    }
}

static void prepare(int count, char **arguments) {
    (void)count, (void)arguments;
    for (int i = 0; i < COROUTINES; i++) {
        memset(stacks[i], i + 1, STACK_BYTES);
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = STACK_BYTES;
        makecontext(&contexts[i], (void (*)(void))coroutine, 1, i);
    }
}

static void jump_back(void) { longjmp(back, 5); }

static void (*volatile jumps)(void) = jump_back;

FUNCTION void descend(int depth, void **blocks) {
    blocks[depth] = malloc((size_t)depth * 30 + 1);
    if (depth) descend(depth - 1, blocks);
    jumps();
}

static uint64_t jump(void) {
    void *blocks[STEPS] = {0};
    volatile int value = setjmp(back);
    if (!value) descend(STEPS - 1, blocks);
    for (int i = 0; i < STEPS; i++) free(blocks[i]);
    return (uint64_t)value;
}

static uint64_t do_round(void) {
    uint64_t sum = 0;
    memset(sums, 0, sizeof sums);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < COROUTINES; i++) swapcontext(&caller, &contexts[i]);
        sum = mix(sum, jump());
    }
    for (int i = 0; i < COROUTINES; i++)
        for (int at = 0; at < STACK_BYTES / 2; at++) sum = mix(sum, stacks[i][at]);
    return mix_bytes(sum, sums, sizeof sums);
}
