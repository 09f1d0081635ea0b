/*
 * A block that is referenced from a root, leaked or freed on command: `hold ROOT`, `clear ROOT`, `free ROOT`, where ROOT is `stack`,
 * `global`, `tls` or `register`. `fill MIB` touches memory. `block` blocks SIGUSR1, `count` unblocks it and prints how often SIGUSR1 and
 * SIGRTMIN were delivered.
 */
#include "truth.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

enum { BYTES = 256 };

NOINLINE static void *for_stack(size_t size) { return malloc(size); }
NOINLINE static void *for_global(size_t size) { return malloc(size); }
NOINLINE static void *for_tls(size_t size) { return malloc(size); }
NOINLINE static void *for_register(size_t size) { return malloc(size); }

static const struct place {
    const char *name;
    void *(*make)(size_t);
} places[] = {{"stack", for_stack}, {"global", for_global}, {"tls", for_tls}, {"register", for_register}};

/* Of each place, so that what is lost can be freed. */
static masked blocks[4];

static void *volatile global;
static __thread void *volatile of_thread;
/* In the frame of `main`. */
static void *volatile *on_stack;

/* What the thread is to have in a register, and what it has: masked. */
static volatile masked wanted, taken;

static const struct timespec PAUSE = {0, 1000000};

/* The register has only whole values, and nothing else has them for longer than it takes to set it. */
static void *keeps_in_register(void *unused) {
    __asm__ volatile("1: mov %[wanted], %%rbx\n"
                     "mov %%rbx, %%rax\n xor %[mask], %%rax\n mov %%rax, %%r12\n mov %%rbx, %[taken]\n"
                     "mov %[pause], %%rdi\n xor %%esi, %%esi\n mov $35, %%eax\n syscall\n"
                     "jmp 1b" ::[wanted] "m"(wanted),
                     [taken] "m"(taken), [mask] "m"(mask), [pause] "r"(&PAUSE)
                     : "rax", "rbx", "rcx", "rdi", "rsi", "r11", "r12", "memory");
    return unused;
}

NOINLINE static void set_register(masked hidden) {
    wanted = hidden;
    while (taken != hidden) nanosleep(&PAUSE, NULL);
}

/* Has the place hold this, or nothing. */
NOINLINE static void set(size_t place, masked hidden) {
    if (place == 0) *on_stack = unmasked(hidden);
    if (place == 1) global = unmasked(hidden);
    if (place == 2) of_thread = unmasked(hidden);
    if (place == 3) set_register(hidden);
}

NOINLINE static void make(size_t place) {
    void *block = places[place].make(BYTES);
    if (block == NULL) give_up("no memory");
    memset(block, 0, BYTES);
    blocks[place] = (masked)block ^ mask;
}

NOINLINE static void drop(size_t place) { free(unmasked(blocks[place])); }

static volatile sig_atomic_t delivered, queued;

static void count_one(int signal) {
    if (signal == SIGUSR1) delivered++;
    else queued++;
}

static void fill(size_t mebibytes) {
    char *mapping = mmap(NULL, mebibytes << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) give_up("mmap");
    for (size_t at = 0; at < mebibytes << 20; at += 4096) mapping[at] = 1;
}

static void tell_counts(sigset_t *set) {
    static char line[64];
    sigprocmask(SIG_UNBLOCK, set, NULL);
    print(line, (size_t)snprintf(line, sizeof line, "%d %d\n", (int)delivered, (int)queued));
}

void work(const char *line) {
    static char what[16], where[16];
    static sigset_t set_of_one;
    size_t mebibytes = 0;
    sigemptyset(&set_of_one);
    sigaddset(&set_of_one, SIGUSR1);
    if (sscanf(line, "fill %zu", &mebibytes) == 1) return fill(mebibytes);
    if (strcmp(line, "block") == 0) return (void)sigprocmask(SIG_BLOCK, &set_of_one, NULL);
    if (strcmp(line, "count") == 0) return tell_counts(&set_of_one);
    if (sscanf(line, "%15s %15s", what, where) != 2) give_up("unknown line");
    size_t place = 0;
    while (place < 4 && strcmp(places[place].name, where) != 0) place++;
    if (place == 4) give_up("unknown place");
    if (strcmp(what, "hold") == 0) {
        make(place);
        set(place, blocks[place]);
    } else if (strcmp(what, "clear") == 0) {
        set(place, (masked)mask);
    } else if (strcmp(what, "free") == 0) {
        drop(place);
    } else {
        give_up("unknown order");
    }
}

int main(void) {
    void *volatile slot = NULL;
    pthread_t thread;
    on_stack = &slot;
    wanted = taken = (masked)mask;
    for (size_t place = 0; place < 4; place++) blocks[place] = (masked)mask;
    signal(SIGUSR1, count_one);
    signal(SIGRTMIN, count_one);
    if (pthread_create(&thread, NULL, keeps_in_register, NULL) != 0) give_up("pthread_create");
    serve();
    return slot != NULL;
}
