/* A library that allocates for the program that has loaded it, or has another library do it. */
#include <stddef.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline, noclone, noipa, unused))

NOINLINE void *joint_keeps(size_t size) {
    void *volatile block = malloc(size);
    return block;
}

NOINLINE void *joint_passes(void *(*next)(size_t), size_t size) {
    void *volatile block = next(size);
    return block;
}
