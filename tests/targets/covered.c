/*
 * A program with blocks of 24 bytes to 4 KiB, whose sizes have a uniform logarithm. They are of the form 16n + 8, which is what glibc
 * makes of others: blocks from before a recording have the sizes that they can be used with.
 *
 *   mix N K        allocates N blocks and keeps them, except every Kth, which it frees after the next 64 allocations; 0 keeps all
 *   earlier K      frees every Kth block of earlier lines, which counts for `earlier`
 */
#include "protocol.h"

enum { KEPT_MAX = 1 << 20, WAITING = 64 };

SITE(small, (size_t n), malloc(n), n)
SITE(medium, (size_t n), malloc(n), n)
SITE(large, (size_t n), malloc(n), n)
SITE(earlier, (size_t n), malloc(n), n)

static struct block kept[KEPT_MAX], waiting[WAITING];
static size_t kept_count;
static uint64_t random_state = 1;

static uint32_t next(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static struct block allocate(void) {
    size_t least = (size_t)16 << next() % 8, n = (least + next() % least) / 16 * 16 + 8;
    return n < 128 ? small(n) : n < 1024 ? medium(n) : large(n);
}

static void mix(size_t count, size_t nth) {
    memset(waiting, 0, sizeof waiting);
    for (size_t i = 0; i < count; i++) {
        struct block block = allocate();
        if (nth && i % nth == 0) {
            struct block *slot = &waiting[i / nth % WAITING];
            release(*slot);
            *slot = block;
        } else {
            if (kept_count == KEPT_MAX) give_up("too much to keep");
            kept[kept_count++] = block;
        }
    }
    for (size_t i = 0; i < WAITING; i++) release(waiting[i]);
}

static void free_earlier(size_t nth) {
    size_t left = 0;
    for (size_t i = 0; i < kept_count; i++) {
        if (i % nth) {
            kept[left++] = kept[i];
            continue;
        }
        earlier_site.free_count++;
        earlier_site.free_bytes += kept[i].size;
        free(kept[i].address);
    }
    kept_count = left;
}

static void work(const char *line) {
    size_t count = 0, nth = 0;
    if (sscanf(line, "mix %zu %zu", &count, &nth) == 2) {
        mix(count, nth);
    } else if (sscanf(line, "earlier %zu", &nth) == 1) {
        free_earlier(nth);
    } else {
        give_up("unknown: %s", line);
    }
}
