/*
 * A program whose debug information names another source: that of `-DSOURCE=PATH`. `go` allocates there. `drop` gives up root's rights.
 */
#include "protocol.h"
#include <unistd.h>

SITE(keeps, (void), malloc(1000), 1000)

NOINLINE static void *allocate_there(void) {
#line 15 SOURCE
    void *volatile block = malloc(1000);
    return block;
}

#line 20 "named_source.c"
static void *volatile kept[100];
static struct block own;

void prepare(void) {}

static void work(const char *line) {
    if (strcmp(line, "drop") == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0) give_up("not root");
        return;
    }
    if (strcmp(line, "go") != 0) give_up("unknown: %s", line);
    own = keeps();
    for (int i = 1; i < 100; i++) kept[i] = allocate_there();
}
