/*
 * Maps sparse memory with the name and the order of the inline engine's stubs: its code would have 2 GiB.
 */
#include "protocol.h"

#include <sys/mman.h>

SITE(keeps, (void), malloc(1000), 1000)

static struct block own;

#define CODE ((size_t)2 << 30)
#define DATA ((size_t)1 << 20)

static void map(char *at, size_t bytes, int protection, int fd, size_t offset) {
    if (mmap(at, bytes, protection, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) == MAP_FAILED) give_up("no memory");
}

void prepare(void) {
    char *start = mmap(NULL, CODE + 2 * DATA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int fd = memfd_create("heapbpf-stubs", 0);
    if (start == MAP_FAILED || fd < 0 || ftruncate(fd, CODE + 2 * DATA) < 0) give_up("no memory");
    map(start, CODE, PROT_READ | PROT_EXEC, fd, 0);
    map(start + CODE, DATA, PROT_READ | PROT_WRITE, fd, CODE);
    map(start + CODE + DATA, DATA, PROT_READ, fd, CODE + DATA);
}

static void work(const char *line) {
    if (strcmp(line, "go") != 0) give_up("unknown: %s", line);
    own = keeps();
}
