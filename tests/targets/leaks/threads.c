/*
 * Blocks that threads hold, in each place that a thread has for them, and blocks that threads which have ended held.
 */
#include "truth.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#ifdef __GLIBC__
#include <ucontext.h>
#endif

MAKER(in_blocked_register, 5001, "held", malloc(size))
MAKER(in_spinning_register, 5002, "held", malloc(size))
MAKER(in_vector_register, 5018, "held", malloc(size))
MAKER(in_thread_stack, 5003, "held", malloc(size))
MAKER(in_thread_tls, 5004, "held", malloc(size))
MAKER(in_thread_key, 5005, "held", malloc(size))
MAKER(in_alternate_stack, 5006, "held", malloc(size))
MAKER(in_interrupted_stack, 5007, "held", malloc(size))
MAKER(alternate_stack_block, 65536, "held", malloc(size))
MAKER(in_alternate_block, 5008, "held", malloc(size))
MAKER(in_coroutine, 5009, "held", malloc(size))
MAKER(coroutine_block, 65544, "held", malloc(size))
MAKER(in_coroutine_block, 5010, "held", malloc(size))
MAKER(lost_coroutine, 65560, "leaked", malloc(size))
MAKER(in_lost_coroutine, 5016, "under", malloc(size))
MAKER(by_ended_thread, 5011, "leaked", malloc(size))
MAKER(by_ended_thread_top, 5017, "leaked", malloc(size))
MAKER(below_the_stack, 5012, "leaked", malloc(size))
MAKER(of_ended_thread_key, 5013, "leaked", malloc(size))
MAKER(of_arena, 5014, "leaked", malloc(size))
MAKER(of_arena_held, 5015, "held", malloc(size))
MAKER(of_detached_result, 5019, "leaked", malloc(size))
MAKER(of_detached_argument, 5020, "leaked", malloc(size))
MAKER(of_unjoined_result, 5021, "held", malloc(size))

/* Threads that are where they stay. */
static int arrived;

NOINLINE static void stay(void) {
    sweep();
    __atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST);
    for (;;) syscall(SYS_pause);
}

NOINLINE static pthread_t start(void *(*body)(void *)) {
    pthread_t thread;
    sweep();
    if (pthread_create(&thread, NULL, body, NULL) != 0) give_up("pthread_create");
    return thread;
}

/* Starts a thread and waits until it is where it stays. */
NOINLINE static void settle(void *(*body)(void *)) {
    int before = __atomic_load_n(&arrived, __ATOMIC_SEQ_CST);
    start(body);
    while (__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) == before) sched_yield();
}

/* From the mask's removal on only the register has it. */
static void *blocks_with_register(void *unused) {
    masked hidden = in_blocked_register();
    sweep();
    __asm__ volatile("mov %0, %%r12\n xor %1, %%r12\n lock incl %2\n"
                     "1: mov %3, %%eax\n syscall\n jmp 1b" ::"r"(hidden), "r"(mask), "m"(arrived), "i"(SYS_pause)
                     : "r12", "rax", "rcx", "r11", "memory");
    return unused;
}

static void *spins_with_register(void *unused) {
    masked hidden = in_spinning_register();
    sweep();
    __asm__ volatile("mov %0, %%r9\n xor %1, %%r9\n lock incl %2\n"
                     "1: pause\n jmp 1b" ::"r"(hidden), "r"(mask), "m"(arrived)
                     : "r9", "memory");
    return unused;
}

/* Two pointers' worth: this is the upper one. */
static void *stays_with_vector(void *unused) {
    masked hidden = in_vector_register();
    sweep();
    __asm__ volatile("mov %0, %%rax\n xor %1, %%rax\n movq %%rax, %%xmm9\n pslldq $8, %%xmm9\n xor %%eax, %%eax\n lock incl %2\n"
                     "1: mov %3, %%eax\n syscall\n jmp 1b" ::"r"(hidden), "r"(mask), "m"(arrived), "i"(SYS_pause)
                     : "rax", "rcx", "r11", "xmm9", "memory");
    return unused;
}

static void *stays_with_stack(void *unused) {
    void *volatile slot;
    put((void *)&slot, in_thread_stack());
    stay();
    (void)slot;
    return unused;
}

static __thread uintptr_t of_thread;

static void *stays_with_tls(void *unused) {
    put(&of_thread, in_thread_tls());
    stay();
    return unused;
}

static pthread_key_t key, ended_key;

NOINLINE static void set_key(pthread_key_t which, masked hidden) { pthread_setspecific(which, unmasked(hidden)); }

static void *stays_with_key(void *unused) {
    set_key(key, in_thread_key());
    stay();
    return unused;
}

/* In handlers the thread stays for good, so that its own stack is interrupted for good. */
static void handles_holding(int signal) {
    void *volatile slot;
    (void)signal;
    put((void *)&slot, in_alternate_stack());
    stay();
    (void)slot;
}

static void handles_over_block(int signal) {
    void *volatile slot;
    (void)signal;
    put((void *)&slot, in_alternate_block());
    stay();
    (void)slot;
}

static void take_on(void *alternate, void (*handler)(int), int number) {
    stack_t stack = {.ss_sp = alternate, .ss_size = 65536};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, NULL) != 0 || sigaction(number, &action, NULL) != 0) give_up("sigaltstack");
}

static void *stays_in_handler(void *unused) {
    void *volatile slot;
    void *stack = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    put((void *)&slot, in_interrupted_stack());
    take_on(stack, handles_holding, SIGUSR2);
    sweep();
    raise(SIGUSR2);
    (void)slot;
    return unused;
}

/* The stack is a block, which only the stack pointer and the kernel know. */
NOINLINE static void use_block_as_stack(void) { take_on(unmasked(alternate_stack_block()), handles_over_block, SIGWINCH); }

static void *stays_in_handler_over_block(void *unused) {
    use_block_as_stack();
    sweep();
    raise(SIGWINCH);
    return unused;
}

#ifdef __GLIBC__
static ucontext_t back, contexts[3];

#define YIELDING(maker)                                                                                                \
    NOINLINE static void yields_##maker(void) {                                                                        \
        void *volatile slot;                                                                                           \
        put((void *)&slot, maker());                                                                                   \
        swapcontext(&contexts[0], &back);                                                                              \
        (void)slot;                                                                                                    \
    }
YIELDING(in_coroutine)
YIELDING(in_coroutine_block)
YIELDING(in_lost_coroutine)

static void run_on(void *stack, size_t size, void (*body)(void)) {
    getcontext(&contexts[1]);
    contexts[1].uc_stack.ss_sp = stack;
    contexts[1].uc_stack.ss_size = size;
    makecontext(&contexts[1], body, 0);
    swapcontext(&back, &contexts[1]);
    memset(contexts, 0, sizeof contexts);
    memset(&back, 0, sizeof back);
}

static uintptr_t held_coroutine;

NOINLINE static void suspend_coroutines(void) {
    void *stack = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    run_on(stack, 65536, yields_in_coroutine);
    masked block = coroutine_block();
    put(&held_coroutine, block);
    run_on(unmasked(block), 65536, yields_in_coroutine_block);
    run_on(unmasked(lost_coroutine()), 65536, yields_in_lost_coroutine);
}
#endif

/* Far down the stack, as that of a thread with much to do. */
NOINLINE static void hold_far_down(void) {
    volatile char room[64 << 10];
    void *volatile slot;
    room[0] = 0;
    put((void *)&slot, by_ended_thread());
    (void)slot;
    (void)room[0];
}

static void *ends(void *unused) {
    void *volatile slot;
    put((void *)&slot, by_ended_thread_top());
    hold_far_down();
    (void)slot;
    set_key(ended_key, of_ended_thread_key());
    return unused;
}

/* Threads that nobody joins. What they return is there for nobody, if they are detached. */
static int returning;

static void *returns_detached(void *unused) {
    (void)unused;
    __atomic_store_n(&returning, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    return unmasked(of_detached_result());
}

static void *returns_unjoined(void *unused) {
    (void)unused;
    __atomic_store_n(&returning, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    return unmasked(of_unjoined_result());
}

/* Other threads do not get their small stacks. */
NOINLINE static void start_small(int state, void *(*body)(void *), masked hidden) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, state);
    pthread_attr_setstacksize(&attributes, 65536);
    returning = 0;
    if (pthread_create(&thread, &attributes, body, hidden ? unmasked(hidden) : NULL) != 0) give_up("pthread_create");
}

NOINLINE static void let_return(int state, void *(*body)(void *), masked hidden) {
    start_small(state, body, hidden);
    sweep();
    int thread;
    while (!(thread = __atomic_load_n(&returning, __ATOMIC_SEQ_CST))) sched_yield();
    while (syscall(SYS_tgkill, getpid(), thread, 0) == 0) sched_yield();
}

/* A frame that was left, more than the red zone below the stack's end. */
NOINLINE static void leave_frame(void) {
    volatile char room[2048];
    void *volatile slot;
    room[0] = 0;
    put((void *)&slot, below_the_stack());
    (void)slot;
    (void)room[0];
}

static void *stays_above_dead_frame(void *unused) {
    __asm__ volatile("" ::: "memory");
    leave_frame();
    __atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST);
    /* No call, whose frame could lie over it. */
    __asm__ volatile("pxor %%xmm0, %%xmm0\n pxor %%xmm1, %%xmm1\n pxor %%xmm2, %%xmm2\n pxor %%xmm3, %%xmm3\n"
                     "xor %%ebx, %%ebx\n xor %%r12d, %%r12d\n xor %%r13d, %%r13d\n xor %%r14d, %%r14d\n xor %%r15d, %%r15d\n"
                     "xor %%esi, %%esi\n xor %%edi, %%edi\n xor %%edx, %%edx\n xor %%r8d, %%r8d\n xor %%r9d, %%r9d\n"
                     "xor %%r10d, %%r10d\n 1: mov %0, %%eax\n syscall\n jmp 1b" ::"i"(SYS_pause)
                     : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
                       "xmm0", "xmm1", "xmm2", "xmm3");
    return unused;
}

/* Threads that allocate at once have arenas of their own. */
static pthread_barrier_t together;
static uintptr_t of_arenas[8];

static void *allocates(void *unused) {
    static int number;
    pthread_barrier_wait(&together);
    of_arena();
    put(&of_arenas[__atomic_fetch_add(&number, 1, __ATOMIC_SEQ_CST)], of_arena_held());
    stay();
    return unused;
}

NOINLINE static void fill_arenas(void) {
    int before = __atomic_load_n(&arrived, __ATOMIC_SEQ_CST);
    pthread_barrier_init(&together, NULL, 8);
    for (int i = 0; i < 8; i++) start(allocates);
    while (__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) < before + 8) sched_yield();
}

int main(void) {
    pthread_key_create(&key, NULL);
    pthread_key_create(&ended_key, NULL);
    fill_arenas();
    settle(blocks_with_register);
    settle(spins_with_register);
    settle(stays_with_vector);
    settle(stays_with_stack);
    settle(stays_with_tls);
    settle(stays_with_key);
    settle(stays_in_handler);
    settle(stays_in_handler_over_block);
    settle(stays_above_dead_frame);
#ifdef __GLIBC__
    suspend_coroutines();
#endif
    let_return(PTHREAD_CREATE_JOINABLE, returns_unjoined, 0);
    let_return(PTHREAD_CREATE_DETACHED, returns_detached, of_detached_argument());
    pthread_join(start(ends), NULL);
    serve();
    return 0;
}
