/* Gigabytes of blocks of ten sizes, half of them kept. One function per size, so that the error can be computed. */
#include "protocol.h"

#define SIZED(n) SITE(mallocs_##n, (void), malloc(n), n)
SIZED(16)
SIZED(64)
SIZED(200)
SIZED(1000)
SIZED(4000)
SIZED(5000)
SIZED(20000)
SIZED(100000)
SIZED(300000)
SIZED(1000000)

static const struct { struct block (*allocate)(void); int count; } sizes[] = {
    {mallocs_16, 100000},  {mallocs_64, 100000},   {mallocs_200, 100000}, {mallocs_1000, 60000},  {mallocs_4000, 30000},
    {mallocs_5000, 30000}, {mallocs_20000, 20000}, {mallocs_100000, 6000}, {mallocs_300000, 3000}, {mallocs_1000000, 500},
};

static void work(const char *line) {
    (void)line;
    /* In turns, so that sizes mix in time as well: 500 turns of a share of each. */
    for (int turn = 0; turn < 500; turn++)
        for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++)
            for (int i = 0; i < sizes[size].count / 500; i++) {
                struct block block = sizes[size].allocate();
                if (block.address == NULL) give_up("out of memory");
                if ((turn + i) % 2) release(block);
            }
}
