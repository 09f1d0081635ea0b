/* A library for `scripted.c` that allocates. The build defines PLUGGED, the name of its function. */
#include <stdlib.h>

__attribute__((noinline, noclone, noipa)) void *PLUGGED(size_t size) {
    void *volatile block = malloc(size);
    return block;
}
