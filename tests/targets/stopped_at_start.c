/* Stops processes before their first instruction: each that executes FILE under NAME, its first argument.
   Usage: stopped_at_start FILE NAME. Prints `ready`, then the PID of each, until it is killed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <unistd.h>

static void give_up(const char *what) {
    perror(what);
    exit(1);
}

/* The second argument of the system call in which a process waits, which is execve. */
static unsigned long arguments_of(int pid) {
    char path[64];
    unsigned long arguments = 0;
    snprintf(path, sizeof path, "/proc/%d/syscall", pid);
    while (arguments == 0) {
        /* It says `running` until the process sleeps. */
        FILE *call = fopen(path, "r");
        if (!call) return 0;
        if (fscanf(call, "%*d 0x%*x 0x%lx", &arguments) != 1) arguments = 0;
        fclose(call);
    }
    return arguments;
}

static int is_started_as(int pid, const char *name) {
    char path[64], own[64] = "";
    unsigned long first = 0;
    unsigned long arguments = arguments_of(pid);
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int memory = open(path, O_RDONLY | O_CLOEXEC);
    int is_read = pread(memory, &first, sizeof first, arguments) == sizeof first &&
                  pread(memory, own, strlen(name) + 1, first) == (ssize_t)strlen(name) + 1;
    close(memory);
    return is_read && strcmp(own, name) == 0;
}

int main(int argc, char **argv) {
    if (argc != 3 || strlen(argv[2]) >= 64) give_up("usage");
    int events = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY | O_CLOEXEC);
    if (events < 0) give_up("fanotify_init");
    if (fanotify_mark(events, FAN_MARK_ADD, FAN_OPEN_EXEC_PERM, AT_FDCWD, argv[1]) != 0) give_up("fanotify_mark");
    puts("ready");
    fflush(stdout);
    _Alignas(struct fanotify_event_metadata) char bytes[4096];
    for (;;) {
        ssize_t length = read(events, bytes, sizeof bytes);
        if (length < 0) give_up("read");
        struct fanotify_event_metadata *event = (struct fanotify_event_metadata *)bytes;
        for (; FAN_EVENT_OK(event, length); event = FAN_EVENT_NEXT(event, length)) {
            /* It waits for the answer, and stops on its way out of execve. */
            int is_stopped = is_started_as(event->pid, argv[2]) && kill(event->pid, SIGSTOP) == 0;
            struct fanotify_response answer = {event->fd, FAN_ALLOW};
            if (write(events, &answer, sizeof answer) != sizeof answer) give_up("write");
            close(event->fd);
            if (is_stopped) {
                printf("%d\n", event->pid);
                fflush(stdout);
            }
        }
    }
}
