/*
 * Blocks that libraries make which are loaded at run time: one that stays, and one that is unloaded. The arguments are their files, built
 * from `loaded.c`.
 */
#include "truth.h"

#include <dlfcn.h>

static void *open_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL) give_up(dlerror());
    return library;
}

/* Blocks of the library, and its lines of `truth`. */
NOINLINE static void call(void *library, const char *name, size_t size, const char *fate) {
    masked (*makes)(size_t) = (masked (*)(size_t))dlsym(library, name);
    if (makes == NULL) give_up(dlerror());
    noted(name, unmasked(makes(size)), size, fate);
}

static void *stays, *goes;

/* `make` has the libraries make blocks, and the second unloaded. */
void work(const char *line) {
    if (strcmp(line, "make") != 0) give_up("unknown line");
    call(stays, "loaded_global", 6001, "held");
    call(stays, "loaded_tls", 6002, "held");
    call(stays, "loaded_leak", 6003, "leaked");
    call(goes, "unloaded_global", 6004, "leaked");
    call(goes, "unloaded_leak", 6005, "leaked");
    if (dlclose(goes) != 0) give_up(dlerror());
    goes = NULL;
}

int main(int count, char **arguments) {
    if (count != 3) give_up("two libraries, please");
    stays = open_library(arguments[1]);
    goes = open_library(arguments[2]);
    serve();
    return 0;
}
