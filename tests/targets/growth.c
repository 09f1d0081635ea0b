/* Keeps the requested numbers of blocks of 10,000 bytes, from one function and from another: `3 4`. */
#include "protocol.h"

SITE(Allocate, (void), malloc(10000), 10000)
SITE(Allocate2, (void), malloc(10000), 10000)

static void work(const char *line) {
    int first = 0, second = 0;
    if (sscanf(line, "%d %d", &first, &second) != 2) give_up("`%s` is not two numbers", line);
    while (first--) Allocate();
    while (second--) Allocate2();
}
