/*
 * The heap that gperftools' profiler is tried on, in three stages: `fill`, after which nearly all that lives is `Allocate2`'s;
 * `replace`, which frees that and has `Allocate` make larger blocks; `drain`. `child` forks and executes this program, which
 * answers until it exits; then its parent goes on.
 */
#include "protocol.h"

#include <sys/wait.h>

enum { SLOTS = 1000 };

SITE(Allocate, (size_t n), malloc(n), n)
SITE(Allocate2, (size_t n), malloc(n), n)

static struct block slots[SLOTS];

static void fill(struct block (*allocate)(size_t), int first, int end, size_t size) {
    for (int i = first; i < end; i++) slots[i] = allocate(size);
}

static void drain(int first, int end) {
    for (int i = first; i < end; i++) {
        release(slots[i]);
        slots[i] = (struct block){NULL, 0, NULL, 0};
    }
}

static void work(const char *line) {
    static char next[256];
    if (strcmp(line, "fill") == 0) {
        for (int i = 0; i < 2; i++) {
            fill(Allocate, 0, 40, 400);
            drain(0, 40);
        }
        /* The first forty are never found again. */
        fill(Allocate, 0, 40, 400);
        fill(Allocate, 0, 40, 400);
        fill(Allocate2, 40, 400, 4000);
        fill(Allocate2, 400, 1000, 40000);
    } else if (strcmp(line, "replace") == 0) {
        drain(0, 1000);
        fill(Allocate, 0, 100, 400000);
    } else if (strcmp(line, "drain") == 0) {
        drain(0, 10);
        drain(10, 20);
        drain(90, 100);
        drain(20, 90);
    } else if (strcmp(line, "child") == 0) {
        pid_t child = fork();
        if (child < 0) give_up("fork");
        if (child == 0) {
            execl("/proc/self/exe", "staged-child", (char *)NULL);
            _exit(127);
        }
        int status = 0;
        if (waitpid(child, &status, 0) != child || status != 0) give_up("the child: %d", status);
        if (!read_line(next, sizeof next)) _exit(0);
        begin_ledger();
        work(next);
    } else {
        give_up("unknown: %s", line);
    }
}
