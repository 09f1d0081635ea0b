/*
 * One thread opens files, as long as it is asked to; another waits for a child of `vfork`.
 *
 *   open       starts a thread that closes descriptor 3 and opens a file, again and again: by POSIX, each has the lowest free number, 3
 *   close      ends that thread, and prints the ledger
 *   suspend    starts a thread that waits in `vfork` until `resume`
 *   resume     lets the child end
 *   keep N     allocates N blocks of 100 bytes
 */
#include "protocol.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

enum { LOWEST = 3, PAUSE = 60000 };

static int ends[2];
static pthread_t waiting, opening;
static volatile int is_opening;

SITE(keeps, (size_t size), malloc(size), size)

static void *reopen(void *unused) {
    while (is_opening) {
        close(LOWEST);
        for (volatile int i = 0; i < PAUSE; i++) {
        }
        int descriptor = open("/dev/null", O_RDONLY);
        if (descriptor != LOWEST) give_up("the file got the number %d", descriptor);
    }
    return unused;
}

static void *wait_for_child(void *unused) {
    pid_t child = vfork();
    if (child == 0) {
        /* Its descriptors are its own. */
        char byte;
        close(ends[1]);
        if (read(ends[0], &byte, 1) != 1) _exit(1);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    return unused;
}

void prepare(void) {
    if (open("/dev/null", O_RDONLY) != LOWEST) give_up("descriptor %d is not free", LOWEST);
    if (pipe(ends) != 0) give_up("no pipe");
}

static void work(const char *line) {
    int count = 0;
    if (strcmp(line, "open") == 0) {
        is_opening = 1;
        if (pthread_create(&opening, NULL, reopen, NULL) != 0) give_up("no thread");
    } else if (strcmp(line, "close") == 0) {
        is_opening = 0;
        pthread_join(opening, NULL);
    } else if (strcmp(line, "suspend") == 0) {
        if (pthread_create(&waiting, NULL, wait_for_child, NULL) != 0) give_up("no thread");
    } else if (strcmp(line, "resume") == 0) {
        if (write(ends[1], "x", 1) != 1) give_up("no child reads");
        pthread_join(waiting, NULL);
    } else if (sscanf(line, "keep %d", &count) == 1) {
        for (int i = 0; i < count; i++) keeps(100);
    } else {
        give_up("unknown work `%s`", line);
    }
}
