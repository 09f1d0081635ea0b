/* A program with a heap of each kind of block, which prints its thread pointer and waits: a seed for `walks`. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void) {
    static void *blocks[40];
    for (int i = 0; i < 40; i++) blocks[i] = malloc(16 + i * 24);
    for (int i = 0; i < 40; i += 3) free(blocks[i]);
    for (int i = 0; i < 9; i++) blocks[i] = malloc(40);
    for (int i = 1; i < 9; i++) free(blocks[i]);
    void *large = malloc(200000);
    void *middle = malloc(3000), *wall = malloc(100);
    free(middle);
    char line[32];
    int length = snprintf(line, sizeof line, "%p\n", __builtin_thread_pointer());
    if (write(1, line, length) != length || !large || !wall) return 1;
    pause();
    return 0;
}
