/* A library whose calls of the allocator pass no slot: it looks the functions up itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

void storm(void) {
    void *(*allocate)(size_t);
    void (*release)(void *);
    *(void **)&allocate = dlsym(RTLD_DEFAULT, "malloc");
    *(void **)&release = dlsym(RTLD_DEFAULT, "free");
    for (int i = 0; i < 20000; i++) {
        void *block = allocate(64);
        *(volatile char *)block = 1;
        release(block);
        if (i % 100 == 0) usleep(1000);
    }
}
