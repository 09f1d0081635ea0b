/*
 * Shared by programs with known leaks: each block is allocated by a function of its own, noted with its fate, and known to the rest of
 * the program by a masked address.
 *
 * A program allocates all its blocks, prints `ready`, and then runs commands from its input: `truth` prints a line for each block and
 * `done`; `exit N` and the end of input end it, the latter with the lines of `truth`. Such a line is
 * `FUNCTION ADDRESS SIZE USABLE FATE`, with the address in hexadecimal digits and one of these fates:
 *
 *   held     reachable
 *   leaked   unreachable
 *   circle   unreachable, in a reference cycle of the blocks whose functions have the same name up to the last `_`
 *   under    referenced by a leaked block only
 *
 * These are the fates by the rules of the profiler. Blocks that are reachable by the rules of C only are cases of their own.
 *
 * No stray copy of a pointer may remain. So functions return masked addresses, masks are removed in separate functions, and dead parts
 * of the stack are overwritten before the program waits.
 */
#ifndef TRUTH_H
#define TRUTH_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <malloc.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* noipa: what a function returns must not be known to its caller, or the call could be moved or dropped. */
#define NOINLINE __attribute__((noinline, noclone, noipa, unused))

/* A pointer that is not recognizable as one. */
typedef uintptr_t masked;

/* Read anew each time, so that the compiler does not know that a mask that is put on and taken off changes nothing. */
static volatile uintptr_t mask = 0xa5a5a5a5a5a5a5a5;

static char truth[4 << 20];
static size_t truth_bytes;

NOINLINE static void *unmasked(masked hidden) { return (void *)(hidden ^ mask); }

/* Ends the program when the machine does not behave as the test needs: then the test must not go on. */
__attribute__((noreturn, unused)) static void give_up(const char *why) {
    if (write(2, why, strlen(why)) < 0) _exit(98);
    _exit(99);
}

/* What was on the stack below the caller's frame, and in registers, is gone. */
NOINLINE static void sweep(void) {
    volatile uint64_t dead[(32 << 10) / 8];
    for (size_t i = 0; i < sizeof dead / 8; i++) dead[i] = 0;
#if defined(__aarch64__)
    /* x18 belongs to the platform. */
    __asm__ volatile("mov x0, #0\n mov x1, #0\n mov x2, #0\n mov x3, #0\n mov x4, #0\n mov x5, #0\n mov x6, #0\n"
                     "mov x7, #0\n mov x8, #0\n mov x9, #0\n mov x10, #0\n mov x11, #0\n mov x12, #0\n mov x13, #0\n"
                     "mov x14, #0\n mov x15, #0\n mov x16, #0\n mov x17, #0" ::
                         : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14",
                           "x15", "x16", "x17");
    /* The C library moves pointers by two. Callees preserve the lower halves of v8 to v15. */
    __asm__ volatile("movi v0.2d, #0\n movi v1.2d, #0\n movi v2.2d, #0\n movi v3.2d, #0\n movi v4.2d, #0\n"
                     "movi v5.2d, #0\n movi v6.2d, #0\n movi v7.2d, #0\n movi v16.2d, #0\n movi v17.2d, #0\n"
                     "movi v18.2d, #0\n movi v19.2d, #0\n movi v20.2d, #0\n movi v21.2d, #0\n movi v22.2d, #0\n"
                     "movi v23.2d, #0\n movi v24.2d, #0\n movi v25.2d, #0\n movi v26.2d, #0\n movi v27.2d, #0\n"
                     "movi v28.2d, #0\n movi v29.2d, #0\n movi v30.2d, #0\n movi v31.2d, #0" ::
                         : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21", "v22",
                           "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#else
    __asm__ volatile("xor %%eax, %%eax\n xor %%ecx, %%ecx\n xor %%edx, %%edx\n xor %%esi, %%esi\n xor %%edi, %%edi\n"
                     "xor %%r8d, %%r8d\n xor %%r9d, %%r9d\n xor %%r10d, %%r10d\n xor %%r11d, %%r11d" ::
                         : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc");
    /* The C library moves pointers by two. */
    __asm__ volatile("pxor %%xmm0, %%xmm0\n pxor %%xmm1, %%xmm1\n pxor %%xmm2, %%xmm2\n pxor %%xmm3, %%xmm3\n"
                     "pxor %%xmm4, %%xmm4\n pxor %%xmm5, %%xmm5\n pxor %%xmm6, %%xmm6\n pxor %%xmm7, %%xmm7\n"
                     "pxor %%xmm8, %%xmm8\n pxor %%xmm9, %%xmm9\n pxor %%xmm10, %%xmm10\n pxor %%xmm11, %%xmm11\n"
                     "pxor %%xmm12, %%xmm12\n pxor %%xmm13, %%xmm13\n pxor %%xmm14, %%xmm14\n pxor %%xmm15, %%xmm15" ::
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                           "xmm12", "xmm13", "xmm14", "xmm15");
#endif
}

/* Notes a block and hides it. Threads do so one after the other. */
NOINLINE static masked noted(const char *function, void *address, size_t size, const char *fate) {
    static char lock;
    if (address == NULL) give_up("no memory");
    size_t usable = malloc_usable_size(address);
    while (__atomic_test_and_set(&lock, __ATOMIC_SEQ_CST)) {}
    int length = snprintf(truth + truth_bytes, sizeof truth - truth_bytes, "%s %lx %zu %zu %s\n", function,
                          (unsigned long)address, size, usable, fate);
    truth_bytes += (size_t)length;
    if (truth_bytes >= sizeof truth) give_up("the truth does not fit");
    __atomic_clear(&lock, __ATOMIC_SEQ_CST);
    return (masked)address ^ mask;
}

/* The same for a block that is the program's own from its first byte to its last: what was there before is overwritten. */
NOINLINE static masked made(const char *function, void *address, size_t size, const char *fate) {
    if (address != NULL) memset(address, 0, malloc_usable_size(address));
    return noted(function, address, size, fate);
}

/* Defines a function that makes a block of `size` bytes by this call, and hides it. */
#define MAKER(name, bytes, fate, call)                                                                                 \
    NOINLINE static masked name(void) {                                                                                \
        volatile size_t wanted = bytes;                                                                                \
        size_t size = wanted;                                                                                          \
        return made(#name, call, size, fate);                                                                          \
    }

/* Has memory at an address hold a pointer to so many bytes behind a block's beginning. */
NOINLINE static void point(void *where, masked hidden, ptrdiff_t offset) {
    *(char *volatile *)where = (char *)unmasked(hidden) + offset;
}

/* Has memory at an address hold a block. */
NOINLINE static void put(void *where, masked hidden) { point(where, hidden, 0); }

/* Has a block hold another one by its word at `offset`. */
NOINLINE static void hang(masked holder, size_t offset, masked held) { put((char *)unmasked(holder) + offset, held); }

static void print(const char *text, size_t length) {
    while (length > 0) {
        ssize_t written = write(1, text, length);
        if (written <= 0) _exit(97);
        text += written;
        length -= (size_t)written;
    }
}

/* Reads one line without stdio. Returns 0 at the end of input. */
NOINLINE static int read_line(char *line, size_t size) {
    size_t used = 0;
    sweep();
    while (used + 1 < size) {
        if (read(0, line + used, 1) != 1) return 0;
        if (line[used] == '\n') break;
        used++;
    }
    line[used] = 0;
    return 1;
}

/* Optional: runs any other command. */
__attribute__((weak)) void work(const char *line);

/* Runs commands until the end of input. */
NOINLINE static void serve(void) {
    static char line[256];
    sweep();
    print("ready\n", 6);
    while (read_line(line, sizeof line)) {
        if (strncmp(line, "exit", 4) == 0) {
            int code = atoi(line + 4);
            sweep();
            exit(code);
        }
        if (strcmp(line, "truth") == 0) {
            print(truth, truth_bytes);
        } else if (work) {
            work(line);
        } else {
            give_up("unknown line");
        }
        sweep();
        print("done\n", 5);
    }
    print(truth, truth_bytes);
    sweep();
}

#endif
