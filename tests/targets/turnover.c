/*
 * Holds blocks and turns them over: `turnover BLOCKS RATE` waits for a line, allocates BLOCKS blocks, and from then on frees one and
 * allocates another RATE times a second, until its input ends. Prints `ready`, then once a second and in the end how many it has
 * turned over so far and how many bytes it holds.
 *
 * Sizes are like those of real programs: many of few dozen bytes, some of kilobytes, about 200 bytes on average. Which
 * block goes is drawn, so that some live long. There are 32 callsites at each of eight depths of stacks.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { DEPTHS = 8, TURNS_PER_SECOND = 100 };

struct block {
    void *address;
    uint32_t size;
};

static struct block *blocks;
static size_t held, held_bytes;

/* xorshift64*: cheap, and enough for sizes. */
static uint32_t draw(void) {
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1d) >> 32);
}

/* Half of up to 64 bytes, three in eight of up to 256, one in eight of up to 2 KiB: (32 * 4 + 128 * 3 + 1024 * 1) / 8 = 192. */
static uint32_t draw_size(void) {
    uint32_t kind = draw() % 8;
    return 1 + draw() % (kind < 4 ? 64 : kind < 7 ? 256 : 2048);
}

__attribute__((noinline)) static void *allocate_here(unsigned callsite, size_t size) {
    /* The repeated calls have an address of return each. */
#define CALL(n) \
    case n: address = malloc(size); __asm__ volatile("# " #n); break;
#define CALLS(n) CALL(n) CALL(n + 1) CALL(n + 2) CALL(n + 3)
    void *address = NULL;
    switch (callsite % 32) { CALLS(0) CALLS(4) CALLS(8) CALLS(12) CALLS(16) CALLS(20) CALLS(24) CALLS(28) }
    return address;
}

__attribute__((noinline)) static void *allocate_below(unsigned depth, unsigned callsite, size_t size) {
    void *address = depth == 0 ? allocate_here(callsite, size) : allocate_below(depth - 1, callsite, size);
    __asm__ volatile("" : "+r"(address));
    return address;
}

static void fill(struct block *block) {
    uint32_t drawn = draw();
    block->size = draw_size();
    block->address = allocate_below(drawn % DEPTHS, drawn / DEPTHS, block->size);
    if (block->address == NULL) {
        perror("malloc");
        exit(1);
    }
    held_bytes += block->size;
}

static void turn_over(void) {
    struct block *block = &blocks[draw() % held];
    free(block->address);
    held_bytes -= block->size;
    fill(block);
}

static int input_has_ended(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char byte;
    return poll(&input, 1, 0) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    size_t wanted = strtoul(words[1], NULL, 10);
    unsigned long rate = strtoul(words[2], NULL, 10);
    blocks = calloc(wanted, sizeof *blocks);
    if (blocks == NULL || wanted == 0) return 2;
    static char output[256];
    setvbuf(stdout, output, _IOLBF, sizeof output);
    puts("ready");
    char byte;
    if (read(STDIN_FILENO, &byte, 1) != 1) return 0;
    while (held < wanted) fill(&blocks[held++]);

    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    unsigned long turned = 0;
    for (unsigned long turn = 1; !input_has_ended(); turn++) {
        for (unsigned long i = 0; i < rate / TURNS_PER_SECOND; i++, turned++) turn_over();
        if (turn % TURNS_PER_SECOND == 0) printf("%lu %zu\n", turned, held_bytes);
        due.tv_nsec += 1000000000 / TURNS_PER_SECOND;
        due.tv_sec += due.tv_nsec / 1000000000;
        due.tv_nsec %= 1000000000;
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL)) {}
    }
    printf("%lu %zu\n", turned, held_bytes);
    return 0;
}
