/*
 * Blocks that samplers are tried on. One function per size, but for `draws_variadic`, whose sizes are 700 to 1699 bytes, each once.
 *
 * `driver` keeps 1570 blocks of 700 bytes, 1000 of all those sizes and 2000 of 200 bytes; `mixed COUNT` frees COUNT large blocks and
 * 129 times as many small ones; `points COUNT` frees COUNT blocks of 250 bytes.
 */
#include "protocol.h"

SITE(draws_700, (void), malloc(700), 700)
SITE(draws_variadic, (size_t n), malloc(n), n)
SITE(draws_200, (void), malloc(200), 200)
SITE(draws_large, (void), malloc(129 * 8192 + 1), 129 * 8192 + 1)
SITE(draws_small, (void), malloc(8192), 8192)
SITE(draws_250, (void), malloc(250), 250)

static void work(const char *line) {
    long count = 0;
    if (strcmp(line, "driver") == 0) {
        for (int i = 0; i < 1570; i++) draws_700();
        for (size_t i = 0; i < 1000; i++) draws_variadic(700 + i);
        for (int i = 0; i < 2000; i++) draws_200();
    } else if (sscanf(line, "mixed %ld", &count) == 1) {
        while (count--) {
            release(draws_large());
            for (int i = 0; i < 129; i++) release(draws_small());
        }
    } else if (sscanf(line, "points %ld", &count) == 1) {
        while (count--) release(draws_250());
    } else {
        give_up("unknown: %s", line);
    }
}
