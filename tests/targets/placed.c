/*
 * Calls the allocation functions that every allocator has, with sizes on both sides of the thresholds at which they branch.
 * Asks for nothing that allocators answer differently.
 */
#include "protocol.h"

#include <malloc.h>

SITE(mallocs, (size_t n), malloc(n), n)
SITE(callocs, (size_t count, size_t n), calloc(count, n), count * n)
SITE(reallocs_null, (size_t n), realloc(NULL, n), n)
RESITE(reallocs, (struct block old, size_t n), realloc(old.address, n), n)
SITE(memaligns, (size_t alignment, size_t n), memalign(alignment, n), n)
SITE(aligned_allocs, (size_t alignment, size_t n), aligned_alloc(alignment, n), n)
SITE(vallocs, (size_t n), valloc(n), n)

/* posix_memalign answers through a pointer, so it does not fit the macro. */
static struct site posix_memaligns_site __attribute__((section("sites"), used)) = {"posix_memaligns", __LINE__ + 3, 0, 0, 0, 0};
NOINLINE static struct block posix_memaligns(size_t alignment, size_t n) {
    void *address = NULL;
    if (posix_memalign(&address, alignment, n) != 0) give_up("posix_memalign(%zu, %zu)", alignment, n);
    return allocated(&posix_memaligns_site, address, n);
}

NOINLINE static void frees_null(int times) {
    while (times--) free(NULL);
}

static void work(const char *line) {
    static const size_t sizes[] = {1, 8, 16, 100, 1023, 1024, 1025, 4095, 4096, 4097, 8192, 8193, 40000, 131072, 300000, 1 << 20};
    (void)line;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        mallocs(n);
        release(mallocs(n));
        callocs(3, n);
        release(callocs(n, 5));
        release(reallocs_null(n));
        reallocs(mallocs(n), n + 7);
        release(reallocs(callocs(n, 2), n / 2 + 1));
        posix_memaligns(64, n);
        release(posix_memaligns(4096, n));
        release(memaligns(32, n));
        memaligns(8192, n);
        aligned_allocs(64, 64 * n);
        release(aligned_allocs(16, 16 * n));
        release(vallocs(n));
    }
    frees_null(10);
}
