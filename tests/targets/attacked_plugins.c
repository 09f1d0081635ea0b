/*
 * Loads libraries (`reloaded.c`) at one address in turn, and verifies what their calls reach. Arguments: `now` or `lazy`, and both
 * libraries.
 */
#include "attacked.h"

#include <dlfcn.h>
#include <malloc.h>

long executed;

static int mode;
static char **libraries;

static void prepare(int count, char **arguments) {
    if (count < 4) fail("usage: now|lazy LIBRARY LIBRARY");
    mode = strcmp(arguments[1], "now") == 0 ? RTLD_NOW : RTLD_LAZY;
    libraries = arguments + 2;
}

static uint64_t do_round(void) {
    uint64_t sum = 0;
    for (int i = 0; i < 2; i++) {
        void *library = dlopen(libraries[i], mode | RTLD_LOCAL);
        if (!library) fail(dlerror());
        void *(*allocates)(void);
        *(void **)&allocates = dlsym(library, "allocates");
        long before = executed;
        for (int call = 0; call < 50; call++) {
            void *block = allocates();
            sum = mix(sum, malloc_usable_size(block) >= (i ? 2000 : 1000));
            free(block);
            if (call % 10 == 0) usleep(200);
        }
        sum = mix(sum, (uint64_t)(executed - before));
        dlclose(library);
    }
    return sum;
}
