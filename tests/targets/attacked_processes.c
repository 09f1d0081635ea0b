/* Makes processes by fork, vfork, posix_spawn and clone(CLONE_VM), some of which execute a program. */
#include "attacked.h"

#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static char stack[64 << 10] __attribute__((aligned(16)));
static void *volatile made_by_clone;

static void prepare(int count, char **arguments) { (void)count, (void)arguments; }

static uint64_t status_of(pid_t child) {
    int status = 0;
    if (child < 0 || waitpid(child, &status, __WALL) != child) fail("a child");
    return (uint64_t)status;
}

static int cloned(void *argument) {
    made_by_clone = malloc((size_t)argument);
    memset(made_by_clone, 7, (size_t)argument);
    return 5;
}

FUNCTION pid_t executing(void) {
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(13);
    }
    return child;
}

static uint64_t do_round(void) {
    uint64_t sum = 0;
    unsigned char *block = malloc(1000);
    memset(block, 3, 1000);
    pid_t child = fork();
    if (child == 0) {
        unsigned char *own = realloc(block, 5000);
        unsigned char *more = malloc(700);
        int code = own[999] == 3 && more != NULL ? 11 : 12;
        free(own);
        free(more);
        _exit(code);
    }
    sum = mix(sum, status_of(child));
    sum = mix(sum, status_of(executing()));
    char *words[] = {(char *)"sh", (char *)"-c", (char *)"exit 14", NULL};
    if (posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ)) fail("posix_spawn");
    sum = mix(sum, status_of(child));
    /* Shares the memory, not the thread-local variables: the caller waits, as for vfork. */
    child = clone(cloned, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)300);
    sum = mix(sum, status_of(child));
    sum = mix_bytes(sum, made_by_clone, 300);
    free(made_by_clone);
    sum = mix_bytes(sum, block, 1000);
    free(block);
    return sum;
}
