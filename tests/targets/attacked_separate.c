/*
 * Has a library (`separated.c`) with an allocator of its own: loaded with RTLD_DEEPBIND, or into a namespace of its own. Arguments:
 * `deep` or `namespace`, and the library.
 */
#include "attacked.h"

#include <dlfcn.h>

#define BLOCKS 200

static void *(*keeps_there)(size_t);
static void (*frees_there)(void *);
static char *(*copies_there)(const char *);
/* Live from one round to the next. */
static unsigned char *kept[BLOCKS];
static char *copies[BLOCKS];

static void refill(int slot) {
    size_t size = 100 + (size_t)slot * 50;
    kept[slot] = keeps_there(size);
    copies[slot] = copies_there("a text to copy");
}

static void prepare(int count, char **arguments) {
    if (count < 3) fail("usage: deep|namespace LIBRARY");
    int deep = strcmp(arguments[1], "deep") == 0;
    void *library = deep ? dlopen(arguments[2], RTLD_LAZY | RTLD_DEEPBIND) : dlmopen(LM_ID_NEWLM, arguments[2], RTLD_LAZY);
    if (!library) fail(dlerror());
    *(void **)&keeps_there = dlsym(library, "separate_keeps");
    *(void **)&frees_there = dlsym(library, "separate_frees");
    *(void **)&copies_there = dlsym(library, "separate_copies");
    for (int slot = 0; slot < BLOCKS; slot++) refill(slot);
}

static uint64_t do_round(void) {
    uint64_t sum = 0;
    for (int slot = 0; slot < BLOCKS; slot++) {
        sum = mix_bytes(sum, kept[slot], 100);
        sum = mix_bytes(sum, copies[slot], strlen(copies[slot]));
        frees_there(kept[slot]);
        frees_there(copies[slot]);
        refill(slot);
        void *own = malloc(100);
        *(volatile char *)own = 1;
        free(own);
    }
    return sum;
}
