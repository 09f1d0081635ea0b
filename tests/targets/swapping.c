/*
 * A program that loads plugins (`swapped.c`), one at a time.
 *
 * `load PATH` loads a plugin. `keep N COUNT` keeps COUNT blocks of N bytes by it. `unload` unloads it. `cycle ROUNDS N COUNT FIRST
 * SECOND` loads, uses and unloads two plugins in turns, and fails unless both nearly always have the same place.
 */
#include "protocol.h"

#include <dlfcn.h>
#include <link.h>

static void *library;
static void *(*keeps)(size_t);

/* Who calls the allocator is a function of the plugin. */
SITE(plugin_caller, (size_t n), keeps(n), n)

static void load(const char *path) {
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) give_up("%s", dlerror());
    *(void **)&keeps = dlsym(library, "plugin_keeps");
    if (!keeps) give_up("%s", dlerror());
}

static void unload(void) {
    if (dlclose(library)) give_up("%s", dlerror());
}

static void work(const char *line) {
    static char first[200], second[200];
    size_t rounds = 0, n = 0, count = 0;
    if (sscanf(line, "load %199s", first) == 1) {
        load(first);
    } else if (sscanf(line, "keep %zu %zu", &n, &count) == 2) {
        while (count--) plugin_caller(n);
    } else if (!strcmp(line, "unload")) {
        unload();
    } else if (sscanf(line, "cycle %zu %zu %zu %199s %199s", &rounds, &n, &count, first, second) == 5) {
        ElfW(Addr) base = 0;
        size_t moves = 0;
        while (rounds--) {
            for (int which = 0; which < 2; which++) {
                load(which ? second : first);
                /* Memory of the program may get the place at times. */
                moves += ((struct link_map *)library)->l_addr != base;
                if (moves > 20) give_up("plugins have other addresses");
                base = ((struct link_map *)library)->l_addr;
                for (size_t i = 0; i < count; i++) plugin_caller(n);
                unload();
            }
        }
    } else {
        give_up("unknown: %s", line);
    }
}
