/*
 * Shared by the programs of `cargo xtask faults --engine inline`: a program repeats a round of work whose result is always the
 * same, while heapbpf attaches to it and detaches from it.
 *
 * It prints `ready`, then does rounds. Each line of input comes after a round: `idle` has all threads wait until the next line
 * (the program prints `idle`), `go` continues, and `stop`, or the end of input, ends it. Then it prints `result R wrong W rounds N`:
 * the result of the first round, and the number of rounds with another one.
 */
#ifndef ATTACKED_H
#define ATTACKED_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __cplusplus
#define FUNCTION static __attribute__((noinline, unused))
#else
#define FUNCTION static __attribute__((noinline, noclone, noipa, unused))
#endif

/* Does one round of work and returns its result. `print` may be called first, to report why it does not run here. */
static uint64_t do_round(void);
/* Runs before `ready`. */
static void prepare(int count, char **arguments);

/* Writes without the C library's buffers, whose blocks would be the program's. */
__attribute__((format(printf, 1, 2), unused)) static void print(const char *format, ...) {
    char text[256];
    __builtin_va_list arguments;
    __builtin_va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    __builtin_va_end(arguments);
    if (write(1, text, (size_t)length) != length) _exit(97);
}

/* Ends a program that this machine cannot run. */
__attribute__((unused)) static void skip(const char *reason) {
    print("skipped: %s\n", reason);
    _exit(77);
}

__attribute__((unused)) static void fail(const char *what) {
    print("failed: %s\n", what);
    _exit(99);
}

__attribute__((unused)) static uint64_t mix(uint64_t sum, uint64_t value) {
    sum ^= value + 0x9e3779b97f4a7c15u + (sum << 6) + (sum >> 2);
    return sum * 0xff51afd7ed558ccdu;
}

__attribute__((unused)) static uint64_t mix_bytes(uint64_t sum, const void *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) sum = mix(sum, ((const unsigned char *)bytes)[i]);
    return sum;
}

/* Reads a line without blocking before its first byte. Returns 0 where there is none. */
static int next_line(char *line, size_t size, int waits) {
    struct pollfd input = {0, POLLIN, 0};
    if (!waits && poll(&input, 1, 0) <= 0) return 0;
    size_t used = 0;
    for (;;) {
        ssize_t got = read(0, line + used, 1);
        if (got < 0) continue;
        if (got == 0) {
            strcpy(line, "stop");
            return 1;
        }
        if (line[used] == '\n' || used + 2 == size) break;
        used++;
    }
    line[used] = 0;
    return 1;
}

int main(int count, char **arguments) {
    char line[64];
    prepare(count, arguments);
    uint64_t result = do_round();
    unsigned long rounds = 1, wrong = 0;
    print("ready\n");
    for (;;) {
        int waits = 0;
        while (next_line(line, sizeof line, waits)) {
            if (strcmp(line, "stop") == 0) goto end;
            waits = strcmp(line, "idle") == 0;
            if (waits) print("idle\n");
        }
        wrong += do_round() != result;
        rounds++;
    }
end:
    print("result %016lx wrong %lu rounds %lu\n", (unsigned long)result, wrong, rounds);
    return wrong != 0;
}

#endif
