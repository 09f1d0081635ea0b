/*
 * Starts programs by vfork and exec, as posix_spawn does.
 *
 * `spawn RATE COUNT` starts /bin/true COUNT times, RATE times a second, and waits for each; `launch PATH` starts a program
 * that answers in this one's place until it ends.
 */
#include "protocol.h"

#include <sys/wait.h>
#include <time.h>

SITE(keeps, (size_t n), malloc(n), n)

static pid_t start(const char *path) {
    pid_t child = vfork();
    if (child < 0) give_up("vfork");
    if (child == 0) {
        execl(path, path, (char *)NULL);
        _exit(127);
    }
    return child;
}

static void sleep_until(struct timespec *due, long period_ns) {
    due->tv_nsec += period_ns;
    due->tv_sec += due->tv_nsec / 1000000000;
    due->tv_nsec %= 1000000000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, due, NULL)) {}
}

static void work(const char *line) {
    long rate = 0, count = 0;
    int status = 0;
    if (sscanf(line, "spawn %ld %ld", &rate, &count) == 2 && rate > 0) {
        struct timespec due;
        clock_gettime(CLOCK_MONOTONIC, &due);
        for (long i = 0; i < count; i++) {
            release(keeps(100));
            if (waitpid(start("/bin/true"), &status, 0) < 0 || status != 0) give_up("true: %d", status);
            sleep_until(&due, 1000000000 / rate);
        }
    } else if (strncmp(line, "launch ", 7) == 0) {
        if (waitpid(start(line + 7), &status, 0) < 0) give_up("waitpid");
    } else {
        give_up("unknown: %s", line);
    }
}
