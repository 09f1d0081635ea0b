/* Calls every allocation function of glibc in every way that matters, single-threaded, with known sizes. */
#include "protocol.h"

#include <errno.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
/* More than the address space: any call with it fails. Not a constant, or the compiler would object. */
static volatile size_t impossible = PTRDIFF_MAX - PAGE;

/* Some arm64 kernels have larger pages. */
static size_t whole_pages(size_t n) {
    size_t page = sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page;
}

SITE(leaks_30000, (size_t n), malloc(n), n)
SITE(mallocs, (size_t n), malloc(n), n)
SITE(mallocs_nothing, (void), malloc(0), 0)
SITE(mallocs_too_much, (void), malloc(impossible), 0)
SITE(callocs, (size_t count, size_t n), calloc(count, n), count * n)
SITE(callocs_nothing, (void), calloc(0, 24), 0)
SITE(callocs_overflowing, (void), calloc(impossible, 4), 0)
SITE(reallocs_null, (size_t n), realloc(NULL, n), n)
SITE(reallocs_null_to_nothing, (void), realloc(NULL, 0), 0)
RESITE(grows, (struct block old, size_t n), realloc(old.address, n), n)
RESITE(shrinks, (struct block old, size_t n), realloc(old.address, n), n)
RESITE(grows_mapped, (struct block old, size_t n), realloc(old.address, n), n)
RESITE(shrinks_mapped, (struct block old, size_t n), realloc(old.address, n), n)
RESITE(reallocs_too_much, (struct block old), realloc(old.address, impossible), 0)
SITE(reallocarrays_null, (size_t count, size_t n), reallocarray(NULL, count, n), count * n)
RESITE(reallocarrays, (struct block old, size_t count, size_t n), reallocarray(old.address, count, n), count * n)
RESITE(reallocarrays_overflowing, (struct block old), reallocarray(old.address, impossible, 4), 0)
SITE(memaligns, (size_t alignment, size_t n), memalign(alignment, n), n)
SITE(memaligns_as_malloc, (size_t n), memalign(8, n), n)
SITE(aligned_allocs, (size_t alignment, size_t n), aligned_alloc(alignment, n), n)
SITE(aligned_allocs_too_much, (void), aligned_alloc(64, impossible), 0)
SITE(vallocs, (size_t n), valloc(n), n)
SITE(pvallocs, (size_t n), pvalloc(n), whole_pages(n))
SITE(mallocs_for_others_to_free, (size_t n), malloc(n), n)

/* posix_memalign answers through a pointer, so these do not fit the macro. */
static struct site posix_memaligns_site __attribute__((section("sites"), used)) = {"posix_memaligns", __LINE__ + 3, 0, 0, 0, 0};
NOINLINE static struct block posix_memaligns(size_t alignment, size_t n) {
    void *address = NULL;
    if (posix_memalign(&address, alignment, n) != 0) give_up("posix_memalign(%zu, %zu)", alignment, n);
    return allocated(&posix_memaligns_site, address, n);
}

/* A failed posix_memalign does not write its out-pointer: reading it anyway gives a block that is still live. */
static struct site posix_memaligns_too_much_site __attribute__((section("sites"), used)) = {"posix_memaligns_too_much", __LINE__ + 3, 0, 0, 0, 0};
NOINLINE static void posix_memaligns_too_much(struct block live) {
    void *address = live.address;
    int error = posix_memalign(&address, 64, impossible);
    if (error != ENOMEM || address != live.address) give_up("posix_memalign gave %d", error);
    if (posix_memaligns_too_much_site.alloc_count != 0) give_up("the ledger is wrong");
}

static struct site posix_memaligns_misaligned_site __attribute__((section("sites"), used)) = {"posix_memaligns_misaligned", __LINE__ + 3, 0, 0, 0, 0};
NOINLINE static void posix_memaligns_misaligned(struct block live) {
    void *address = live.address;
    int error = posix_memalign(&address, 24, 100);
    if (error != EINVAL || address != live.address) give_up("posix_memalign gave %d", error);
    if (posix_memaligns_misaligned_site.alloc_count != 0) give_up("the ledger is wrong");
}

/* glibc's realloc to 0 bytes frees. */
NOINLINE static void reallocs_to_nothing(struct block old) {
    void *address = realloc(old.address, 0);
    if (address != NULL) give_up("realloc(p, 0) gave %p", address);
    released(old);
}

NOINLINE static void frees_null(int times) {
    while (times--) free(NULL);
}

/* A child starts with a copy of the heap and of its breakpoints. Its calls are not the target's. */
SITE(child_mallocs, (size_t n), malloc(n), n)
NOINLINE static void forks_a_child(struct block inherited) {
    pid_t child = fork();
    if (child < 0) give_up("fork: %d", errno);
    if (child == 0) {
        for (int i = 0; i < 100; i++) child_mallocs(1000);
        free(inherited.address);
        _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) give_up("the child ended with %#x", status);
}

static struct block earlier[1000];

void prepare(void) {
    for (int i = 0; i < 1000; i++) earlier[i] = (struct block){malloc((size_t)i + 1), (size_t)i + 1, NULL, 0};
}

static void sizes_from_the_edges(void) {
    /* Around the tcache (1032), fastbin (128) and mmap (128 KiB) thresholds. */
    static const size_t sizes[] = {1, 15, 16, 17, 24, 25, 128, 129, 1032, 1033, 4095, 4096, 4097, 131071, 131072, 262144};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct block kept = mallocs(sizes[i]), freed = mallocs(sizes[i]);
        release(freed);
        (void)kept;
    }
}

static void zeroed(void) {
    release(callocs(10, 100));
    callocs(7, 13);
    callocs(1, 300000);
    callocs_nothing();
    if (callocs_overflowing().address != NULL) give_up("calloc did not overflow");
}

NOINLINE static void resized(void) {
    reallocs_null(100);
    release(reallocs_null(5000));
    reallocs_null_to_nothing();
    /* A block after this one makes it move. */
    struct block moving = mallocs(100), neighbour = mallocs(100);
    void *before = moving.address;
    moving = grows(moving, 20000);
    if (moving.address == before) give_up("the block was to move");
    moving = shrinks(moving, 50);
    release(neighbour);
    release(grows(grows(mallocs(10), 1000), 100000));
    /* Mapped blocks go through mremap, and through malloc inside realloc when they shrink a lot. */
    struct block mapped = grows_mapped(mallocs(1 << 20), 8 << 20);
    mapped = shrinks_mapped(mapped, 3000);
    if (mapped.address == NULL) give_up("out of memory");
    struct block kept = mallocs(777);
    kept = reallocs_too_much(kept);
    kept = reallocarrays_overflowing(kept);
    if (kept.size != 777) give_up("the block was to be kept");
    reallocs_to_nothing(mallocs(333));
    struct block array = reallocarrays_null(3, 111);
    array = reallocarrays(array, 30, 111);
    release(reallocarrays(reallocarrays_null(9, 9), 99, 99));
}

/* Has no frame of its own: reports show it all the same. */
__attribute__((always_inline)) static inline void aligned(void) {
    release(memaligns(64, 1000));
    memaligns(256, 333);
    memaligns(1 << 20, 4444);
    memaligns_as_malloc(55);
    release(memaligns_as_malloc(66));
    aligned_allocs(64, 640);
    release(aligned_allocs(16, 160));
    aligned_allocs(4096, 8192);
    if (aligned_allocs_too_much().address != NULL) give_up("aligned_alloc did not fail");
    vallocs(1);
    release(vallocs(5000));
    pvallocs(1);
    pvallocs(4096);
    release(pvallocs(4097));
    struct block live = posix_memaligns(64, 123);
    posix_memaligns(8, 45);
    release(posix_memaligns(4096, 10000));
    posix_memaligns_too_much(live);
    posix_memaligns_misaligned(live);
}

static void work(const char *line) {
    (void)line;
    leaks_30000(30000);
    sizes_from_the_edges();
    for (int i = 0; i < 10; i++) mallocs_nothing();
    release(mallocs_nothing());
    if (mallocs_too_much().address != NULL) give_up("malloc did not fail");
    frees_null(100);
    zeroed();
    resized();
    aligned();
    /* Reuses addresses: a late free would remove its successor. */
    for (int i = 0; i < 2000; i++) release(mallocs_for_others_to_free(40));
    struct block before_fork = mallocs_for_others_to_free(4321);
    forks_a_child(before_fork);
    for (int i = 0; i < 1000; i += 2) release(earlier[i]);
    for (int i = 1; i < 1000; i += 2) grows(earlier[i], 3000);
}
