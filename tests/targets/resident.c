/* Makes its resident memory grow in ways that its standard input asks for: "blocks N", "maps N", "shared N", "stacks N", in MiB.
   Prints `ready`, then `done` after each line. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MIB = 1 << 20, BLOCK = 100, STACK = 4 * MIB };

static void *kept;

__attribute__((noinline)) static void blocks(long mebibytes) {
    for (long at = 0; at < mebibytes * MIB / BLOCK; at++) {
        void **block = malloc(BLOCK);
        memset(block, 1, BLOCK);
        *block = kept;
        kept = block;
    }
}

static void maps(long mebibytes, int flags) {
    void *address = mmap(NULL, mebibytes * MIB, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    memset(address, 1, mebibytes * MIB);
}

static void *use_stack(void *started) {
    volatile char bytes[STACK - 64 * 1024];
    memset((char *)bytes, 1, sizeof bytes);
    pthread_barrier_wait(started);
    pause();
    return NULL;
}

static void stacks(long mebibytes) {
    pthread_barrier_t started;
    pthread_barrier_init(&started, NULL, mebibytes * MIB / STACK + 1);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    for (long at = 0; at < mebibytes * MIB / STACK; at++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, use_stack, &started)) {
            exit(1);
        }
    }
    pthread_barrier_wait(&started);
}

int main(void) {
    char line[64], what[16];
    long mebibytes;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin) && sscanf(line, "%15s %ld", what, &mebibytes) == 2) {
        if (!strcmp(what, "blocks")) {
            blocks(mebibytes);
        } else if (!strcmp(what, "maps")) {
            maps(mebibytes, MAP_PRIVATE);
        } else if (!strcmp(what, "shared")) {
            maps(mebibytes, MAP_SHARED);
        } else if (!strcmp(what, "stacks")) {
            stacks(mebibytes);
        } else if (!strcmp(what, "exit")) {
            return (int)mebibytes;
        }
        puts("done");
    }
    return 0;
}
