/*
 * Every function of an allocator with all kinds of arguments, built once for each allocator and each way to link it.
 *
 * Build-time macros:
 *   PREFIX            what the names of the malloc family begin with (`je_`, `tc_`, `mi_`); nothing where it is not set
 *   NO_ALIGNED_ALLOC, NO_REALLOCARRAY, HAS_PVALLOC, HAS_CFREE     which functions the family has
 *   JEMALLOC, TCMALLOC, MIMALLOC                                  adds that allocator's own functions
 *   ARENA                                                         the program brings its own allocator
 *
 * Commands:
 *   `exact`   all calls, at sizes from the edges of the allocators' classes, failing ones too, part of it on four threads
 *   `many`    thousands of blocks of one size from each function, on four threads, every other one freed
 */
#include "protocol.h"

#include "workers.h"
#ifdef ARENA
#include "arena.h"
#endif

#define JOINED(a, b) a##b
#define JOIN(a, b) JOINED(a, b)
#ifdef PREFIX
#define F(name) JOIN(PREFIX, name)
#else
#define F(name) name
#endif
#define PAGE 4096
#define UP(n, to) (((n) + (to) - 1) / (to) * (to))

/* By hand and not from headers: prefixed builds have none, and older C libraries lack the newer functions. */
void *F(malloc)(size_t);
void *F(calloc)(size_t, size_t);
void *F(realloc)(void *, size_t);
void *F(reallocarray)(void *, size_t, size_t);
int F(posix_memalign)(void **, size_t, size_t);
void *F(aligned_alloc)(size_t, size_t);
void *F(memalign)(size_t, size_t);
void *F(valloc)(size_t);
void *F(pvalloc)(size_t);
void F(free)(void *);
void F(cfree)(void *);
#if !defined PREFIX && !defined ARENA
/* C23: called where the allocator has them. */
__attribute__((weak)) void free_sized(void *, size_t);
__attribute__((weak)) void free_aligned_sized(void *, size_t, size_t);
#endif

/* More than the address space: any call with it fails. Not a constant, or the compiler would object. */
static volatile size_t impossible = PTRDIFF_MAX - PAGE;

#define POSIX_MEMALIGN(function, alignment, n) ({ void *made = NULL; function(&made, alignment, n) ? NULL : made; })

SITE(mallocs, (size_t n), F(malloc)(n), n)
SITE(mallocs_to_resize, (size_t n), F(malloc)(n), n)
SITE(mallocs_for_others, (size_t n), F(malloc)(n), n)
SITE(mallocs_too_much, (void), F(malloc)(impossible), 0)
SITE(callocs, (size_t n), F(calloc)(n / 4, 4), n / 4 * 4)
SITE(callocs_too_much, (void), F(calloc)(impossible, 1), 0)
SITE(callocs_overflowing, (void), F(calloc)(impossible, 4), 0)
SITE(reallocs_null, (size_t n), F(realloc)(NULL, n), n)
SITE(reallocs_null_too_much, (void), F(realloc)(NULL, impossible), 0)
RESITE(reallocs, (struct block old, size_t n), F(realloc)(old.address, n), n)
RESITE(reallocs_too_much, (struct block old), F(realloc)(old.address, impossible), 0)
SITE(posix_memaligns, (size_t n), POSIX_MEMALIGN(F(posix_memalign), 64, n), n)
SITE(posix_memaligns_to_pages, (size_t n), POSIX_MEMALIGN(F(posix_memalign), PAGE, n), n)
SITE(posix_memaligns_too_much, (void), POSIX_MEMALIGN(F(posix_memalign), 64, impossible), 0)
SITE(posix_memaligns_misaligned, (void), POSIX_MEMALIGN(F(posix_memalign), 24, 100), 0)
SITE(memaligns, (size_t n), F(memalign)(256, n), n)
SITE(memaligns_little, (size_t n), F(memalign)(8, n), n)
SITE(vallocs, (size_t n), F(valloc)(n), n)
#ifndef NO_ALIGNED_ALLOC
SITE(aligned_allocs, (size_t n), F(aligned_alloc)(64, UP(n, 64)), UP(n, 64))
SITE(aligned_allocs_too_much, (void), F(aligned_alloc)(64, UP(impossible, 64)), 0)
#endif
#ifndef NO_REALLOCARRAY
SITE(reallocarrays_null, (size_t n), F(reallocarray)(NULL, n / 4, 4), n / 4 * 4)
RESITE(reallocarrays, (struct block old, size_t n), F(reallocarray)(old.address, n / 4, 4), n / 4 * 4)
RESITE(reallocarrays_overflowing, (struct block old), F(reallocarray)(old.address, impossible, 4), 0)
#endif
#ifdef HAS_PVALLOC
SITE(pvallocs, (size_t n), F(pvalloc)(n), UP(n, PAGE))
#endif

#define FREEING(name, call)                      \
    NOINLINE static void name(struct block block) { \
        released(block);                         \
        call;                                    \
    }
FREEING(frees, F(free)(block.address))
#ifdef HAS_CFREE
FREEING(cfrees, F(cfree)(block.address))
#else
#define cfrees frees
#endif
#ifdef ARENA
FREEING(frees_sized, free_sized(block.address, block.size))
FREEING(frees_aligned_sized, free_aligned_sized(block.address, 64, block.size))
#elif !defined PREFIX
FREEING(frees_sized, free_sized ? free_sized(block.address, block.size) : free(block.address))
FREEING(frees_aligned_sized,
        free_aligned_sized ? free_aligned_sized(block.address, 64, block.size) : free(block.address))
#else
#define frees_sized frees
#define frees_aligned_sized frees
#endif

#ifdef JEMALLOC
void *F(mallocx)(size_t, int);
void *F(rallocx)(void *, size_t, int);
size_t F(xallocx)(void *, size_t, size_t, int);
void F(dallocx)(void *, int);
void F(sdallocx)(void *, size_t, int);
/* jemalloc.h: MALLOCX_ALIGN(64), MALLOCX_ZERO. */
enum { TO_64 = 6, ZERO = 0x40 };
SITE(mallocxs, (size_t n), F(mallocx)(n, 0), n)
SITE(mallocxs_zero, (size_t n), F(mallocx)(n, ZERO), n)
SITE(mallocxs_aligned, (size_t n), F(mallocx)(n, TO_64), n)
SITE(mallocxs_too_much, (void), F(mallocx)(impossible, 0), 0)
RESITE(rallocxs, (struct block old, size_t n), F(rallocx)(old.address, n, 0), n)
RESITE(rallocxs_aligned, (struct block old, size_t n), F(rallocx)(old.address, n, TO_64 | ZERO), n)
RESITE(rallocxs_too_much, (struct block old), F(rallocx)(old.address, impossible, 0), 0)
/* Answers with the size that the block has then. A resize in place is a free and an allocation like any other; one that
 * does not reach the size is nothing. */
RESITE(xallocxs, (struct block old, size_t n), F(xallocx)(old.address, n, 0, 0) >= n ? old.address : NULL, n)
FREEING(dallocxs, F(dallocx)(block.address, 0))
FREEING(sdallocxs, F(sdallocx)(block.address, block.size, 0))
FREEING(sdallocxs_aligned, F(sdallocx)(block.address, block.size, TO_64))
#endif

#ifdef TCMALLOC
void tc_free_sized(void *, size_t);
void *tc_malloc_skip_new_handler(size_t);
void *tc_new_nothrow(size_t, const void *);
void *tc_newarray_nothrow(size_t, const void *);
void *tc_new(size_t);
void *tc_newarray(size_t);
void tc_delete(void *);
void tc_deletearray(void *);
void tc_delete_sized(void *, size_t);
void tc_deletearray_sized(void *, size_t);
SITE(tc_mallocs_skipping, (size_t n), tc_malloc_skip_new_handler(n), n)
SITE(tc_news, (size_t n), tc_new(n), n)
SITE(tc_newarrays, (size_t n), tc_newarray(n), n)
SITE(tc_news_nothrow, (size_t n), tc_new_nothrow(n, ""), n)
SITE(tc_newarrays_nothrow, (size_t n), tc_newarray_nothrow(n, ""), n)
SITE(tc_news_too_much, (void), tc_new_nothrow(impossible, ""), 0)
FREEING(tc_frees_sized, tc_free_sized(block.address, block.size))
FREEING(tc_deletes, tc_delete(block.address))
FREEING(tc_deletearrays, tc_deletearray(block.address))
FREEING(tc_deletes_sized, tc_delete_sized(block.address, block.size))
FREEING(tc_deletearrays_sized, tc_deletearray_sized(block.address, block.size))
#endif

#ifdef MIMALLOC
#include <mimalloc.h>
static mi_heap_t *own_heap; /* The first thread's, and used by it alone. */
SITE(mi_zallocs, (size_t n), mi_zalloc(n), n)
SITE(mi_mallocns, (size_t n), mi_mallocn(n / 4, 4), n / 4 * 4)
SITE(mi_smalls, (size_t n), mi_malloc_small(n % 1000), n % 1000)
SITE(mi_zsmalls, (size_t n), mi_zalloc_small(n % 1000), n % 1000)
SITE(mi_mallocs_aligned, (size_t n), mi_malloc_aligned(n, 64), n)
SITE(mi_mallocs_aligned_at, (size_t n), mi_malloc_aligned_at(n, 64, 8), n)
SITE(mi_zallocs_aligned, (size_t n), mi_zalloc_aligned(n, 64), n)
SITE(mi_callocs_aligned, (size_t n), mi_calloc_aligned(n / 4, 4, 64), n / 4 * 4)
SITE(mi_news, (size_t n), mi_new(n), n)
SITE(mi_newns, (size_t n), mi_new_n(n / 4, 4), n / 4 * 4)
SITE(mi_news_nothrow, (size_t n), mi_new_nothrow(n), n)
SITE(mi_news_aligned, (size_t n), mi_new_aligned(n, 64), n)
SITE(mi_heap_mallocs, (size_t n), mi_heap_malloc(own_heap, n), n)
SITE(mi_heap_zallocs, (size_t n), mi_heap_zalloc(own_heap, n), n)
SITE(mi_heap_callocs, (size_t n), mi_heap_calloc(own_heap, n / 4, 4), n / 4 * 4)
SITE(mi_heap_mallocs_aligned, (size_t n), mi_heap_malloc_aligned(own_heap, n, 64), n)
RESITE(mi_heap_reallocs, (struct block old, size_t n), mi_heap_realloc(own_heap, old.address, n), n)
SITE(mi_callocs_too_much, (void), mi_calloc(impossible, 4), 0)
SITE(mi_news_too_much, (void), mi_new_nothrow(impossible), 0)
RESITE(mi_rezallocs, (struct block old, size_t n), mi_rezalloc(old.address, n), n)
RESITE(mi_reallocns, (struct block old, size_t n), mi_reallocn(old.address, n / 4, 4), n / 4 * 4)
RESITE(mi_recallocs, (struct block old, size_t n), mi_recalloc(old.address, n / 4, 4), n / 4 * 4)
RESITE(mi_reallocfs, (struct block old, size_t n), mi_reallocf(old.address, n), n)
RESITE(mi_new_reallocs, (struct block old, size_t n), mi_new_realloc(old.address, n), n)
RESITE(mi_reallocs_aligned, (struct block old, size_t n), mi_realloc_aligned(old.address, n, 64), n)
RESITE(mi_expands, (struct block old, size_t n), mi_expand(old.address, n), n)
FREEING(mi_frees_size, mi_free_size(block.address, block.size))
FREEING(mi_frees_aligned, mi_free_aligned(block.address, 64))
FREEING(mi_frees_size_aligned, mi_free_size_aligned(block.address, block.size, 64))

/* `reallocf` frees the old block when it fails. */
NOINLINE static void reallocfs_too_much(struct block old) {
    if (mi_reallocf(old.address, impossible) != NULL) give_up("mi_reallocf did not fail");
    released(old);
}
#endif

static const struct { struct block (*allocate)(size_t); void (*release)(struct block); } calls[] = {
    {mallocs, frees}, {callocs, frees_sized}, {reallocs_null, cfrees}, {posix_memaligns, frees_aligned_sized},
    {memaligns, frees}, {memaligns_little, cfrees}, {posix_memaligns_to_pages, frees}, {vallocs, frees},
#ifndef NO_ALIGNED_ALLOC
    {aligned_allocs, frees_aligned_sized},
#endif
#ifndef NO_REALLOCARRAY
    {reallocarrays_null, frees_sized},
#endif
#ifdef HAS_PVALLOC
    {pvallocs, frees},
#endif
#ifdef JEMALLOC
    {mallocxs, dallocxs}, {mallocxs_zero, sdallocxs}, {mallocxs_aligned, sdallocxs_aligned},
#endif
#ifdef TCMALLOC
    {tc_mallocs_skipping, tc_frees_sized}, {tc_news, tc_deletes}, {tc_newarrays, tc_deletearrays},
    {tc_news_nothrow, tc_deletes_sized}, {tc_newarrays_nothrow, tc_deletearrays_sized},
#endif
#ifdef MIMALLOC
    {mi_zallocs, mi_frees_size}, {mi_mallocns, mi_frees_size}, {mi_smalls, frees}, {mi_zsmalls, frees},
    {mi_mallocs_aligned, mi_frees_aligned}, {mi_mallocs_aligned_at, frees}, {mi_zallocs_aligned, mi_frees_size_aligned},
    {mi_callocs_aligned, mi_frees_size_aligned}, {mi_news, frees}, {mi_newns, frees}, {mi_news_nothrow, frees},
    {mi_news_aligned, mi_frees_aligned},
#endif
};

static struct block (*const resizes[])(struct block, size_t) = {
    reallocs,
#ifndef NO_REALLOCARRAY
    reallocarrays,
#endif
#ifdef JEMALLOC
    rallocxs,
    rallocxs_aligned,
#endif
#ifdef MIMALLOC
    mi_rezallocs,
    mi_reallocns,
    mi_recallocs,
    mi_reallocfs,
    mi_new_reallocs,
    mi_reallocs_aligned,
#endif
};

static struct block (*const failures[])(void) = {
    mallocs_too_much,         callocs_too_much,           callocs_overflowing, reallocs_null_too_much,
    posix_memaligns_too_much, posix_memaligns_misaligned,
#ifndef NO_ALIGNED_ALLOC
    aligned_allocs_too_much,
#endif
#ifdef JEMALLOC
    mallocxs_too_much,
#endif
#ifdef TCMALLOC
    tc_news_too_much,
#endif
#ifdef MIMALLOC
    mi_callocs_too_much,
    mi_news_too_much,
#endif
};

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* Around what glibc keeps per thread (1032), small bins and classes, and what is mapped (128 KiB and more). */
static const size_t sizes[] = {1, 15, 16, 17, 100, 1024, 1032, 1033, 4096, 14337, 32768, 131072, 131073, 300000, 2 << 20};

static struct block allocated_with(size_t call, size_t n) {
    struct block block = calls[call].allocate(n);
    if (block.address == NULL) give_up("call %zu for %zu bytes failed", call, n);
    return block;
}

static void at_all_sizes(void) {
    for (size_t call = 0; call < LENGTH(calls); call++)
        for (size_t i = 0; i < LENGTH(sizes); i++) {
            allocated_with(call, sizes[i]);
            calls[call].release(allocated_with(call, sizes[i]));
        }
}

/* From size to size and back, so that blocks grow, shrink, move and stay. */
static void at_all_resizes(void) {
    static const size_t to[] = {101, 30000, 29999, 50, 1 << 20, 8 << 20, 3 << 20, 3000, 3001, 200000, 199000, 64};
    for (size_t resize = 0; resize < LENGTH(resizes); resize++) {
        int moved = 0, stayed = 0;
        for (size_t i = 0; i < LENGTH(sizes); i++) {
            struct block block = mallocs_to_resize(sizes[i]), neighbour = mallocs(sizes[i]);
            for (size_t j = 0; j < LENGTH(to); j++) {
                void *before = block.address;
                block = resizes[resize](block, to[j]);
                if (block.address == before) stayed++;
                else moved++;
            }
            frees(neighbour);
            if (i % 2) frees(block);
        }
        if (moved == 0 || stayed == 0) give_up("resize %zu moved %d blocks and left %d", resize, moved, stayed);
    }
}

static void at_nothing(void) {
    frees(mallocs(0));
    mallocs(0);
    frees(callocs(0));
    frees(reallocs_null(0));
    F(free)(NULL);
    /* Some free the block and answer NULL, some give a block of 0 bytes. */
    struct block block = mallocs_to_resize(333), nothing = reallocs(block, 0);
    if (nothing.address == block.address && nothing.size == 333) released(block);
    else frees(nothing);
}

static void failing(void) {
    for (size_t failure = 0; failure < LENGTH(failures); failure++)
        for (int i = 0; i < 10; i++)
            if (failures[failure]().address != NULL) give_up("failure %zu succeeded", failure);
    struct block kept = reallocs_too_much(mallocs_to_resize(777));
#ifndef NO_REALLOCARRAY
    kept = reallocarrays_overflowing(kept);
#endif
#ifdef JEMALLOC
    kept = rallocxs_too_much(kept);
#endif
#ifdef MIMALLOC
    reallocfs_too_much(mallocs_to_resize(888));
#endif
    if (kept.size != 777) give_up("the block was to be kept");
}

static void its_own(void) {
#ifdef JEMALLOC
    /* Classes of large blocks: 16, 20, 24, 28, 32, 40 … KiB. Growth is a matter of what lies behind; staying is not. */
    for (int i = 0; i < 20; i++) {
        struct block block = mallocxs(32 << 10);
        block = xallocxs(block, 32 << 10);
        block = xallocxs(block, 20 << 10);
        block = xallocxs(block, 23000);
        block = xallocxs(block, 64 << 20);
        if (block.size > 32 << 10) give_up("a block of %zu bytes grew in place to 64 MiB", block.size);
        if (i % 2) dallocxs(block);
    }
#endif
#ifdef MIMALLOC
    for (int i = 0; i < 20; i++) {
        struct block block = mi_expands(mi_expands(mallocs_to_resize(1000), 900), 100000);
        if (block.size != 900) give_up("a block of 1000 bytes grew in place to 100000");
        if (i % 2) frees(block);
        mi_heap_mallocs_aligned(300);
        mi_heap_zallocs(200);
        frees(mi_heap_callocs(1200));
        frees(mi_heap_reallocs(mi_heap_mallocs(500), 5000));
    }
#endif
}

static struct block handed_over[4000];

NOINLINE static void warm_up(void) { frees(mallocs(100)); }

static void many(void) {
    for (size_t i = 0; i < 2500; i++) {
        for (size_t call = 0; call < LENGTH(calls); call++) {
            struct block block = allocated_with(call, 512 + 8 * call);
            if (i % 2) calls[call].release(block);
        }
        for (size_t resize = 0; resize < LENGTH(resizes); resize++) {
            struct block block = resizes[resize](mallocs_to_resize(400), 640 + 8 * resize);
            if (i % 2) frees(block);
        }
    }
}

NOINLINE static void share(const char *line, int thread) {
    if (strcmp(line, "many") == 0) many();
    if (strcmp(line, "exact") != 0) return;
    for (size_t i = 0; i < 50; i++)
        for (size_t call = 0; call < LENGTH(calls); call++) {
            struct block block = allocated_with(call, 10 + 37 * i + 1000 * (size_t)thread);
            if (i % 3) calls[call].release(block);
        }
    for (size_t i = (size_t)thread; i < LENGTH(handed_over); i += WORKERS)
        if (i % 8 < WORKERS) frees(handed_over[i]);
        else reallocs(handed_over[i], 2 * i);
}

void prepare(void) {
#ifdef MIMALLOC
    own_heap = mi_heap_new();
    mi_free(mi_heap_malloc(own_heap, 100));
#endif
    start_workers();
}

NOINLINE static void work(const char *line) {
    if (strcmp(line, "exact") == 0) {
        at_all_sizes();
        at_all_resizes();
        at_nothing();
        failing();
        its_own();
        for (size_t i = 0; i < LENGTH(handed_over); i++) handed_over[i] = mallocs_for_others(i + 1);
    }
    work_on_all(line);
}
