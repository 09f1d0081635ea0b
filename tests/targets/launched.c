/*
 * A program that is started by the profiler: it allocates before main, at its beginning and at its very end.
 *
 * `keep N COUNT` keeps COUNT blocks of N bytes. `daemonize` goes on in a process of its own session, whose parent exits with
 * 0. `ignore` has interrupts ignored, `catch` has one end the program in good order.
 */
#include "protocol.h"

#include <signal.h>
#include <unistd.h>

SITE(constructs, (size_t n), malloc(n), n)
SITE(begins, (size_t n), malloc(n), n)
SITE(keeps, (size_t n), malloc(n), n)
SITE(ends, (size_t n), malloc(n), n)

__attribute__((constructor)) static void construct(void) {
    for (int i = 0; i < 3; i++) constructs(501);
}

__attribute__((destructor)) static void end(void) {
    for (int i = 0; i < 2; i++) ends(333);
}

void prepare(void) {
    for (int i = 0; i < 7; i++) begins(1001);
}

/* There is nothing more to read, whether the program waits for it already or is about to. */
static void interrupted(int signal) {
    (void)signal;
    close(STDIN_FILENO);
}

static void work(const char *line) {
    size_t n = 0, count = 0;
    if (sscanf(line, "keep %zu %zu", &n, &count) == 2) {
        while (count--) keeps(n);
    } else if (strcmp(line, "daemonize") == 0) {
        pid_t child = fork();
        if (child < 0) give_up("fork");
        if (child > 0) _exit(0);
        setsid();
    } else if (strcmp(line, "ignore") == 0) {
        signal(SIGINT, SIG_IGN);
    } else if (strcmp(line, "catch") == 0) {
        struct sigaction action = {.sa_handler = interrupted};
        sigaction(SIGINT, &action, NULL);
    } else {
        give_up("unknown: %s", line);
    }
}
