/*
 * A program that loads libraries (`joint.c`) and has them allocate before they return from the same command.
 *
 * `join N COUNT FIRST SECOND` is dlopen of both libraries, then COUNT blocks of N bytes: the first library calls the
 * second, which calls malloc.
 */
#include "protocol.h"

#include <dlfcn.h>

static void *(*passes)(void *(*)(size_t), size_t);
static void *(*keeps)(size_t);

/* Who calls the allocator is the second library's function of this name. */
SITE(joint_keeps, (size_t n), passes(keeps, n), n)

static void *load(const char *path, const char *name) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) give_up("%s", dlerror());
    void *found = dlsym(library, name);
    if (!found) give_up("%s", dlerror());
    return found;
}

static void work(const char *line) {
    static char first[120], second[120];
    size_t n = 0, count = 0;
    if (sscanf(line, "join %zu %zu %119s %119s", &n, &count, first, second) != 4) give_up("unknown: %s", line);
    *(void **)&passes = load(first, "joint_passes");
    *(void **)&keeps = load(second, "joint_keeps");
    while (count--) joint_keeps(n);
}
