/*
 * Allocates blocks of 16 to 1039 bytes, and frees the oldest. A line has pairs of an operation and a number: `keep N` allocates N blocks,
 * `free N` frees the N oldest. `work` of a line ends when all is done.
 */
#include "protocol.h"

enum { BLOCKS_MAX = 1 << 20 };

static struct block blocks[BLOCKS_MAX];
static size_t newest, oldest;

SITE(keeps, (size_t size), malloc(size), size)

static size_t next_size(void) {
    static uint64_t random = 88172645463325252;
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return 16 + random % 1024;
}

NOINLINE static void keep(size_t count) {
    while (count-- > 0) {
        if (newest == BLOCKS_MAX) give_up("more than %d blocks", BLOCKS_MAX);
        blocks[newest++] = keeps(next_size());
    }
}

NOINLINE static void retire(size_t count) {
    while (count-- > 0 && oldest < newest) release(blocks[oldest++]);
}

static void work(const char *line) {
    while (*line != '\0') {
        int is_free = strncmp(line, "free ", 5) == 0;
        if (!is_free && strncmp(line, "keep ", 5) != 0) give_up("no operation: %s", line);
        char *end;
        size_t count = strtoul(line + 5, &end, 10);
        (is_free ? retire : keep)(count);
        line = end + (*end == ' ');
    }
}
