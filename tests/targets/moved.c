/*
 * A program that moves its own code into memory without a file, as programs do to have it on huge pages.
 *
 * `keep N COUNT` keeps COUNT blocks of N bytes. `move` moves the code.
 */
#include "protocol.h"

#include <inttypes.h>
#include <sys/mman.h>

SITE(moved_leaf, (size_t n), malloc(n), n)

NOINLINE static void moved_middle(size_t n) {
    moved_leaf(n);
    __asm__ volatile("" : : : "memory");
}

static uintptr_t start, end;

static void find_code(void) {
    char line[500];
    FILE *maps = fopen("/proc/self/maps", "r");
    uintptr_t own = (uintptr_t)&moved_middle;
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &start, &end) == 2 && start <= own && own < end) break;
    }
    fclose(maps);
}

static char *copy(void) {
    char *memory = mmap(NULL, end - start, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) give_up("no memory");
    memcpy(memory, (void *)start, end - start);
    return memory;
}

static void move(void) {
    char *memory = copy();
    if (mprotect(memory, end - start, PROT_READ | PROT_EXEC)) give_up("not executable");
    void *moved = mremap(memory, end - start, end - start, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)start);
    if (moved != (void *)start) give_up("not moved");
}

static void work(const char *line) {
    size_t n = 0, count = 0;
    if (!start) find_code();
    if (sscanf(line, "keep %zu %zu", &n, &count) == 2) {
        while (count--) moved_middle(n);
    } else if (!strcmp(line, "move")) {
        move();
    } else {
        give_up("unknown: %s", line);
    }
}
