// Times its own malloc calls, below a stack of 20 frames that are equal for unwinders by tables and by frame pointers: the
// outermost one is marked for both. Prints "ready", then for each line of input calls and prints the median in nanoseconds.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CALLS = 20000 };

static unsigned times[CALLS];

static int compare(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return (x > y) - (x < y);
}

__attribute__((noinline)) void level0(void) {
    for (int i = 0; i < CALLS; i++) {
        struct timespec before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        void *volatile block = malloc(64);
        clock_gettime(CLOCK_MONOTONIC, &after);
        free(block);
        times[i] = (unsigned)((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec);
    }
}

// The empty assembly after the call keeps it from becoming a jump.
#define LEVEL(n, below) \
    __attribute__((noinline)) void level##n(void) { \
        level##below(); \
        __asm__ volatile(""); \
    }
LEVEL(1, 0) LEVEL(2, 1) LEVEL(3, 2) LEVEL(4, 3) LEVEL(5, 4) LEVEL(6, 5) LEVEL(7, 6) LEVEL(8, 7) LEVEL(9, 8)
LEVEL(10, 9) LEVEL(11, 10) LEVEL(12, 11) LEVEL(13, 12) LEVEL(14, 13) LEVEL(15, 14) LEVEL(16, 15) LEVEL(17, 16)
LEVEL(18, 17)

// The 20th frame. It is marked as the outermost one, for DWARF and for frame pointers.
void outermost(void);
__asm__(".text\n"
        ".globl outermost\n"
        ".type outermost, @function\n"
        "outermost:\n"
        "    .cfi_startproc\n"
        "    .cfi_undefined rip\n"
        "    push %rbp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    xor %ebp, %ebp\n"
        "    call level18\n"
        "    pop %rbp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size outermost, . - outermost\n");

int main(void) {
    char line[16];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        outermost();
        qsort(times, CALLS, sizeof times[0], compare);
        printf("%u\n", times[CALLS / 2]);
        fflush(stdout);
    }
}
