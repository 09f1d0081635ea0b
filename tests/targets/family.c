/*
 * A program that forks and executes others. The newest process answers; when it exits, its parent continues.
 *
 * `keep N COUNT` keeps COUNT blocks of N bytes; `drop` frees all that is kept, also what was inherited. `fork` makes a copy,
 * `vfork N` a child that allocates and frees in this process's memory and exits, `thread N` a thread that allocates and
 * ends; `exec PATH` becomes another program, which answers `ready` first, and `thread-exec PATH` does so from a thread that
 * is not the first.
 */
#include "protocol.h"

#include <pthread.h>
#include <sys/wait.h>

SITE(keeps, (size_t n), malloc(n), n)
SITE(vfork_mallocs, (size_t n), malloc(n), n)
SITE(thread_mallocs, (size_t n), malloc(n), n)

/* Before `ready`: what a program allocates first. */
SITE(begins, (size_t n), malloc(n), n)

static struct block kept[100000];
static size_t kept_count;

void prepare(void) {
    for (int i = 0; i < 7; i++) begins(1001);
}

static void become(const char *path) {
    execl(path, path, (char *)NULL);
    give_up("exec %s", path);
}

static void *thread(void *n) {
    release(thread_mallocs((size_t)n));
    return NULL;
}

static void *executing_thread(void *path) {
    become(path);
    return NULL;
}

static void work(const char *line) {
    size_t n = 0, count = 0;
    static char next[256];
    if (sscanf(line, "keep %zu %zu", &n, &count) == 2) {
        if (kept_count + count > sizeof kept / sizeof *kept) give_up("too much to keep");
        for (size_t i = 0; i < count; i++) kept[kept_count++] = keeps(n);
    } else if (strcmp(line, "drop") == 0) {
        while (kept_count) release(kept[--kept_count]);
    } else if (strcmp(line, "fork") == 0) {
        pid_t child = fork();
        if (child < 0) give_up("fork");
        if (child == 0) return;
        waitpid(child, NULL, 0);
        if (!read_line(next, sizeof next)) _exit(0);
        if (strncmp(next, "exit", 4) == 0) exit(atoi(next + 4));
        begin_ledger();
        work(next);
    } else if (sscanf(line, "vfork %zu", &n) == 1) {
        pid_t child = vfork();
        if (child < 0) give_up("vfork");
        if (child == 0) {
            free(vfork_mallocs(n).address);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        vfork_mallocs_site.alloc_count = vfork_mallocs_site.alloc_bytes = 0;
        live_bytes = peak_bytes = 0;
    } else if (sscanf(line, "thread %zu", &n) == 1) {
        pthread_t made;
        if (pthread_create(&made, NULL, thread, (void *)n)) give_up("thread");
        pthread_join(made, NULL);
    } else if (strncmp(line, "exec ", 5) == 0) {
        become(line + 5);
    } else if (strncmp(line, "thread-exec ", 12) == 0) {
        pthread_t made;
        strcpy(next, line + 12);
        if (pthread_create(&made, NULL, executing_thread, next)) give_up("thread");
        pthread_join(made, NULL);
    } else {
        give_up("unknown: %s", line);
    }
}
