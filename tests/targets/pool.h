/* What `pool.c` has. `POOL_CALL` goes before each function; calls stay calls. */
#ifndef POOL_H
#define POOL_H

#include <stddef.h>

#ifndef POOL_CALL
#define POOL_CALL __attribute__((noinline, noclone, noipa))
#endif

struct pool;

POOL_CALL struct pool *pool_open(void);
POOL_CALL void *pool_get(struct pool *pool, size_t size);
POOL_CALL int pool_make(void **piece, size_t size);
POOL_CALL void *pool_regrow(struct pool *pool, void *piece, size_t old_size, size_t size);
POOL_CALL void pool_put(struct pool *pool, void *piece);

#endif
