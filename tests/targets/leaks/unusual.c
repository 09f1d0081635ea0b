/*
 * Processes in unusual states, by the first argument. They print `ready` and wait, without the C library's buffers:
 *
 *   idle       has never called malloc
 *   freed      has freed every block
 *   churns     allocates and frees one block after another, and does not wait
 *   size       has written beyond a block: the next one's size is overwritten
 *   lists      has written to freed blocks: the lists that they are in are broken
 *   spinner    a thread that never allocates runs the C library's code, with an address of the allocator's data in a register
 *   gs         a block of 500 bytes is only referenced by the base of the segment register GS
 *   secret     a block of 500 bytes is only referenced by memory of memfd_secret
 *   none       the same block is not referenced
 */
#include "truth.h"

#include <asm/prctl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { BYTES = 500, LISTS = 24 };

NOINLINE static void *hidden_block(size_t size) { return malloc(size); }

NOINLINE static masked make_block(void) { return made("hidden_block", hidden_block(BYTES), BYTES, "held"); }

NOINLINE static void overwrite_size(void) {
    char *first = malloc(40), *second = malloc(40);
    if (first == NULL || second == NULL) give_up("no memory");
    memset(first, 0x41, 56);
}

/* Chunks of different sizes that are not next to each other, so that each is in a list of its own once they are sorted. */
NOINLINE static void overwrite_lists(void) {
    static char *volatile blocks[LISTS];
    for (int number = 0; number < LISTS; number++) {
        blocks[number] = malloc(1100 << (number % 8) | number << 7);
        if (malloc(24) == NULL || blocks[number] == NULL) give_up("no memory");
    }
    for (int number = 0; number < LISTS; number++) free(blocks[number]);
    /* Sorts them. */
    if (malloc(1 << 20) == NULL || malloc(100 << 10) == NULL) give_up("no memory");
    for (int number = 0; number < LISTS; number++) memset(blocks[number], 0x41, 32);
}

static char *long_text;
static void *of_allocator;

static volatile size_t sum;

typedef size_t (*length_of)(const char *, void *, void *);

static void *spins(void *unused) {
    length_of length = (length_of)(void *)strlen;
    for (;;) sum += length(long_text, of_allocator, of_allocator);
    return unused;
}

/* The first word of a chunk that is alone in its list points to the list. */
NOINLINE static void spin(void) {
    pthread_t thread;
    size_t bytes = 64 << 20;
    long_text = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (long_text == MAP_FAILED) give_up("mmap");
    memset(long_text, 'x', bytes - 1);
    static void *volatile behind;
    void **block = malloc(3000);
    behind = malloc(24);
    if (block == NULL || behind == NULL) give_up("no memory");
    free(block);
    of_allocator = *(void *volatile *)block;
    if (pthread_create(&thread, NULL, spins, NULL) != 0) give_up("pthread_create");
}

NOINLINE static void hold_by_segment(void) {
    if (syscall(SYS_arch_prctl, ARCH_SET_GS, unmasked(make_block())) != 0) give_up("arch_prctl");
}

NOINLINE static void hold_by_secret(void) {
    int secret = (int)syscall(SYS_memfd_secret, 0);
    if (secret < 0 || ftruncate(secret, 4096) != 0) give_up("memfd_secret");
    void *mapping = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, secret, 0);
    if (mapping == MAP_FAILED) give_up("mmap");
    put(mapping, make_block());
}

NOINLINE static void make_and_free(size_t size) {
    void *volatile block = malloc(size);
    if (block == NULL) give_up("no memory");
    free(block);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (strcmp(what, "size") == 0) overwrite_size();
    else if (strcmp(what, "lists") == 0) overwrite_lists();
    else if (strcmp(what, "spinner") == 0) spin();
    else if (strcmp(what, "gs") == 0) hold_by_segment();
    else if (strcmp(what, "secret") == 0) hold_by_secret();
    else if (strcmp(what, "none") == 0) make_block();
    else if (strcmp(what, "freed") == 0 || strcmp(what, "churns") == 0) make_and_free(BYTES);
    else if (strcmp(what, "idle") != 0) give_up("unknown state");
    static char line[16];
    sweep();
    print("ready\n", 6);
    for (size_t i = 0; strcmp(what, "churns") == 0; i++) make_and_free(100 + i * 37 % 5000);
    while (read_line(line, sizeof line)) {}
    _exit(0);
}
