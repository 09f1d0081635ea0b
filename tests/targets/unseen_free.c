/*
 * Gives a block back behind the allocator's back, so that its address is allocated twice with no free between.
 * `after COUNT` allocates and frees that many blocks before.
 */
#include "protocol.h"

#include <sys/mman.h>

#define BYTES (1 << 20)
SITE(maps, (void), malloc(BYTES), BYTES)
SITE(churns, (size_t n), malloc(n), n)

static void work(const char *line) {
    unsigned count = 0;
    sscanf(line, "after %u", &count);
    while (count-- > 0) release(churns(100));
    struct block first = maps();
    /* A block this large is a mapping of its own, with a header of 16 bytes, rounded up to pages. */
    char *mapping = (char *)first.address - 16;
    if (((uintptr_t)mapping & 4095) != 0) give_up("not a mapping of its own");
    if (munmap(mapping, BYTES + 4096) != 0) give_up("munmap failed");
    struct block second = maps();
    if (second.address != first.address) give_up("%p was to be used again, not %p", first.address, second.address);
}
