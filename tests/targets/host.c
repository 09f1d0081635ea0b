/*
 * A program that loads and unloads a library (`plugin.c`) and has it allocate.
 *
 * `keep N COUNT` keeps COUNT blocks of N bytes of its own. `load PATH` and `unload` are dlopen and dlclose; `use N COUNT`
 * has the library keep COUNT blocks of N bytes, `resize N` has it make all of these N bytes large, `free` has it free them;
 * `copy COUNT` has it copy a text of 99 bytes so many times.
 */
#include "protocol.h"

#include <dlfcn.h>

static void *plugin;
static void *(*keeps_in_plugin)(size_t);
static void *(*resizes_in_plugin)(void *, size_t);
static void (*frees_in_plugin)(void *);
static char *(*copies_in_plugin)(const char *);

SITE(keeps, (size_t n), malloc(n), n)
/* Who calls the allocator are the library's functions of these names. */
SITE(plugin_keeps, (size_t n), keeps_in_plugin(n), n)
RESITE(plugin_resizes, (struct block old, size_t n), resizes_in_plugin(old.address, n), n)

static struct block kept[10000];
static size_t kept_count;

static void *find(const char *name) {
    void *found = dlsym(plugin, name);
    if (!found) give_up("%s", dlerror());
    return found;
}

static void load(const char *path) {
    plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!plugin) give_up("%s", dlerror());
    *(void **)&keeps_in_plugin = find("plugin_keeps");
    *(void **)&resizes_in_plugin = find("plugin_resizes");
    *(void **)&frees_in_plugin = find("plugin_frees");
    *(void **)&copies_in_plugin = find("plugin_copies");
}

static void work(const char *line) {
    static char text[100];
    size_t n = 0, count = 0;
    if (sscanf(line, "keep %zu %zu", &n, &count) == 2) {
        while (count--) keeps(n);
    } else if (strncmp(line, "load ", 5) == 0) {
        load(line + 5);
    } else if (strcmp(line, "unload") == 0) {
        if (dlclose(plugin)) give_up("%s", dlerror());
    } else if (sscanf(line, "use %zu %zu", &n, &count) == 2) {
        if (kept_count + count > sizeof kept / sizeof *kept) give_up("too much to keep");
        while (count--) kept[kept_count++] = plugin_keeps(n);
    } else if (sscanf(line, "resize %zu", &n) == 1) {
        for (size_t i = 0; i < kept_count; i++) kept[i] = plugin_resizes(kept[i], n);
    } else if (strcmp(line, "free") == 0) {
        while (kept_count) {
            released(kept[--kept_count]);
            frees_in_plugin(kept[kept_count].address);
        }
    } else if (sscanf(line, "copy %zu", &count) == 1) {
        memset(text, 'a', sizeof text - 1);
        while (count--) copies_in_plugin(text);
    } else {
        give_up("unknown: %s", line);
    }
}
