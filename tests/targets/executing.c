/*
 * Children that execute a program at different times after their fork.
 *
 * `execute COUNT FILE` forks COUNT children one after the other. Each executes this program after 150 us more than the one before;
 * there, it replaces 64 blocks in random order for 100 ms, appends its pid and its number of allocations to FILE, and exits.
 */
#include "protocol.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <time.h>

SITE(keeps, (size_t n), malloc(n), n)

/* Environment variable of the executed program: FILE. */
static const char *const TURNS = "EXECUTING_TURNS";

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static NOINLINE long turn(void) {
    long count = 0;
    static void *volatile blocks[64];
    uint32_t state = 1;
    for (double end = seconds() + 0.1; seconds() < end;) {
        for (int i = 0; i < 64; i++) {
            state = state * 1103515245 + 12345;
            size_t place = state >> 16 & 63;
            free(blocks[place]);
            blocks[place] = malloc(100 + place);
        }
        count += 64;
    }
    return count;
}

void prepare(void) {
    const char *path = getenv(TURNS);
    if (path == NULL) return;
    char line[64];
    int length = snprintf(line, sizeof line, "%d %ld\n", getpid(), turn());
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    _exit(file < 0 || write(file, line, (size_t)length) != length);
}

static void work(const char *line) {
    int count = 0;
    char path[200];
    if (sscanf(line, "execute %d %199s", &count, path) != 2) give_up("unknown: %s", line);
    keeps(1000);
    setenv(TURNS, path, 1);
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child < 0) give_up("fork");
        if (child == 0) {
            usleep((useconds_t)i * 150);
            execl("/proc/self/exe", "executing", (char *)NULL);
            _exit(127);
        }
        int status = 0;
        if (waitpid(child, &status, 0) != child || status != 0) give_up("child: %d", status);
    }
}
