/*
 * Functions with the signatures of allocators and prescribed results: their last argument is what they return,
 * so every outcome is possible. Each line of input is a call: a function, then its arguments. Answers like the other targets,
 * with an empty ledger.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unistd.h>

/* noipa: the calls are made as they stand here, and what they return is not known. */
#define PROBED extern "C" __attribute__((noinline, noclone, noipa))

PROBED uint64_t make(uint64_t, uint64_t result) { return result; }

PROBED uint64_t remake(uint64_t, uint64_t, uint64_t result) { return result; }

PROBED uint64_t remake_freeing(uint64_t, uint64_t, uint64_t result) { return result; }

PROBED uint64_t resize(uint64_t, uint64_t, uint64_t result) { return result; }

PROBED uint64_t make_or_throw(uint64_t size, uint64_t result) {
    uint64_t made = make(size, result);
    if (made == 0) throw std::bad_alloc();
    return made;
}

PROBED uint64_t remake_or_throw(uint64_t, uint64_t, uint64_t result) {
    if (result == 0) throw std::bad_alloc();
    return result;
}

static void say(const char *line) {
    if (write(1, line, strlen(line)) < 0) _exit(98);
}

static void work(const char *line) {
    char function[32];
    unsigned long long a = 0, b = 0, c = 0;
    if (sscanf(line, "%31s %llu %llu %llu", function, &a, &b, &c) < 1) _exit(97);
    if (strcmp(function, "exit") == 0) _exit((int)a);
    if (strcmp(function, "make") == 0) make(a, b);
    else if (strcmp(function, "remake") == 0) remake(a, b, c);
    else if (strcmp(function, "remake_freeing") == 0) remake_freeing(a, b, c);
    else if (strcmp(function, "resize") == 0) resize(a, b, c);
    else if (strcmp(function, "make_or_throw") == 0) {
        try {
            make_or_throw(a, b);
        } catch (const std::bad_alloc &) {
            if (b != 0) _exit(96);
        }
    } else if (strcmp(function, "remake_or_throw") == 0) {
        try {
            remake_or_throw(a, b, c);
        } catch (const std::bad_alloc &) {
            if (c != 0) _exit(96);
        }
    } else _exit(95);
}

int main() {
    char line[256];
    say("ready\n");
    while (fgets(line, sizeof line, stdin) != nullptr) {
        work(line);
        say("{\"peak_bytes\":0,\"sites\":[]}\n");
    }
}
