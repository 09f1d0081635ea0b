/*
 * A program whose calls heapbpf does not see, or not all of them.
 *
 *   keep N COUNT     keeps COUNT blocks of N bytes
 *   share N COUNT    starts a process in this one's memory (`CLONE_VM`), which allocates COUNT blocks of N bytes and waits
 *   again N COUNT    has it allocate COUNT more
 *   join             ends that process
 *   disarm           restores the code of the C library in memory, and with it all instructions that breakpoints have replaced
 */
#include "protocol.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

enum { STACK_BYTES = 1 << 18 };

SITE(keeps, (size_t n), malloc(n), n)

static char stack[STACK_BYTES];
static volatile int is_requested, is_over;
static volatile size_t shared_size, shared_count;
static pid_t child;

SITE(shared_keeps, (size_t n), malloc(n), n)

static int shares(void *unused) {
    while (!is_over) {
        if (is_requested) {
            for (size_t i = 0; i < shared_count; i++) shared_keeps(shared_size);
            is_requested = 0;
        }
        usleep(1000);
    }
    (void)unused;
    return 0;
}

static void request(size_t size, size_t count) {
    shared_size = size, shared_count = count, is_requested = 1;
    while (is_requested) usleep(1000);
}

static void share(size_t size, size_t count) {
    is_over = 0;
    child = clone(shares, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
    if (child < 0) give_up("clone");
    request(size, count);
}

static void join(void) {
    is_over = 1;
    if (waitpid(child, NULL, 0) != child) give_up("waitpid");
}

/* Writes a mapping's bytes from its file, through the file of the memory, which writes to code as well. */
static void restore(unsigned long start, unsigned long end, unsigned long offset, const char *path) {
    static char page[4096];
    int memory = open("/proc/self/mem", O_RDWR), file = open(path, O_RDONLY);
    if (memory < 0 || file < 0) give_up("cannot open %s", path);
    for (unsigned long at = start; at < end; at += sizeof page) {
        if (pread(file, page, sizeof page, (off_t)(at - start + offset)) <= 0) break;
        if (pwrite(memory, page, sizeof page, (off_t)at) != sizeof page) give_up("cannot write to %#lx", at);
    }
    close(memory);
    close(file);
}

static void disarm(void) {
    static char line[512], path[256];
    unsigned long address = (unsigned long)(void *)malloc, start, end, offset;
    char permissions[5];
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) give_up("no mappings");
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %4s %lx %*s %*s %255s", &start, &end, permissions, &offset, path) != 5) continue;
        if (permissions[2] == 'x' && start <= address && address < end) restore(start, end, offset, path);
    }
    fclose(maps);
}

static void work(const char *line) {
    size_t n = 0, count = 0;
    if (sscanf(line, "keep %zu %zu", &n, &count) == 2) {
        while (count--) keeps(n);
    } else if (sscanf(line, "share %zu %zu", &n, &count) == 2) {
        share(n, count);
    } else if (sscanf(line, "again %zu %zu", &n, &count) == 2) {
        request(n, count);
    } else if (strcmp(line, "join") == 0) {
        join();
    } else if (strcmp(line, "disarm") == 0) {
        disarm();
    } else {
        give_up("unknown: %s", line);
    }
}
