/* Frees blocks by pointers with a tag in their upper byte, which arm64 ignores, and gets some of them again from malloc. */
#include "protocol.h"

#define BLOCKS 500
/* The allocator compares pointers to larger blocks. */
#define SIZE_MAX_CACHED 100

SITE(mallocs, (size_t n), malloc(n), n)

static void *tagged(void *address) {
    return (void *)((uintptr_t)address | (uintptr_t)0x5a << 56);
}

static void work(const char *line) {
    (void)line;
    int tags = 0;
    for (int i = 0; i < BLOCKS; i++) {
        struct block block = mallocs(1 + (size_t)i % SIZE_MAX_CACHED);
        tags += (uintptr_t)block.address >> 56 != 0;
        if (i % 3) continue;
        released(block);
        free(tagged(block.address));
    }
    if (tags == 0) give_up("malloc returned no tagged pointer");
}
