/*
 * A library whose calls of its own function and of the allocator go through slots of the global offset table. Built with
 * -DLARGE, the slots have another order, and blocks another size: where one library is loaded at the other's address, a slot
 * means another function.
 */
#include <stdlib.h>

/* Calls of the libraries' inner functions, which the program counts. */
extern long executed;

#ifdef LARGE
__attribute__((noinline)) void *allocates_large(int byte) {
    volatile char text[3000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)byte;
    executed++;
    void *block = malloc(2000);
    __asm__ volatile("" ::"r"(text), "r"(block) : "memory");
    return block;
}

void *allocates(void) {
    volatile char text[500];
    for (size_t i = 0; i < sizeof text; i++) text[i] = 1;
    void *block = allocates_large(3);
    __asm__ volatile("" ::"r"(text) : "memory");
    return block;
}
#else
__attribute__((noinline)) void *allocates_small(int byte) {
    executed += byte != 0;
    void *block = malloc(1000);
    __asm__ volatile("" ::"r"(block) : "memory");
    return block;
}

void *allocates(void) {
    void *block = allocates_small(3);
    __asm__ volatile("" ::: "memory");
    return block;
}
#endif
