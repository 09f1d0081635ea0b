/* A program that has run for a while before it is recorded: a heap of blocks of many sizes, by several threads if asked to.
   Arguments: number of blocks, largest size, threads. Answers each line of its input and prints `done`:
   "free N"       frees every Nth of the first blocks
   "realloc N"    doubles every Nth of the remaining first blocks
   "new N SIZE"   allocates N blocks
   "churn N"      allocates and frees N blocks, one after the other
   "mapped A HOW" allocates 10 MiB aligned to A, and splits their mapping
   "headless"     allocates 10 MiB, and unmaps their first page, with their size
   "unmap"        frees what "mapped" has allocated
   "fork"         starts a child
   "child"        has the child free half of its blocks and exit
   "statistics"   first prints bytes and number of live blocks by its own list, and the allocator's own count of bytes

   The usable sizes of the first blocks and of mapped ones count, and the requested ones of all others. */
#define _GNU_SOURCE
#include "split.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS_MAX = 16, NEW_MAX = 1 << 20, MAPPED_MAX = 16, MAPPED_BYTES = 10 << 20 };

struct block {
    void *address;
    size_t size;
};

struct heap {
    struct block *blocks;
    long count;
    long size_max;
    uint64_t random;
};

static struct heap heaps[THREADS_MAX];
static long thread_count;
static struct block *fresh;
static long fresh_count;
static struct block mapped[MAPPED_MAX];
static long mapped_count;

static uint64_t next(uint64_t *random) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return *random >> 33;
}

/* Sizes with a uniform logarithm, from 24 bytes on, of the form 16n + 8. */
static size_t size_of(struct heap *heap) {
    size_t most = 24;
    while (most < (size_t)heap->size_max && next(&heap->random) % 8) {
        most *= 2;
    }
    size_t size = most / 2 + next(&heap->random) % (most / 2 + 1);
    return size / 16 * 16 + 24;
}

__attribute__((noinline)) static void *allocate(size_t size) {
    void *block = malloc(size);
    memset(block, 1, size);
    return block;
}

static void *fill(void *argument) {
    struct heap *heap = argument;
    for (long round = 0; round < 3; round++) {
        for (long at = 0; at < heap->count; at++) {
            if (round == 0 || next(&heap->random) % 2) {
                free(heap->blocks[at].address);
                heap->blocks[at].address = allocate(size_of(heap));
                heap->blocks[at].size = malloc_usable_size(heap->blocks[at].address);
            }
        }
    }
    return NULL;
}

static void map(size_t alignment, unsigned how) {
    void *block = NULL;
    if (mapped_count == MAPPED_MAX || posix_memalign(&block, alignment, MAPPED_BYTES)) {
        exit(1);
    }
    *(volatile char *)block = 1;
    split_mapping(block, how);
    mapped[mapped_count++] = (struct block){block, malloc_usable_size(block)};
}

static void unmap(void) {
    for (long at = 0; at < mapped_count; at++) {
        free(mapped[at].address);
    }
    mapped_count = 0;
}

static void *pages(size_t bytes) {
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

__attribute__((noinline)) static void release(long every) {
    for (long thread = 0; thread < thread_count; thread++) {
        for (long at = 0; at < heaps[thread].count; at += every) {
            free(heaps[thread].blocks[at].address);
            heaps[thread].blocks[at].address = NULL;
        }
    }
}

__attribute__((noinline)) static void enlarge(long every) {
    for (long thread = 0; thread < thread_count; thread++) {
        for (long at = 0; at < heaps[thread].count; at += every) {
            struct block *block = &heaps[thread].blocks[at];
            if (block->address) {
                block->size = 2 * block->size + 8;
                block->address = realloc(block->address, block->size);
            }
        }
    }
}

static void add(uint64_t *sums, struct block block) {
    if (block.address) {
        sums[0] += block.size;
        sums[1]++;
    }
}

static void statistics(void) {
    uint64_t sums[2] = {0, 0}, allocated = 0;
    for (long thread = 0; thread < thread_count; thread++) {
        for (long at = 0; at < heaps[thread].count; at++) {
            add(sums, heaps[thread].blocks[at]);
        }
    }
    for (long at = 0; at < fresh_count; at++) {
        add(sums, fresh[at]);
    }
    for (long at = 0; at < mapped_count; at++) {
        add(sums, mapped[at]);
    }
    int (*mallctl)(const char *, void *, size_t *, void *, size_t) = (int (*)(const char *, void *, size_t *, void *, size_t))
        dlsym(RTLD_DEFAULT, "mallctl");
    if (mallctl) {
        uint64_t epoch = 1;
        size_t length = sizeof epoch;
        mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
        mallctl("epoch", &epoch, &length, &epoch, length);
        size_t bytes = 0;
        length = sizeof bytes;
        mallctl("stats.allocated", &bytes, &length, NULL, 0);
        allocated = bytes;
    }
#ifdef __GLIBC__
    else {
        struct mallinfo2 info = mallinfo2();
        allocated = info.uordblks + info.hblkhd;
    }
#endif
    printf("%lu %lu %lu\n", sums[0], sums[1], allocated);
}

static int orders[2];
static pid_t child;

static void fork_one(void) {
    if (pipe(orders)) {
        exit(1);
    }
    child = fork();
    if (child == 0) {
        char order;
        if (read(orders[0], &order, 1) == 1) {
            release(2);
        }
        _exit(0);
    }
}

static void release_child(void) {
    if (write(orders[1], "", 1) != 1 || waitpid(child, NULL, 0) != child) {
        exit(1);
    }
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 100000, size_max = argc > 2 ? atol(argv[2]) : 4096;
    thread_count = argc > 3 ? atol(argv[3]) : 1;
    pthread_t threads[THREADS_MAX];
    fresh = pages(NEW_MAX * sizeof *fresh);
    for (long thread = 0; thread < thread_count; thread++) {
        long own = count / thread_count;
        heaps[thread] = (struct heap){pages(own * sizeof(struct block)), own, size_max, 17 + thread};
        if (thread == 0) {
            fill(&heaps[0]);
        } else {
            pthread_create(&threads[thread], NULL, fill, &heaps[thread]);
        }
    }
    for (long thread = 1; thread < thread_count; thread++) {
        pthread_join(threads[thread], NULL);
    }
    char line[64], what[16];
    static char output[4096];
    setvbuf(stdout, output, _IOLBF, sizeof output);
    puts("ready");
    static char input[4096];
    setvbuf(stdin, input, _IOFBF, sizeof input);
    while (fgets(line, sizeof line, stdin)) {
        long number = 1, size = 0;
        if (sscanf(line, "%15s %ld %ld", what, &number, &size) < 1) {
            break;
        }
        if (!strcmp(what, "free")) {
            release(number);
        } else if (!strcmp(what, "realloc")) {
            enlarge(number);
        } else if (!strcmp(what, "new")) {
            for (long at = 0; at < number && fresh_count < NEW_MAX; at++) {
                fresh[fresh_count++] = (struct block){allocate(size), size};
            }
        } else if (!strcmp(what, "churn")) {
            for (long at = 0; at < number; at++) {
                free(allocate(24 + at % 64 * 16));
            }
        } else if (!strcmp(what, "mapped")) {
            map(number, size);
        } else if (!strcmp(what, "headless")) {
            munmap((void *)((uintptr_t)allocate(MAPPED_BYTES) & ~(uintptr_t)4095), 4096);
        } else if (!strcmp(what, "unmap")) {
            unmap();
        } else if (!strcmp(what, "fork")) {
            fork_one();
        } else if (!strcmp(what, "child")) {
            release_child();
        } else if (!strcmp(what, "statistics")) {
            statistics();
        } else if (!strcmp(what, "exit")) {
            return (int)number;
        }
        puts("done");
    }
    return 0;
}
