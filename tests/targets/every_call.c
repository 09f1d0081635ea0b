/* Many blocks of one size from each function that allocates, through those that call others inside the library too. One
 * function per call, so that a block that is drawn for twice shows. */
#include <malloc.h>

#include "protocol.h"

enum { BYTES = 256, TIMES = 40000 };

SITE(mallocs, (void), malloc(BYTES), BYTES)
SITE(callocs, (void), calloc(4, BYTES / 4), BYTES)
SITE(reallocs_nothing, (void), realloc(NULL, BYTES), BYTES)
SITE(reallocarrays_nothing, (void), reallocarray(NULL, 4, BYTES / 4), BYTES)
SITE(posix_memaligns, (void), ({ void *made = NULL; posix_memalign(&made, 64, BYTES) ? NULL : made; }), BYTES)
/* glibc calls malloc for this alignment. */
SITE(posix_memaligns_little, (void), ({ void *made = NULL; posix_memalign(&made, 8, BYTES) ? NULL : made; }), BYTES)
SITE(aligned_allocs, (void), aligned_alloc(64, BYTES), BYTES)
SITE(memaligns_little, (void), memalign(8, BYTES), BYTES)

static struct block (*const calls[])(void) = {mallocs,
                                              callocs,
                                              reallocs_nothing,
                                              reallocarrays_nothing,
                                              posix_memaligns,
                                              posix_memaligns_little,
                                              aligned_allocs,
                                              memaligns_little};

static void work(const char *line) {
    (void)line;
    for (int i = 0; i < TIMES; i++)
        for (size_t call = 0; call < sizeof calls / sizeof *calls; call++) {
            struct block block = calls[call]();
            if (block.address == NULL) give_up("out of memory");
            if (i % 2) release(block);
        }
}
