/*
 * A program that keeps and frees single blocks on command. A line is a row of words: `+SLOT:BYTES` takes a block into a
 * slot, `-SLOT` frees it. Slots below 10 are taken by `few`, those above by `many`.
 */
#include "protocol.h"

SITE(few, (size_t n), malloc(n), n)
SITE(many, (size_t n), malloc(n), n)

static struct block slots[100];

static void work(const char *line) {
    for (const char *word = line; *word;) {
        unsigned slot;
        size_t bytes;
        int length;
        if (sscanf(word, "+%u:%zu%n", &slot, &bytes, &length) == 2) {
            if (slot >= 100) give_up("no such slot: %s", word);
            slots[slot] = slot < 10 ? few(bytes) : many(bytes);
        } else if (sscanf(word, "-%u%n", &slot, &length) == 1 && slot < 100) {
            release(slots[slot]);
        } else {
            give_up("unknown: %s", word);
        }
        word += length;
        while (*word == ' ') word++;
    }
}
