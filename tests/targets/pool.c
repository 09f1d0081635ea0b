/* An allocator for pieces of large blocks, which it takes from malloc. A library, or included by the program that uses it. */
#include "pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 << 10, HEADER_BYTES = 16 };

struct pool {
    char *block;
    size_t used;
};

static struct pool only;

POOL_CALL struct pool *pool_open(void) {
    return &only;
}

/* The first piece of each block comes with a call of malloc inside this one. */
POOL_CALL void *pool_get(struct pool *pool, size_t size) {
    if (size > BLOCK_BYTES - HEADER_BYTES) return NULL;
    size_t whole = (size + HEADER_BYTES + 15) & ~(size_t)15;
    if (pool->block == NULL || pool->used + whole > BLOCK_BYTES) {
        pool->block = malloc(BLOCK_BYTES);
        pool->used = 0;
        if (pool->block == NULL) return NULL;
    }
    char *piece = pool->block + pool->used + HEADER_BYTES;
    pool->used += whole;
    return piece;
}

POOL_CALL int pool_make(void **piece, size_t size) {
    void *made = pool_get(&only, size);
    if (made == NULL) return ENOMEM;
    *piece = made;
    return 0;
}

POOL_CALL void *pool_regrow(struct pool *pool, void *piece, size_t old_size, size_t size) {
    void *larger = pool_get(pool, size);
    if (larger == NULL) return NULL;
    if (piece) memcpy(larger, piece, old_size < size ? old_size : size);
    return larger;
}

POOL_CALL void pool_put(struct pool *pool, void *piece) {
    (void)pool;
    (void)piece;
}
