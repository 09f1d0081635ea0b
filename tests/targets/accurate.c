/*
 * Makes heapprofd's five calls: 10 bytes that are freed, twice 15 bytes, of which one is freed. So 40 bytes are allocated, 25
 * freed, 15 live, and at most 30 at once, in two blocks.
 *
 * `run HEAP SCALE HOW`: from `malloc`, or `first` or `second`, two allocators of its own with memory that no other allocator
 * knows; with sizes that many times as large; `plain`, with a `vfork` and exec in the middle, or wholly on a thread that does so
 * (`vfork-thread`). The vfork child also allocates, in this process's memory: that is nobody's.
 *
 * `misuse` frees what it has freed already, what never was a block, and the middle of one, of the first allocator; `repeat` has
 * that give out the same address twice.
 */
#include "protocol.h"

#include <pthread.h>
#include <sys/wait.h>

#define HEAP(name)                                                                  \
    static char name##_memory[64 << 20];                                            \
    static size_t name##_used;                                                      \
    NOINLINE static void *name##_get(size_t size) {                                 \
        char *piece = name##_memory + name##_used;                                  \
        name##_used += (size + 15) & ~(size_t)15;                                   \
        if (name##_used > sizeof name##_memory) give_up("no memory for %zu", size); \
        return piece;                                                               \
    }                                                                               \
    NOINLINE static void name##_put(void *piece) {                                  \
        (void)piece;                                                                \
    }

HEAP(first)
HEAP(second)

SITE(mallocs, (size_t n), malloc(n), n)
SITE(firsts, (size_t n), first_get(n), n)
SITE(seconds, (size_t n), second_get(n), n)

static const struct heap {
    const char *name;
    struct block (*allocate)(size_t);
    void *(*get)(size_t);
    void (*put)(void *);
} heaps[] = {
    {"malloc", mallocs, malloc, free},
    {"first", firsts, first_get, first_put},
    {"second", seconds, second_get, second_put},
};

static struct {
    const struct heap *heap;
    size_t scale;
    int forks;
} task;

/* The ledger is the parent's, too, so the child must not write into it. */
NOINLINE static void vforked(void) {
    task.heap->put(task.heap->get(77));
    task.heap->get(78);
}

static void forks_in_the_middle(void) {
    pid_t child = vfork();
    if (child < 0) give_up("vfork");
    if (child == 0) {
        vforked();
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) give_up("true: %d", status);
}

static void put(struct block block) {
    released(block);
    task.heap->put(block.address);
}

static void *run(void *argument) {
    put(task.heap->allocate(10 * task.scale));
    struct block freed = task.heap->allocate(15 * task.scale);
    if (task.forks) forks_in_the_middle();
    task.heap->allocate(15 * task.scale);
    put(freed);
    return argument;
}

/* 10 and 15 bytes are allocated, 10 freed. */
NOINLINE static void misuses(void) {
    char *freed = first_get(10), *kept = first_get(15);
    first_put(freed);
    first_put(freed);
    first_put(&task);
    first_put(kept + 1);
    first_put(NULL);
}

/* Twice in one place: of 10 and 15 bytes the latter live. */
NOINLINE static void repeats(void) {
    void *once = first_get(10);
    first_used -= 16;
    if (first_get(15) != once) give_up("another address");
}

static void work(const char *line) {
    if (strcmp(line, "misuse") == 0) return misuses();
    if (strcmp(line, "repeat") == 0) return repeats();
    static char heap[16], how[16];
    if (sscanf(line, "run %15s %zu %15s", heap, &task.scale, how) != 3) give_up("unknown: %s", line);
    task.heap = NULL;
    for (size_t i = 0; i < sizeof heaps / sizeof *heaps; i++)
        if (strcmp(heaps[i].name, heap) == 0) task.heap = &heaps[i];
    if (task.heap == NULL) give_up("no heap `%s`", heap);
    task.forks = strcmp(how, "plain") != 0;
    if (strcmp(how, "vfork-thread") != 0) {
        run(NULL);
        return;
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, NULL)) give_up("thread");
    pthread_join(thread, NULL);
}
