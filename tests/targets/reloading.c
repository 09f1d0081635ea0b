/*
 * A program that loads libraries (`reloaded.c`) at one address in turn, and verifies what their calls reach.
 *
 * `now PATH` and `lazy PATH` load a library, `unload` unloads it. `call COUNT` calls it so many times: its inner function must
 * run each time, and return a block of its own size.
 */
#include "protocol.h"

#include <dlfcn.h>
#include <malloc.h>

long executed;

static void *library;
static void *(*allocates)(void);

SITE(calls_plugin, (void), allocates(), 1000)

static void load(const char *path, int mode) {
    library = dlopen(path, mode | RTLD_LOCAL);
    if (!library) give_up("%s", dlerror());
    *(void **)&allocates = dlsym(library, "allocates");
    if (!allocates) give_up("%s", dlerror());
}

static void call(long count) {
    for (long i = 0; i < count; i++) {
        long before = executed;
        struct block block = calls_plugin();
        size_t usable = malloc_usable_size(block.address);
        if (executed != before + 1) give_up("call %ld of %ld ran another function", i, count);
        if (usable < 1000 || usable > 3000) give_up("call %ld of %ld returned a block of %zu bytes", i, count, usable);
        release(block);
    }
}

static void unload(void) {
    if (dlclose(library)) give_up("%s", dlerror());
}

static void work(const char *line) {
    long count;
    if (strncmp(line, "now ", 4) == 0) {
        load(line + 4, RTLD_NOW);
    } else if (strncmp(line, "lazy ", 5) == 0) {
        load(line + 5, RTLD_LAZY);
    } else if (sscanf(line, "call %ld", &count) == 1) {
        call(count);
    } else if (strcmp(line, "unload") == 0) {
        unload();
    } else {
        give_up("unknown: %s", line);
    }
}
