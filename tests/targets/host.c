/*
 * A program that loads and unloads a library (`plugin.c`) and has it allocate.
 *
 * `keep N COUNT` keeps COUNT blocks of N bytes of its own. `load PATH` and `unload` are dlopen and dlclose; `use N COUNT`
 * has the library keep COUNT blocks of N bytes, `resize N` has it make all of these N bytes large, `free` has it free them;
 * `copy COUNT` has it copy a text of 99 bytes so many times. `occupy START LENGTH` (hexadecimal) maps other memory where the
 * library was, `intact` verifies that it has not changed. `take` copies the address of malloc, `call N COUNT` keeps COUNT blocks
 * of N bytes from there.
 */
#include "protocol.h"

#include <dlfcn.h>
#include <sys/mman.h>

static void *plugin;
static void *(*keeps_in_plugin)(size_t);
static void *(*resizes_in_plugin)(void *, size_t);
static void (*frees_in_plugin)(void *);
static char *(*copies_in_plugin)(const char *);

SITE(keeps, (size_t n), malloc(n), n)
/* Who calls the allocator are the library's functions of these names. */
SITE(plugin_keeps, (size_t n), keeps_in_plugin(n), n)
RESITE(plugin_resizes, (struct block old, size_t n), resizes_in_plugin(old.address, n), n)

static void *(*volatile taken)(size_t);
SITE(calls_taken, (size_t n), taken(n), n)

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

static unsigned char *occupied;
static size_t occupied_bytes;

static unsigned char pattern(size_t at) { return (unsigned char)(at * 7 + 3); }

static void occupy(uintptr_t start, size_t length) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    occupied = mmap((void *)start, length, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (occupied != (void *)start) give_up("%#zx is not free", start);
    occupied_bytes = length;
    for (size_t at = 0; at < length; at++) occupied[at] = pattern(at);
}

static void verify(void) {
    for (size_t at = 0; at < occupied_bytes; at++)
        if (occupied[at] != pattern(at)) give_up("byte %zu has changed", at);
}

static void work(const char *line) {
    static char text[100];
    size_t n = 0, count = 0;
    if (sscanf(line, "occupy %zx %zx", &n, &count) == 2) {
        occupy(n, count);
    } else if (strcmp(line, "take") == 0) {
        taken = malloc;
    } else if (sscanf(line, "call %zu %zu", &n, &count) == 2) {
        while (count--) calls_taken(n);
    } else if (strcmp(line, "intact") == 0) {
        verify();
    } else if (sscanf(line, "keep %zu %zu", &n, &count) == 2) {
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
