/* A shared object with functions that `elf` looks for, one of them a jump: a seed for `elf` and `unwind`. */
static char memory[64];

__attribute__((noinline)) void *malloc(unsigned long size) { return size < 64 ? memory + size : 0; }
__attribute__((noinline)) void *realloc(void *block, unsigned long size) { return block ? malloc(size) : 0; }
void free(void *block) { if (block) *(volatile char *)block = 0; }
void *operator_new(unsigned long size) { return malloc(size); }
