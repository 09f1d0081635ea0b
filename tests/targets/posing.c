/*
 * Poses as a Java virtual machine: it has a library of that name, and a handler of the signal by which tools attach to one.
 */
#include "protocol.h"

#include <dlfcn.h>
#include <signal.h>

SITE(keeps, (void), malloc(1000), 1000)

static struct block own;

static void ignores(int number) { (void)number; }

void prepare(void) {
    if (dlopen("libjvm.so", RTLD_NOW) == NULL) give_up("%s", dlerror());
    signal(SIGQUIT, ignores);
}

static void work(const char *line) {
    if (strcmp(line, "go") != 0) give_up("unknown: %s", line);
    own = keeps();
}
