/*
 * A program with a library (`separated.c`) that has an allocator of its own. `deep PATH` loads it with RTLD_DEEPBIND, `namespace
 * PATH` into a namespace of its own. `keep N COUNT` allocates COUNT blocks of N bytes in each, `free` frees all.
 */
#include "protocol.h"

#include <dlfcn.h>

#define COUNT_MAX 10000

static void *(*keeps_there)(size_t);
static void (*frees_there)(void *);
static char *(*copies_there)(const char *);
static struct block kept[COUNT_MAX];
static void *separate[COUNT_MAX];
static char *copies[COUNT_MAX];
static size_t kept_count;

SITE(keeps, (size_t n), malloc(n), n)

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) give_up("%s", dlerror());
    return found;
}

static void use(void *library) {
    if (!library) give_up("%s", dlerror());
    *(void **)&keeps_there = find(library, "separate_keeps");
    *(void **)&frees_there = find(library, "separate_frees");
    *(void **)&copies_there = find(library, "separate_copies");
}

static void keep(size_t n) {
    if (kept_count == COUNT_MAX) give_up("too much to keep");
    kept[kept_count] = keeps(n);
    separate[kept_count] = keeps_there(n);
    copies[kept_count++] = copies_there("text");
}

static void free_all(void) {
    while (kept_count) {
        release(kept[--kept_count]);
        if (*(char *)separate[kept_count] != 1 || strcmp(copies[kept_count], "text")) give_up("a block was overwritten");
        frees_there(separate[kept_count]);
        frees_there(copies[kept_count]);
    }
}

static void work(const char *line) {
    size_t n, count;
    if (strncmp(line, "deep ", 5) == 0) {
        use(dlopen(line + 5, RTLD_LAZY | RTLD_DEEPBIND));
    } else if (strncmp(line, "namespace ", 10) == 0) {
        use(dlmopen(LM_ID_NEWLM, line + 10, RTLD_LAZY));
    } else if (sscanf(line, "keep %zu %zu", &n, &count) == 2) {
        while (count--) keep(n);
    } else if (strcmp(line, "free") == 0) {
        free_all();
    } else {
        give_up("unknown: %s", line);
    }
}
