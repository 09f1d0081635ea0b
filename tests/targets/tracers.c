/*
 * Prints the process that traces it at the beginning of main, `TracerPid:\t0` without one, and executes itself again, as often
 * as its argument states. Before, it allocates.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline, noclone)) static void *constructs(size_t n) {
    return malloc(n);
}

__attribute__((noinline, noclone)) static void *begins(size_t n) {
    return malloc(n);
}

static void *volatile kept[8];

__attribute__((constructor)) static void construct(void) {
    for (int i = 0; i < 3; i++) kept[i] = constructs(501);
}

/* The first system calls of main, without the C library's own buffers. */
static void print_tracer(void) {
    static char text[4096];
    int status = open("/proc/self/status", O_RDONLY);
    ssize_t length = read(status, text, sizeof text - 1);
    close(status);
    if (length <= 0) _exit(98);
    char *line = strstr(text, "TracerPid:");
    if (!line || !strchr(line, '\n')) _exit(97);
    size_t bytes = (size_t)(strchr(line, '\n') + 1 - line);
    if (write(STDOUT_FILENO, line, bytes) != (ssize_t)bytes) _exit(96);
}

int main(int count, char **arguments) {
    print_tracer();
    for (int i = 3; i < 8; i++) kept[i] = begins(1001);
    int left = count > 1 ? atoi(arguments[1]) : 0;
    if (left > 0) {
        char next[2] = {(char)('0' + left - 1), 0};
        execl(arguments[0], arguments[0], next, (char *)NULL);
        _exit(95);
    }
    return 7;
}
