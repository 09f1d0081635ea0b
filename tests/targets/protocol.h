/*
 * Shared by all C targets: the protocol with the tests, and the ledger of the target's calls.
 *
 * A target prints `ready`, then answers each line of its input with one line of JSON: what it allocated and
 * freed for that line. `exit N` and the end of input end it. Output goes out by write(2) from a static buffer, so that
 * nothing but the work itself touches the heap.
 *
 * The ledger is kept beside the blocks and not by wrapping the allocator, so it shares nothing with what is tested.
 * It follows the profiler's rules: a block belongs to the function that allocated it, wherever it is freed; a
 * successful realloc frees the old block and allocates a new one; what was allocated for an earlier line, or before
 * `ready`, is freed without being counted.
 */
#ifndef PROTOCOL_H
#define PROTOCOL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* noipa: what a function returns must not be known to its caller, or the call could be moved or dropped. */
#define NOINLINE __attribute__((noinline, noclone, noipa, unused))

/* A function that allocates, and what it did. Lives in its own section, so that printing finds all of them. */
struct site {
    const char *function;
    long line;
    uint64_t alloc_count, alloc_bytes, free_count, free_bytes;
} __attribute__((aligned(64)));

/* A block and where it came from. `generation` is the input line it was allocated for. */
struct block {
    void *address;
    size_t size;
    struct site *site;
    long generation;
};

extern struct site __start_sites[], __stop_sites[];

static long generation;
static int64_t live_bytes, peak_bytes;

/* Does the work for one line of input. */
NOINLINE static void work(const char *line);

/* Where a target defines it: runs before `ready`. */
__attribute__((weak)) void prepare(void);

/*
 * Defines a function `name` that makes the one call `call` and returns the block. Everything is on one line of source,
 * so the call's line is the line of the macro.
 */
#define SITE(name, parameters, call, bytes)                                                                            \
    static struct site name##_site __attribute__((section("sites"), used)) = {#name, __LINE__, 0, 0, 0, 0};         \
    NOINLINE static struct block name parameters {                                                                     \
        void *address = call;                                                                                          \
        return allocated(&name##_site, address, bytes);                                                                \
    }

/* The same for a call that takes an old block: `old` must be a parameter. */
#define RESITE(name, parameters, call, bytes)                                                                          \
    static struct site name##_site __attribute__((section("sites"), used)) = {#name, __LINE__, 0, 0, 0, 0};         \
    NOINLINE static struct block name parameters {                                                                     \
        void *address = call;                                                                                          \
        return reallocated(&name##_site, old, address, bytes);                                                         \
    }

/* Ends the target when the machine does not behave as the test needs: then the test must not go on. */
__attribute__((format(printf, 1, 2), noreturn)) static void give_up(const char *format, ...) {
    static char text[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text - 1, format, arguments);
    va_end(arguments);
    text[length++] = '\n';
    if (write(2, text, (size_t)length) < 0) _exit(98);
    _exit(99);
}

static void count_live(int64_t bytes) {
    int64_t live = __atomic_add_fetch(&live_bytes, bytes, __ATOMIC_SEQ_CST);
    int64_t peak = __atomic_load_n(&peak_bytes, __ATOMIC_SEQ_CST);
    while (live > peak && !__atomic_compare_exchange_n(&peak_bytes, &peak, live, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}

/* Enters a block. A failed allocation gives an empty block and counts nothing. */
NOINLINE static struct block allocated(struct site *site, void *address, size_t bytes) {
    if (address == NULL) return (struct block){NULL, 0, NULL, 0};
    __atomic_add_fetch(&site->alloc_count, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&site->alloc_bytes, bytes, __ATOMIC_SEQ_CST);
    count_live((int64_t)bytes);
    return (struct block){address, bytes, site, generation};
}

/* Strikes a block off. */
NOINLINE static void released(struct block block) {
    if (block.address == NULL || block.generation != generation) return;
    __atomic_add_fetch(&block.site->free_count, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&block.site->free_bytes, block.size, __ATOMIC_SEQ_CST);
    count_live(-(int64_t)block.size);
}

/* Enters the outcome of a realloc. A failed one leaves the old block as it was. */
NOINLINE static struct block reallocated(struct site *site, struct block old, void *address, size_t bytes) {
    if (address == NULL) return old;
    released(old);
    return allocated(site, address, bytes);
}

NOINLINE static void release(struct block block) {
    released(block);
    free(block.address);
}

__attribute__((format(printf, 1, 2))) static void answer(const char *format, ...) {
    static char text[64 << 10];
    static size_t used;
    va_list arguments;
    va_start(arguments, format);
    used += (size_t)vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
    if (used >= sizeof text) give_up("the ledger does not fit");
    if (text[used - 1] != '\n') return;
    for (size_t at = 0; at < used;) {
        ssize_t written = write(1, text + at, used - at);
        if (written <= 0) _exit(97);
        at += (size_t)written;
    }
    used = 0;
}

static void answer_with_ledger(void) {
    answer("{\"peak_bytes\":%lld,\"sites\":[", (long long)peak_bytes);
    for (struct site *site = __start_sites; site < __stop_sites; site++)
        answer("%s{\"function\":\"%s\",\"line\":%ld,\"alloc_count\":%llu,\"alloc_bytes\":%llu,\"free_count\":%llu,"
               "\"free_bytes\":%llu,\"live_count\":%llu,\"live_bytes\":%llu}",
               site == __start_sites ? "" : ",", site->function, site->line, (unsigned long long)site->alloc_count,
               (unsigned long long)site->alloc_bytes, (unsigned long long)site->free_count,
               (unsigned long long)site->free_bytes, (unsigned long long)(site->alloc_count - site->free_count),
               (unsigned long long)(site->alloc_bytes - site->free_bytes));
    answer("]}\n");
}

static void begin_ledger(void) {
    generation++;
    live_bytes = peak_bytes = 0;
    for (struct site *site = __start_sites; site < __stop_sites; site++)
        site->alloc_count = site->alloc_bytes = site->free_count = site->free_bytes = 0;
}

/* Reads one line without stdio. Returns 0 at the end of input. */
static int read_line(char *line, size_t size) {
    size_t used = 0;
    while (used + 1 < size) {
        if (read(0, line + used, 1) != 1) return 0;
        if (line[used] == '\n') break;
        used++;
    }
    line[used] = 0;
    return 1;
}

int main(void) {
    static char line[256];
    if (prepare) prepare();
    answer("ready\n");
    while (read_line(line, sizeof line)) {
        if (strncmp(line, "exit", 4) == 0) exit(atoi(line + 4));
        begin_ledger();
        work(line);
        answer_with_ledger();
    }
    return 0;
}

#endif
