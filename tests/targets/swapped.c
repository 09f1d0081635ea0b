/*
 * A plugin whose place another build of it gets. Builds differ by NUMBER: their function that allocates is `plugin_NUMBER`. Those with an
 * even one have a large frame, so that unwinding by the table of another build goes wrong.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline, noclone, noipa, unused))
#define NAME_OF(number) plugin_##number
#define NAME(number) NAME_OF(number)

NOINLINE static void *NAME(NUMBER)(size_t size) {
#if NUMBER % 2 == 0
    char room[3000];
    memset(room, 1, sizeof room);
    __asm__ volatile("" : : "r"(room) : "memory");
#endif
    void *volatile block = malloc(size);
    return block;
}

NOINLINE void *plugin_keeps(size_t size) {
#if NUMBER % 2 == 0
    char room[500];
    memset(room, 1, sizeof room);
    __asm__ volatile("" : : "r"(room) : "memory");
#endif
    void *volatile block = NAME(NUMBER)(size);
    return block;
}
