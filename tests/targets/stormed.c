/*
 * A program whose initialisation calls the allocator through function pointers only (`storming.c`, its argument), and which then
 * makes and frees 1,000 blocks of 100,000 bytes through its slots.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline, noclone, noipa)) static void *works(void) { return malloc(100000); }

int main(int count, char **arguments) {
    void *library = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    void (*storm)(void);
    *(void **)&storm = library ? dlsym(library, "storm") : NULL;
    if (!storm) return 9;
    storm();
    for (int i = 0; i < 1000; i++) {
        void *block = works();
        *(volatile char *)block = 1;
        usleep(1000);
        free(block);
    }
    puts("done");
    return 0;
}
