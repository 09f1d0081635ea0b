// Makes random calls of the malloc family, then prints its threads and blocks, and pauses. Usage:
// walked THREADS CALLS PLACES SIZE_MAX [ended|fork|brk|sbrk|split]
// `thread ADDRESS` for each that is alive (its thread pointer), `block ADDRESS SIZE` with the size from malloc_usable_size, `done`.
// Nothing but the calls themselves touches the heap: output uses write.
#define _GNU_SOURCE
#include "split.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static struct place { void *block; } *places[64];
static uintptr_t pointers[64];
static size_t threads, calls, count, size_max;
static int ended;
static pthread_barrier_t through;

static uint64_t drawn(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1du >> 16;
}

// Most are small, as in programs.
static size_t size_of(uint64_t *state) {
    size_t bits = drawn(state) % 21, most = (size_t)1 << bits;
    return drawn(state) % ((most < size_max ? most : size_max) + 1);
}

static void *renewed(uint64_t *state, void *old) {
    size_t size = size_of(state);
    switch (drawn(state) % 10) {
    case 0: case 1: case 2:
        free(old);
        return NULL;
    case 3: case 4: {
        void *moved = realloc(old, size + 1);
        if (!moved) abort();
        return moved;
    }
    case 5:
        free(old);
        return memalign((size_t)16 << drawn(state) % 10, size);
    case 6:
        free(old);
        return calloc(1, size);
    default:
        free(old);
        return malloc(size);
    }
}

static void work(size_t nth) {
    uint64_t state = 0x9e3779b97f4a7c15u * (nth + 1);
    for (size_t call = 0; call < calls; call++) {
        // Every fifth time a place of another thread.
        size_t owner = drawn(&state) % 5 ? nth : drawn(&state) % threads;
        void **place = &places[owner][drawn(&state) % count].block;
        void *block = renewed(&state, __atomic_exchange_n(place, NULL, __ATOMIC_ACQ_REL));
        if (block) memset(block, 0x5a, malloc_usable_size(block));
        free(__atomic_exchange_n(place, block, __ATOMIC_ACQ_REL));
    }
}

// Makes blocks that are aligned to up to 64 MiB, and changes what splits the mappings of all blocks that have one.
static void split(void) {
    size_t nth = 0;
    for (; nth < 10; nth++) {
        void **place = &places[0][nth].block;
        free(*place);
        *place = memalign(nth < 9 ? (size_t)4 << 20 << nth / 2 : 8192, (nth + 1) * 100000);
        if (!*place) abort();
    }
    for (size_t at = 0; at < count; at++) {
        char *block = places[0][at].block;
        // IS_MMAPPED of malloc/malloc.c.
        if (!block || !(((size_t *)block)[-1] & 2) || malloc_usable_size(block) < 4 * 4096) continue;
        split_mapping(block, nth++ % SPLITS);
    }
}

static void *thread(void *number) {
    pointers[(size_t)number] = (uintptr_t)__builtin_thread_pointer();
    work((size_t)number);
    pthread_barrier_wait(&through);
    if (ended) return NULL;
    for (;;) pause();
}

static char out[1 << 16];
static size_t filled;

static void flush(void) {
    for (size_t done = 0; done < filled;) {
        ssize_t written = write(1, out + done, filled - done);
        if (written < 0) _exit(2);
        done += written;
    }
    filled = 0;
}

static void say(const char *word, size_t numbers, const uint64_t *values) {
    if (filled + 100 > sizeof out) flush();
    filled += strlen(strcpy(out + filled, word));
    for (size_t nth = 0; nth < numbers; nth++) {
        out[filled++] = ' ';
        for (int shift = 60; shift >= 0; shift -= 4) out[filled++] = "0123456789abcdef"[values[nth] >> shift & 15];
    }
    out[filled++] = '\n';
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    threads = strtoul(argv[1], NULL, 10);
    calls = strtoul(argv[2], NULL, 10);
    count = strtoul(argv[3], NULL, 10);
    size_max = strtoul(argv[4], NULL, 10);
    const char *mode = argc > 5 ? argv[5] : "";
    ended = !strcmp(mode, "ended");
    int forks = !strcmp(mode, "fork");
    if (threads < 1 || threads > 64) return 2;
    for (size_t nth = 0; nth < threads; nth++) {
        places[nth] = mmap(NULL, count * sizeof *places[nth], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (places[nth] == MAP_FAILED) return 2;
    }
    if (!strcmp(mode, "brk")) {
        // The heap begins, and then its end cannot move any more.
        places[0][0].block = malloc(1000);
        uintptr_t end = (uintptr_t)sbrk(0);
        if (mmap((void *)end, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED) return 3;
    }
    if (!strcmp(mode, "sbrk")) {
        // Someone else takes of the heap's space, before and after the heap begins.
        sbrk(1000);
        places[0][0].block = malloc(1000);
        if ((intptr_t)sbrk(5000) == -1) return 3;
    }
    pthread_barrier_init(&through, NULL, threads);
    pthread_t others[64];
    pointers[0] = (uintptr_t)__builtin_thread_pointer();
    for (size_t nth = 1; nth < threads; nth++)
        if (pthread_create(&others[nth], NULL, thread, (void *)nth)) return 2;
    work(0);
    pthread_barrier_wait(&through);
    if (ended)
        for (size_t nth = 1; nth < threads; nth++) pthread_join(others[nth], NULL);
    if (!strcmp(mode, "split")) split();
    uint64_t pid = getpid();
    if (forks) {
        pid = fork();
        if (pid) for (;;) pause();
        // Ends with its parent, which the test ends.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pid = getpid();
    }
    say("pid", 1, &pid);
    for (size_t nth = 0; nth < (ended || forks ? 1 : threads); nth++) say("thread", 1, &(uint64_t){pointers[nth]});
    for (size_t nth = 0; nth < threads; nth++)
        for (size_t at = 0; at < count; at++) {
            void *block = places[nth][at].block;
            if (block) say("block", 2, (uint64_t[]){(uintptr_t)block, malloc_usable_size(block)});
        }
    say("done", 0, NULL);
    flush();
    for (;;) pause();
}
