/*
 * A program that lives on: it does what each line asks for, and keeps its blocks from line to line.
 * `keep N COUNT` keeps COUNT blocks of N bytes; `churn N COUNT` allocates and frees; `drop` frees all that is kept.
 */
#include "protocol.h"

SITE(keeps, (size_t n), malloc(n), n)
SITE(churns, (size_t n), malloc(n), n)

static struct block kept[100000];
static size_t kept_count;

static void work(const char *line) {
    size_t n = 0, count = 0;
    if (sscanf(line, "keep %zu %zu", &n, &count) == 2) {
        if (kept_count + count > sizeof kept / sizeof *kept) give_up("too much to keep");
        for (size_t i = 0; i < count; i++) kept[kept_count++] = keeps(n);
    } else if (sscanf(line, "churn %zu %zu", &n, &count) == 2) {
        for (size_t i = 0; i < count; i++) release(churns(n));
    } else if (strcmp(line, "drop") == 0) {
        while (kept_count) release(kept[--kept_count]);
    } else {
        give_up("unknown: %s", line);
    }
}
