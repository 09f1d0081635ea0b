/*
 * Processes that fork at the same time.
 *
 * `fork COUNT EACH` forks COUNT children, each of which forks EACH children one after the other, each of which allocates
 * one block of 1,000 bytes and exits. `exec COUNT EACH` is the same, but the grandchildren execute `/bin/true`.
 */
#include "protocol.h"

#include <sys/wait.h>

SITE(forked_mallocs, (size_t n), malloc(n), n)

/* Runs `task` in a child process. */
static pid_t run(void (*task)(int), int argument) {
    pid_t child = fork();
    if (child < 0) give_up("fork");
    if (child == 0) {
        task(argument);
        _exit(0);
    }
    return child;
}

static void await_child(pid_t child) {
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) give_up("child %d: %d", child, status);
}

static void allocate(int unused) {
    (void)unused;
    forked_mallocs(1000);
}

static void execute(int unused) {
    (void)unused;
    execl("/bin/true", "true", (char *)NULL);
    give_up("no /bin/true");
}

static void fork_each(int each) {
    for (int i = 0; i < each; i++) await_child(run(allocate, 0));
}

static void execute_each(int each) {
    for (int i = 0; i < each; i++) await_child(run(execute, 0));
}

static void work(const char *line) {
    int count = 0, each = 0;
    int forks = sscanf(line, "fork %d %d", &count, &each) == 2;
    if ((!forks && sscanf(line, "exec %d %d", &count, &each) != 2) || count > 64) give_up("unknown: %s", line);
    pid_t children[64];
    for (int i = 0; i < count; i++) children[i] = run(forks ? fork_each : execute_each, each);
    for (int i = 0; i < count; i++) await_child(children[i]);
}
