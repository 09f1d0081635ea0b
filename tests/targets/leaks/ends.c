/*
 * A program that ends as its first argument says, with a block of 400 bytes that only a local variable of `main` references:
 * `return` from `main`, `exit` in a function that `main` calls, `abort`, `kill` by a signal whose number follows, or `children`: a
 * number of them, by fork and by posix_spawn, are waited for. `open`: it ends without a line feed on standard error. `family`: has a
 * child, in which a block of 700 bytes leaks, and which has one that executes this program as `traced`: it returns from `main`. Both
 * wait until they are traced.
 */
#include "truth.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

NOINLINE static void *of_main(size_t size) { return malloc(size); }

NOINLINE static void leave(int code) { exit(code); }

static void wait_for(pid_t child) {
    int status;
    if (child <= 0 || waitpid(child, &status, 0) != child || status != 0) give_up("a child");
}

NOINLINE static void have_children(int count) {
    char *arguments[] = {"true", NULL};
    for (int number = 0; number < count; number++) {
        pid_t child = 0;
        if (number % 2 == 1) {
            if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) != 0) give_up("posix_spawn");
        } else if ((child = fork()) == 0) {
            _exit(0);
        }
        wait_for(child);
    }
}

NOINLINE static void *of_child(size_t size) { return malloc(size); }

NOINLINE static void wait_until_traced(void) {
    static char status[4096];
    for (;;) {
        int file = open("/proc/self/status", O_RDONLY);
        ssize_t length = read(file, status, sizeof status - 1);
        if (length <= 0) give_up("no status");
        close(file);
        status[length] = 0;
        const char *tracer = strstr(status, "TracerPid:\t");
        if (tracer == NULL) give_up("no tracer in the status");
        if (tracer[11] != '0') return;
        usleep(1000);
    }
}

NOINLINE static void have_family(char *program) {
    char *arguments[] = {program, "traced", NULL};
    pid_t child = fork(), grandchild = 0;
    if (child == 0) {
        wait_until_traced();
        masked block = (masked)of_child(700) ^ mask;
        if (posix_spawn(&grandchild, "/proc/self/exe", NULL, NULL, arguments, environ) != 0) give_up("posix_spawn");
        wait_for(grandchild);
        sweep();
        exit(block == 0);
    }
    wait_for(child);
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "return";
    int number = count > 2 ? atoi(arguments[2]) : 0;
    if (strcmp(how, "children") == 0) {
        have_children(number);
        return 0;
    }
    if (strcmp(how, "family") == 0) {
        have_family(arguments[0]);
        return 0;
    }
    if (strcmp(how, "traced") == 0) wait_until_traced();
    /* In all of the frame: what runs after `main` does not overwrite each word of it. */
    void *volatile frame[512];
    frame[0] = of_main(400);
    memset(frame[0], 0, 400);
    for (int word = 1; word < 512; word++) frame[word] = frame[0];
    if (strcmp(how, "exit") == 0) leave(number);
    if (strcmp(how, "abort") == 0) abort();
    if (strcmp(how, "kill") == 0) raise(number);
    if (strcmp(how, "open") == 0 && write(2, "unfinished", 10) != 10) give_up("write");
    return number;
}
