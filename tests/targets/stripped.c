/*
 * A program whose functions are local, so that a stripped copy of it has no names: it allocates in two of them and exits.
 *
 * | function    | what it does               |
 * |-------------|----------------------------|
 * | reads_index | 300 blocks of 1,000 bytes  |
 * | fills_cache | 100 blocks of 10,000 bytes |
 */
#include <stdio.h>
#include <stdlib.h>

struct entry {
    struct entry *next;
    char name[40];
    long size;
};

static struct entry *entries;

static __attribute__((noinline)) struct entry *adds(size_t size) {
    struct entry *entry = malloc(size);
    if (!entry) exit(1);
    entry->next = entries;
    entry->size = (long)size;
    entries = entry;
    return entry;
}

static __attribute__((noinline)) void reads_index(void) {
    for (int i = 0; i < 300; i++) adds(1000);
}

static __attribute__((noinline)) void fills_cache(void) {
    for (int i = 0; i < 50; i++) adds(10000);
    for (int i = 0; i < 50; i++) adds(10000);
}

int main(void) {
    reads_index();
    fills_cache();
    return printf("%ld\n", entries->size) < 0;
}
