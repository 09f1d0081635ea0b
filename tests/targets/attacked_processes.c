/* Makes processes by fork, vfork, posix_spawn and clone(CLONE_VM), some of which execute a program. A forked child lives for some
   rounds, and does a part of each. */
#include "attacked.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static char stack[64 << 10] __attribute__((aligned(16)));
static void *volatile made_by_clone;

/* The child that lives, and the ends of its pipes. */
enum { ROUNDS_OF_CHILD = 16 };
static pid_t living;
static int to_child = -1, from_child = -1;
static unsigned rounds;

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

/* A child's part of a round, at each byte of its input. */
static void work_as_child(int input, int output) {
    char byte;
    while (read(input, &byte, 1) == 1) {
        uint64_t sum = 0;
        for (size_t size = 100; size < 200000; size *= 3) {
            unsigned char *block = malloc(size);
            memset(block, (int)size, size);
            block = realloc(block, 2 * size);
            sum = mix_bytes(sum, block, 100);
            free(block);
        }
        if (write(output, &sum, sizeof sum) != sizeof sum) break;
    }
    _exit(15);
}

static void start_child(void) {
    int input[2], output[2];
    if (pipe2(input, O_CLOEXEC) || pipe2(output, O_CLOEXEC)) fail("pipe2");
    living = fork();
    if (living == 0) {
        close(input[1]);
        close(output[0]);
        work_as_child(input[0], output[1]);
    }
    close(input[0]);
    close(output[1]);
    to_child = input[1];
    from_child = output[0];
}

static void end_child(void) {
    close(to_child);
    close(from_child);
    if (status_of(living) != 15 << 8) fail("the child that lives");
}

static uint64_t ask_child(void) {
    if (rounds % ROUNDS_OF_CHILD == 0) {
        if (rounds > 0) end_child();
        start_child();
    }
    rounds++;
    uint64_t sum;
    if (write(to_child, "", 1) != 1 || read(from_child, &sum, sizeof sum) != sizeof sum) fail("an answer of the child");
    return sum;
}

static void prepare(int count, char **arguments) { (void)count, (void)arguments; }

static uint64_t do_round(void) {
    uint64_t sum = ask_child();
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
