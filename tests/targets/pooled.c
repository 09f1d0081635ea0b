/*
 * A program that allocates from a pool, through all shapes of calls, and from malloc. `go` does some of everything; `open`
 * loads the pool's library from the path in `POOL`, where the program is built with -DLATE. With -DINSIDE the pool is in the
 * program, in functions that nothing exports.
 */
#include "protocol.h"

#ifdef INSIDE
#define POOL_CALL __attribute__((noinline, noclone, noipa)) static
#include "pool.c"
#elif defined LATE
#include <dlfcn.h>
struct pool;
static struct pool *(*pool_open)(void);
static void *(*pool_get)(struct pool *, size_t);
static int (*pool_make)(void **, size_t);
static void *(*pool_regrow)(struct pool *, void *, size_t, size_t);
static void (*pool_put)(struct pool *, void *);
#else
#include "pool.h"
#endif

static struct pool *pool;

SITE(gets, (size_t n), pool_get(pool, n), n)
SITE(gets_too_much, (void), pool_get(pool, 1 << 20), 0)
RESITE(regrows, (struct block old, size_t n), pool_regrow(pool, old.address, old.size, n), n)
RESITE(regrows_null, (struct block old, size_t n), pool_regrow(pool, old.address, old.size, n), n)
SITE(mallocs, (size_t n), malloc(n), n)

static struct site makes_site __attribute__((section("sites"), used)) = {"makes", __LINE__ + 3, 0, 0, 0, 0};
NOINLINE static struct block makes(size_t n) {
    void *piece = NULL;
    int error = pool_make(&piece, n);
    return allocated(&makes_site, error ? NULL : piece, n);
}

/* A failed call does not write the pointer: reading it anyway gives a piece that is live. */
NOINLINE static void makes_too_much(struct block live) {
    void *piece = live.address;
    if (pool_make(&piece, 1 << 20) == 0 || piece != live.address) give_up("the pool has too much");
}

NOINLINE static void put(struct block block) {
    released(block);
    pool_put(pool, block.address);
}

static void go(void) {
    pool = pool_open();
    struct block live = gets(100);
    for (size_t i = 1; i <= 3000; i++) {
        struct block piece = gets(i % 400 + 1);
        if (i % 2) put(piece);
        if (i % 5 == 0) put(regrows(i % 2 ? gets(7) : piece, i % 900 + 1));
        piece = makes(i % 50);
        if (i % 3) put(piece);
        if (i % 100 == 0) {
            makes_too_much(live);
            if (gets_too_much().address) give_up("the pool has too much");
            regrows_null((struct block){NULL, 0, NULL, 0}, 33);
        }
    }
    for (int i = 0; i < 20000; i++) mallocs(100);
}

#ifdef LATE
static void load(void) {
    void *library = dlopen(getenv("POOL"), RTLD_NOW);
    if (library == NULL) give_up("dlopen: %s", dlerror());
    *(void **)&pool_open = dlsym(library, "pool_open");
    *(void **)&pool_get = dlsym(library, "pool_get");
    *(void **)&pool_make = dlsym(library, "pool_make");
    *(void **)&pool_regrow = dlsym(library, "pool_regrow");
    *(void **)&pool_put = dlsym(library, "pool_put");
}
#endif

static void work(const char *line) {
#ifdef LATE
    if (strcmp(line, "open") == 0) return load();
#endif
    if (strcmp(line, "go") == 0) return go();
    give_up("unknown: %s", line);
}
