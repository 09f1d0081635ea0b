/* A program that leaks 1 MiB every 10 ms, in blocks of 4 KiB that it writes, until it is killed. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline)) static void leaks(void) {
    char *block = malloc(4096);
    memset(block, 1, 4096);
    __asm__ volatile("" : : "r"(block) : "memory");
}

int main(void) {
    for (;;) {
        for (int i = 0; i < 256; i++) leaks();
        usleep(10000);
    }
}
