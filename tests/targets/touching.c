/* Makes memory resident in ways that its standard input asks for, each in a function of its own: a word, and a number of MiB. Prints
   `ready`, then `done` after each line. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))

enum { MIB = 1 << 20, PAGE = 4096, THREADS = 8 };

/* Kept by one line for the next ones. */
static volatile char *kept;
static long kept_bytes;

static void check(int is_right, const char *what) {
    if (!is_right) {
        perror(what);
        exit(1);
    }
}

static volatile char *map(long bytes, int flags, int file) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    check(memory != MAP_FAILED, "mmap");
    return memory;
}

static volatile char *anonymous(long bytes) {
    volatile char *memory = map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    check(madvise((void *)memory, bytes, MADV_NOHUGEPAGE) == 0, "madvise");
    return memory;
}

NOINLINE static void touches(volatile char *memory, long bytes) {
    for (long at = 0; at < bytes; at += PAGE) memory[at] = 1;
}

NOINLINE static void touches_again(volatile char *memory, long bytes) {
    for (long at = 0; at < bytes; at += PAGE) memory[at] = 1;
}

/* In a mapping of its own, at the start of a huge page: the first store makes a whole one resident, where the kernel has one. */
NOINLINE static void touches_huge(long bytes) {
    long huge = 2 * MIB;
    volatile char *memory = map(bytes + huge, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    memory += huge - (unsigned long)memory % huge;
    check(madvise((void *)memory, bytes, MADV_HUGEPAGE) == 0, "madvise");
    for (long at = 0; at < bytes; at += PAGE) memory[at] = 1;
}

/* Maps the zero page. */
NOINLINE static void reads(volatile char *memory, long bytes) {
    for (long at = 0; at < bytes; at += PAGE) (void)memory[at];
}

/* The kernel touches the memory, for a system call. */
NOINLINE static void receives(volatile char *memory, long bytes) {
    int file = open("/dev/zero", O_RDONLY);
    check(file >= 0 && read(file, (void *)memory, bytes) == bytes, "read");
    close(file);
}

NOINLINE static void shares(long bytes) {
    touches(map(bytes, MAP_SHARED | MAP_ANONYMOUS, -1), bytes);
}

/* Copies pages of a file by writing to them. */
NOINLINE static void copies(long bytes) {
    char name[] = "/tmp/touching-XXXXXX";
    int file = mkstemp(name);
    check(file >= 0 && unlink(name) == 0 && ftruncate(file, bytes) == 0, "mkstemp");
    volatile char *memory = map(bytes, MAP_PRIVATE, file);
    close(file);
    reads(memory, bytes);
    touches_again(memory, bytes);
}

static pthread_barrier_t started;

NOINLINE static void *touches_together(void *unused) {
    (void)unused;
    pthread_barrier_wait(&started);
    for (long at = 0; at < kept_bytes; at += PAGE) kept[at] = 1;
    return NULL;
}

static void together(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&started, NULL, THREADS);
    for (int at = 0; at < THREADS; at++) check(pthread_create(&threads[at], NULL, touches_together, NULL) == 0, "pthread_create");
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
}

/* A child writes to half of the inherited memory, then its parent does. */
static void forks(void) {
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        touches_again(kept, kept_bytes / 2);
        _exit(0);
    }
    check(waitpid(child, NULL, 0) == child, "waitpid");
    touches_again(kept, kept_bytes / 2);
}

int main(void) {
    char line[64], what[16];
    long bytes;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin) && sscanf(line, "%15s %ld", what, &bytes) == 2) {
        if (!strcmp(what, "exit")) return (int)bytes;
        bytes *= MIB;
        if (!strcmp(what, "touch")) {
            kept = anonymous(kept_bytes = bytes);
            touches(kept, bytes);
        } else if (!strcmp(what, "return")) {
            check(madvise((void *)kept, bytes, MADV_DONTNEED) == 0, "madvise");
        } else if (!strcmp(what, "again")) {
            touches_again(kept, bytes);
        } else if (!strcmp(what, "huge")) {
            touches_huge(bytes);
        } else if (!strcmp(what, "read")) {
            kept = anonymous(kept_bytes = bytes);
            reads(kept, bytes);
        } else if (!strcmp(what, "receive")) {
            receives(anonymous(bytes), bytes);
        } else if (!strcmp(what, "share")) {
            shares(bytes);
        } else if (!strcmp(what, "copy")) {
            copies(bytes);
        } else if (!strcmp(what, "together")) {
            kept = anonymous(kept_bytes = bytes);
            together();
        } else if (!strcmp(what, "fork")) {
            forks();
        }
        puts("done");
    }
    return 0;
}
